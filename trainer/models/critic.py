"""The value model of PPO: a copy of the policy's backbone with a head of one number a token.

Its value at a token is that of the state before it: everything left of the token is known, the
token itself is not. It has an optimiser of its own, and its gradient never reaches the policy.

Axis letters: B rows, T tokens, R trained tokens of one turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import Config, ConfigError
from trainer.learning.base_advantages import BaseAdvantages
from trainer.learning.optim import (
    build_optimizer,
    gradient_norm,
    optimizer_tensors,
    put_optimizer_tensors,
)
from trainer.learning.update import pad_like, passes, precision
from trainer.methods.protocol import PassLimits
from trainer.models.policy import SegmentBatch, evaluation_mode, token_hidden
from trainer.objectives import Denominators
from trainer.objectives.value import ValueStats, explained_variance, value_loss
from trainer.rollouts.data import Segment

__all__ = ["Critic", "ValueModel", "make_critic"]


class ValueModel(nn.Module):
    """Backbone and value head. The head starts at 0: no value is known."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.backbone = deepcopy(policy)
        # Not initialised, which would draw from the global random state: it starts at 0 anyway.
        make: Any = nn.utils.skip_init
        self.head: nn.Linear = make(nn.Linear, policy.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: SegmentBatch) -> Tensor:
        """float32 (B, T): values before each trained token, 0 where none is trained."""
        found = token_hidden(self.backbone, batch)
        if found is None:
            raise ConfigError(
                f"A critic needs the last hidden states of the policy, and "
                f"{type(self.backbone).__name__} does not say where they are. Choose an objective "
                "without a critic."
            )
        hidden = found[0]
        blank = torch.zeros(batch.mask_B_T.shape, dtype=torch.float32, device=hidden.device)
        # Not in bfloat16, which knows values near 10 to 0.03 only.
        with torch.autocast(hidden.device.type, enabled=False):
            value_N = self.head(hidden.float())[:, 0]
        return blank.masked_scatter(batch.mask_B_T, value_N)


class Critic:
    """A value model in training."""

    def __init__(self, config: Config, model: ValueModel) -> None:
        self.config = config.objective.critic
        self.aggregation = config.objective.aggregation
        self.length = config.rollout.max_new_tokens
        self.grad_clip = config.optim.grad_clip
        self.model = model
        self.optimizer = build_optimizer(model, config.optim, lr=self.config.lr)
        self._stats: ValueStats | None = None
        self._losses: list[float] = []
        self._explained: float | None = None
        self._nonfinite = 0

    def values(self, segments: Sequence[Segment], limits: PassLimits) -> list[Tensor]:
        """(R,) values of each segment's trained tokens, without gradient, float32 on the CPU."""
        self._stats, self._losses, self._explained, self._nonfinite = None, [], None, 0
        device = next(self.model.parameters()).device
        result: list[Tensor] = [torch.empty(0)] * len(segments)
        with evaluation_mode(self.model), torch.no_grad():
            for micro, batch in passes(self.model.backbone, segments, limits):
                with precision(device, limits.bf16):
                    value_B_T = self.model(batch).cpu()
                for row, index in enumerate(micro):
                    result[index] = value_B_T[row, : segments[index].trained].clone()
        return result

    def learn(
        self,
        part: Sequence[int],
        segments: Sequence[Segment],
        found: BaseAdvantages,
        values: Sequence[Tensor],
        limits: PassLimits,
    ) -> None:
        """One step on the turns in `part`. `values` are those that the advantages were made of.

        A gradient that is not finite is not applied, and counted.

        Raises:
            ValueError: the advantages came without targets.
        """
        if found.targets is None or found.target_mask is None:
            raise ValueError("These advantages have no targets for a critic.")
        rows = [i for i in part if bool(found.target_mask[i].any())]
        if not rows:
            return
        masks = [found.target_mask[i] for i in rows]
        counts = Denominators(sum(int(m.sum()) for m in masks), len(rows), self.length)
        if self._explained is None:
            self._explained = _explained(values, found)
        self.model.eval()
        self.optimizer.zero_grad(set_to_none=True)
        self._losses.append(self._backward(rows, segments, found, values, counts, limits))
        self._step()

    def _backward(
        self,
        rows: Sequence[int],
        segments: Sequence[Segment],
        found: BaseAdvantages,
        values: Sequence[Tensor],
        counts: Denominators,
        limits: PassLimits,
    ) -> float:
        """Accumulates the gradient of these rows' part of the loss; returns that part."""
        assert found.targets is not None
        assert found.target_mask is not None
        device = next(self.model.parameters()).device
        total = 0.0
        for micro, batch in passes(self.model.backbone, [segments[i] for i in rows], limits):
            chosen = [rows[i] for i in micro]
            with precision(device, limits.bf16):
                value_B_T = self.model(batch)
            loss, stats = value_loss(
                value_B_T,
                pad_like([values[i] for i in chosen], value_B_T),
                pad_like([found.targets[i] for i in chosen], value_B_T),
                pad_like([found.target_mask[i] for i in chosen], value_B_T) != 0,
                clip=self.config.clip,
                aggregation=self.aggregation,
                denominators=counts,
            )
            total += float(loss.detach())
            self._stats = stats if self._stats is None else self._stats + stats
            loss.backward()  # type: ignore[no-untyped-call]
        return total

    def _step(self) -> None:
        """Clips by the norm and steps; a gradient that is not finite is refused."""
        norm = gradient_norm(self.model.parameters())
        if not torch.isfinite(torch.tensor(norm)):
            self._nonfinite += 1
            self.optimizer.zero_grad(set_to_none=True)
            return
        if self.grad_clip > 0 and norm > self.grad_clip:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.grad_clip / norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def metrics(self) -> dict[str, float | None]:
        """Of this iteration; the explained variance is that of the values before it."""
        shares = {} if self._stats is None else self._stats.metrics()
        mean = sum(self._losses) / len(self._losses) if self._losses else None
        return {
            "loss/value": mean,
            "critic/clip_fraction": shares.get("value_clipfrac"),
            "critic/explained_variance": self._explained,
            "critic/nonfinite_steps": self._nonfinite,
        }

    def state(self) -> dict[str, Tensor]:
        """Parameters and moments, for a checkpoint."""
        tensors = {
            f"model/{name}": parameter.detach().cpu().contiguous().clone()
            for name, parameter in self.model.named_parameters()
        }
        return tensors | optimizer_tensors(self.model, self.optimizer)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave.

        Raises:
            ValueError: the tensors are those of another model.
        """
        own = dict(self.model.named_parameters())
        saved = {k.removeprefix("model/"): v for k, v in tensors.items() if k.startswith("model/")}
        if own.keys() != saved.keys() or any(own[k].shape != saved[k].shape for k in own):
            raise ValueError("it holds the parameters of another critic")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(saved[name])
        moments = {k: v for k, v in tensors.items() if not k.startswith("model/")}
        put_optimizer_tensors(moments, self.model, self.optimizer)


def make_critic(config: Config, policy: nn.Module) -> Critic:
    """A critic on a copy of the policy's present weights, on its device."""
    model = ValueModel(policy).to(next(policy.parameters()).device)
    return Critic(config, model)


def _explained(values: Sequence[Tensor], found: BaseAdvantages) -> float | None:
    assert found.targets is not None
    assert found.target_mask is not None
    value = torch.cat([v[m].double() for v, m in zip(values, found.target_mask, strict=True)])
    target = torch.cat([t[m] for t, m in zip(found.targets, found.target_mask, strict=True)])
    return explained_variance(value[None], target[None], torch.ones(1, len(value)))
