"""What a rank of a test learns, in float64 throughout, and what it writes down of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.trainer import small
from trainer.config import Config
from trainer.learning import learner as learner_module
from trainer.learning import update
from trainer.learning.learner import Learner
from trainer.loop import train
from trainer.metrics import Phases
from trainer.models.policy import SegmentBatch, TokenLogprobs
from trainer.models.tiny import load_policy
from trainer.parallel.context import ALONE, Group
from trainer.parallel.launch import own_config, own_folder
from trainer.parallel.run import trainer_of
from trainer.parallel.wrap import share, whole_state
from trainer.rollouts.data import Turn, read_turns


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        cut: rank r has the turns from the r-th of these places to the next.
        silent: gradients are not exchanged.
    """

    name: str
    mode: str
    cut: tuple[int, ...]
    overrides: dict[str, Any] = field(default_factory=dict)
    steps: int = 2
    turns: str = "turns"
    silent: bool = False

    def config(self) -> Config:
        plain: dict[str, Any] = {
            "optim__optimizer": "sgd", "optim__lr": 0.2, "optim__steps": 1,
            "optim__grad_clip": 0.0, "optim__weight_decay": 0.0, "rollout__tasks": 3,
            "rollout__rollouts": 4, "run__seed": 3,
            "optim__old_logprobs": "recompute", "optim__micro_batch_tokens": 600,
        }  # fmt: skip
        return small.small_config(parallel__mode=self.mode, **plain | self.overrides)


def learn_cases(group: Group, folder: Path, config: Config, cases: Sequence[Case]) -> None:
    """All cases one after another: starting processes costs more than they do."""
    for case in cases:
        learn(replace(group, sharded=case.mode == "fsdp"), folder, case)


def learn(group: Group, folder: Path, case: Case) -> None:
    """Learns from its part of the turns and writes the weights after every step."""
    config = case.config()
    model = load_policy(folder / "policy", dtype=torch.float64)[0]
    reference = None
    if config.objective.kl_coef > 0:
        reference = load_policy(folder / "reference", dtype=torch.float64)[0]
    turns: list[Turn] = read_turns(folder / f"{case.turns}.parquet")
    if not group.alone:
        turns = turns[case.cut[group.rank] : case.cut[group.rank + 1]]
    group.wait()
    began = time.monotonic()
    with _float64(), _exchanging(not case.silent):
        trained = share(model, group)
        learner = Learner(config, trained, small.student(config), reference, group=group)
        track: dict[str, Tensor] = {}
        for iteration in range(case.steps):
            metrics = learner.learn(iteration, turns, Phases())
            for key, value in whole_state(learner.model).items():
                track[f"{iteration}/{key}"] = value.contiguous()
    assert case.silent or metrics["optimizer_steps"] == case.steps * config.optim.steps
    shared = ("loss/", "grad/", "clip", "kl_old", "advantage")
    figures = [-1.0 if v is None else v for k, v in sorted(metrics.items()) if k.startswith(shared)]
    track["figures"] = torch.tensor(figures, dtype=torch.float64)
    track["seconds"] = torch.tensor(time.monotonic() - began)
    who = "alone" if group.alone else str(group.rank)
    save_file(track, folder / f"{case.name}-{who}.safetensors")


def train_until_one_fails(group: Group, folder: Path, config: Config, how: str) -> None:
    """A run in which rank 1 ends in the middle of an iteration, while the other goes on."""

    def fail(*_: Any) -> None:
        if how == "dies":
            os._exit(9)
        raise RuntimeError("rank 1's own failure")

    with own_folder(folder / "run", group) as place, pytest.MonkeyPatch.context() as patch:
        if group.rank == 1:
            patch.setattr(Learner, "segments", fail)
        train(own_config(config, group), place, trainer_type=trainer_of(group))


def learn_alone(folder: Path, case: Case) -> None:
    """The same in one process, with all turns."""
    learn(ALONE, folder, case)


def written(folder: Path, case: Case, who: str) -> dict[str, Tensor]:
    """Weights after every step as `step/name`, and `figures`."""
    return load_file(folder / f"{case.name}-{who}.safetensors")


@contextmanager
def _float64() -> Iterator[None]:
    """Log-probs are float32 in training: their rounding would hide errors of 1e-6."""

    def exact(model: nn.Module, batch: SegmentBatch, *, entropy: bool = False) -> TokenLogprobs:
        assert batch.place_1_L is None
        logits = model(input_ids=batch.ids_R_L, use_cache=False).logits
        before = (batch.position_B_T - 1).clamp(min=0)
        chosen = logits[batch.row_B[:, None], before].log_softmax(dim=-1)
        found = chosen.gather(-1, batch.labels_B_T[..., None]).squeeze(-1)
        return TokenLogprobs(found * batch.mask_B_T, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "token_logprobs", exact)
        patch.setattr(update, "use_packing", lambda *_: False)
        yield


@contextmanager
def _exchanging(gradients: bool) -> Iterator[None]:
    """Without it every rank keeps the gradient of its own rows."""
    with pytest.MonkeyPatch.context() as patch:
        if not gradients:
            patch.setattr(learner_module, "sum_gradients", lambda model, group: None)
            for name in ("reduce_scatter_tensor", "reduce_scatter_single"):  # old and new name
                patch.setattr(torch.distributed, name, _own_part, raising=False)
        yield


def _own_part(output: Tensor, input: Tensor, *_: Any, **__: Any) -> None:
    """What a reduce-scatter would leave here if this rank's gradient were the only one."""
    rank = torch.distributed.get_rank()
    output.copy_(input.reshape(-1).chunk(torch.distributed.get_world_size())[rank])
