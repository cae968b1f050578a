"""PPO's critic in many processes: one value model, trained by the turns of all of them.

As for the policy: a replica or a shard on every rank, losses divided by the counts of all ranks,
gradients summed, and clipped by the norm of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from trainer.config import Config
from trainer.learning.base_advantages import BaseAdvantages
from trainer.learning.optim import put_optimizer_tensors
from trainer.methods.protocol import PassLimits
from trainer.models.critic import Critic, ValueModel
from trainer.models.policy import collate
from trainer.objectives import Denominators
from trainer.objectives.groups import CONSTANT_TOLERANCE
from trainer.objectives.value import ValueStats
from trainer.parallel.context import Group
from trainer.parallel.reduce import even_passes, meets, sum_gradients
from trainer.parallel.wrap import (
    cut_moments,
    decoder_layers,
    put_whole_weights,
    same_weights,
    shard,
    try_whole,
    whole_moments,
    whole_state,
)
from trainer.rollouts.data import Segment, make_segment

__all__ = ["SharedCritic", "share_values", "shared_explained_variance"]


class SharedCritic(Critic):
    """A critic on one rank of `group`. Every method but `metrics` is called by all of them."""

    def __init__(self, config: Config, model: ValueModel, group: Group) -> None:
        share_values(model, group, packing=config.optim.packing)
        super().__init__(config, model)
        self.group = group
        self._kept: dict[str, Tensor] | None = None

    def values(self, segments: Sequence[Segment], limits: PassLimits) -> list[Tensor]:
        with even_passes(self.model, self.group):
            return super().values(segments, limits)

    def learn(
        self,
        part: Sequence[int],
        segments: Sequence[Segment],
        found: BaseAdvantages,
        values: Sequence[Tensor],
        limits: PassLimits,
    ) -> None:
        """One step of all ranks on their turns in `part`; see `Critic.learn`."""
        if found.targets is None or found.target_mask is None:
            raise ValueError("These advantages have no targets for a critic.")
        if self._explained is None:
            self._explained = shared_explained_variance(values, found, self.group)
        rows = [i for i in part if bool(found.target_mask[i].any())]
        own = sum(int(found.target_mask[i].sum()) for i in rows)
        tokens, sequences = (int(n) for n in self.group.sum([own, len(rows)]))
        if not sequences:
            return
        counts = Denominators(tokens, sequences, self.length)
        self.model.eval()
        self.optimizer.zero_grad(set_to_none=True)
        with even_passes(self.model, self.group):
            loss = self._backward(rows, segments, found, values, counts, limits)
        sum_gradients(self.model, self.group)
        self._losses.append(self.group.sum([loss])[0])
        self._step()

    def metrics(self) -> dict[str, float | None]:
        """Of this iteration, of all ranks; they must all ask."""
        own = self._stats
        sums = [0.0] * 3
        if own is not None:
            sums = [float(x) for x in (own.tokens, own.clipped, own.squared_error)]
        total = self.group.sum(sums)
        self._stats = ValueStats(*(torch.tensor(x) for x in total)) if total[0] else None
        try:
            return super().metrics()
        finally:
            self._stats = own

    def state(self) -> dict[str, Tensor]:
        """Whole parameters and moments, in the form of one process; on rank 0 of shards."""
        if self._kept is not None:
            return self._kept
        if not self.group.sharded:
            return super().state()
        weights = {f"model/{name}": value for name, value in whole_state(self.model).items()}
        moments = whole_moments(self.model, self.optimizer, self.group)
        return weights | {
            f"{name}/{moment}": torch.as_tensor(value).contiguous()
            for name, own in moments.items()
            for moment, value in own.items()
        }

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Inside, any rank may ask for `state` alone."""
        self._kept = self.state()
        try:
            yield
        finally:
            self._kept = None

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        if not self.group.sharded:
            super().load_state(tensors)
            return
        own = dict(self.model.named_parameters())
        saved = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        if own.keys() != saved.keys() or any(own[k].shape != saved[k].shape for k in own):
            raise ValueError("it holds the parameters of another critic")
        put_whole_weights(self.model, saved)
        moments = {k: v for k, v in tensors.items() if not k.startswith("model/")}
        put_optimizer_tensors(moments, self.model, self.optimizer)
        cut_moments(self.optimizer)


def share_values(model: ValueModel, group: Group, *, packing: bool | None = None) -> None:
    """Makes the value model this rank's replica or shard, from rank 0's weights."""
    same_weights(model)
    if not group.sharded:
        return
    backbone: nn.Module = model.backbone
    try_whole(backbone, packing)
    shard(model, decoder_layers(backbone), group)
    meets(model, _empty_pass)


def _empty_pass(model: nn.Module) -> Tensor:
    device = next(model.parameters()).device
    value: Tensor = model(collate([make_segment((0,), (0,))], device=device))
    return value


def shared_explained_variance(
    values: Sequence[Tensor], found: BaseAdvantages, group: Group
) -> float | None:
    """`trainer.objectives.value.explained_variance` over the turns of all ranks."""
    assert found.targets is not None
    assert found.target_mask is not None
    nothing = torch.empty(0, dtype=torch.float64)
    masks = found.target_mask
    value = torch.cat([nothing, *(v[m].double() for v, m in zip(values, masks, strict=True))])
    target = torch.cat([nothing, *(t[m] for t, m in zip(found.targets, masks, strict=True))])
    error = target - value
    n, target_sum, error_sum = group.sum([len(target), float(target.sum()), float(error.sum())])
    low, high, size = group.max(
        [float(x.max()) if len(x) else -math.inf for x in (-target, target, target.abs())]
    )
    if n < 2 or high + low < CONSTANT_TOLERANCE * max(size, 1.0):
        return None
    squares = [
        float((x - total / n).square().sum())
        for x, total in ((error, error_sum), (target, target_sum))
    ]
    left, whole = group.sum(squares)
    return 1.0 - left / whole
