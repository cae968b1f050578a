"""What a rank of a test learns, in float64 throughout, and what it writes down of it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from tests.trainer import small
from trainer.config import Config
from trainer.learning import learner as learner_module
from trainer.learning import update
from trainer.learning.learner import Learner
from trainer.loop import train
from trainer.methods.distillation import distributions
from trainer.methods.distillation.outside_teacher import OutsideTeacher
from trainer.methods.imitation import base, step_dpo
from trainer.methods.protocol import Method, Setup
from trainer.methods.registry import make_methods
from trainer.methods.skills import teacher
from trainer.metrics import Phases
from trainer.models import policy
from trainer.models.critic import Critic, ValueModel, make_critic
from trainer.models.lora import AdaptersOff, add_adapters
from trainer.models.policy import SegmentBatch, TokenLogprobs, token_hidden
from trainer.models.tiny import load_policy
from trainer.parallel import critic as critic_module
from trainer.parallel.context import ALONE, Group
from trainer.parallel.critic import SharedCritic
from trainer.parallel.ends import GatheredHead
from trainer.parallel.imitation import SharedSft
from trainer.parallel.launch import own_config, own_folder
from trainer.parallel.methods import make_shared_methods
from trainer.parallel.run import trainer_of
from trainer.parallel.wrap import share, whole_state
from trainer.rollouts.data import Turn, read_turns
from trainer.rollouts.rollout import Trajectory
from trainer.worlds.tasks import make_env

PIECE = 16


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        cut: rank r has the turns from the r-th of these places to the next.
        silent: gradients are not exchanged.
        broken: the last rank's log-probs are not numbers.
        uncounted: an auxiliary loss is divided by this rank's own counts.
        exact: in float64; else as in a run, with the head in pieces of `PIECE` tokens.
        played: turns are those of rollouts, which methods can play on from; `cut` counts groups.
    """

    name: str
    mode: str
    cut: tuple[int, ...]
    overrides: dict[str, Any] = field(default_factory=dict)
    steps: int = 2
    turns: str = "turns"
    silent: bool = False
    broken: bool = False
    uncounted: bool = False
    exact: bool = True
    played: bool = False

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
    dtype = torch.float64 if case.exact else torch.float32
    model = load_policy(folder / "policy", dtype=dtype)[0]
    reference: nn.Module | None = None
    if config.lora.rank:
        model = add_adapters(model, config.lora).to(dtype)
        reference = AdaptersOff(model) if config.objective.kl_coef > 0 else None
    elif config.objective.kl_coef > 0:
        reference = load_policy(folder / "reference", dtype=torch.float64)[0]
    turns, trajectories = _rollouts(group, folder, case)
    group.wait()
    began = time.monotonic()
    with (
        _float64(case.broken and group.rank == group.world - 1) if case.exact else _pieces(),
        _exchanging(not case.silent),
        _counting(not case.uncounted),
    ):
        critic = _critic(config, model, group)
        methods = _methods(config, deepcopy(model), group)
        trained = share(model, group)
        student = small.student(config)
        learner = Learner(config, trained, student, reference, methods, critic, group)
        track: dict[str, Tensor] = {}
        for iteration in range(case.steps):
            metrics = learner.learn(iteration, turns, Phases(), trajectories)
            for key, value in whole_state(learner.model).items():
                track[f"{iteration}/{key}"] = value.contiguous()
            if critic is not None:
                for key, value in whole_state(critic.model).items():
                    track[f"critic/{iteration}/{key}"] = value.contiguous()
    any_number = case.silent or case.broken
    assert any_number or metrics["optimizer_steps"] == case.steps * config.optim.steps
    counters = [metrics["optimizer_steps"], metrics["nonfinite_steps"]]
    track["counters"] = torch.tensor(counters, dtype=torch.float64)
    shared = ("loss/", "grad/", "clip", "kl_old", "advantage", "critic/")
    figures = [-1.0 if v is None else v for k, v in sorted(metrics.items()) if k.startswith(shared)]
    track["figures"] = torch.tensor(figures, dtype=torch.float64)
    track["seconds"] = torch.tensor(time.monotonic() - began)
    who = "alone" if group.alone else str(group.rank)
    save_file(track, folder / f"{case.name}-{who}.safetensors")


def _rollouts(group: Group, folder: Path, case: Case) -> tuple[list[Turn], list[Trajectory]]:
    """This rank's part of them."""
    if not case.played:
        turns: list[Turn] = read_turns(folder / f"{case.turns}.parquet")
        if not group.alone:
            turns = turns[case.cut[group.rank] : case.cut[group.rank + 1]]
        return turns, []
    plain = Case("", "ddp", (), {"rollout__rollouts": 2}).config()
    played = small.rollouts(plain, small.half_expert(0.8))
    if not group.alone:
        uids = list(dict.fromkeys(t.episode.uid for t in played))
        own = uids[case.cut[group.rank] : case.cut[group.rank + 1]]
        played = [t for t in played if t.episode.uid in own]
    return [turn for t in played for turn in t.turns], played


def _methods(config: Config, model: nn.Module, group: Group) -> list[Method]:
    def new_env() -> Any:
        return make_env(config.env, small.games(), "train")

    setup = Setup(config, small.student(config), model, new_env)
    methods = make_methods(setup) if group.alone else make_shared_methods(setup, group)
    for method in methods:
        outside = getattr(method, "teacher", None)
        if isinstance(outside, OutsideTeacher):
            outside.of(model).double()
    return methods


def _critic(config: Config, model: nn.Module, group: Group) -> Critic | None:
    if not config.objective.has_critic:
        return None
    critic = make_critic(config, model)
    critic.model.to(next(model.parameters()).dtype)
    return critic if group.alone else SharedCritic(config, critic.model, group)


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
def _float64(broken: bool = False) -> Iterator[None]:
    """Log-probs are float32 in training: their rounding would hide errors of 1e-6."""

    def exact(model: nn.Module, batch: SegmentBatch, *, entropy: bool = False) -> TokenLogprobs:
        found = token_hidden(model, batch)
        assert found is not None
        hidden, head = found
        mask = batch.mask_B_T
        logprobs = torch.cat([head(part).log_softmax(dim=-1) for part in hidden.split(50)])
        chosen = logprobs.gather(-1, batch.labels_B_T[mask][:, None])[:, 0]
        chosen = chosen * math.nan if broken else chosen
        return TokenLogprobs(
            torch.zeros_like(mask, dtype=hidden.dtype).masked_scatter(mask, chosen), None
        )

    def exact_distributions(model: nn.Module, batch: SegmentBatch) -> Tensor:
        found = token_hidden(model, batch)
        assert found is not None
        return found[1](found[0]).log_softmax(dim=-1)

    def exact_norm(norm: Qwen2RMSNorm, hidden: Tensor) -> Tensor:
        scale = torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + norm.variance_epsilon)
        found: Tensor = norm.weight * hidden * scale
        return found

    def exact_values(critic: ValueModel, batch: SegmentBatch) -> Tensor:
        found = token_hidden(critic.backbone, batch)
        assert found is not None
        value = critic.head(found[0])[:, 0]
        return torch.zeros_like(batch.mask_B_T, dtype=value.dtype).masked_scatter(
            batch.mask_B_T, value
        )

    with pytest.MonkeyPatch.context() as patch:
        for module in (update, base, step_dpo, teacher):
            patch.setattr(module, "token_logprobs", exact)
        patch.setattr(distributions, "token_distributions", exact_distributions)
        patch.setattr(ValueModel, "forward", exact_values)
        patch.setattr(Qwen2RMSNorm, "forward", exact_norm)
        # It rounds elsewhere than the model's own forward, which shards have to take.
        patch.setattr(policy, "lean_of", lambda _: None)
        patch.setattr(update, "use_sharing", lambda *_: False)
        patch.setattr(update, "use_packing", lambda *_: False)
        yield


@contextmanager
def _pieces() -> Iterator[None]:
    """The head of shards never sees more tokens than `PIECE`; that of one process likewise."""
    call = GatheredHead.__call__

    def few(head: GatheredHead, hidden: Tensor) -> Tensor:
        assert hidden.shape[0] <= PIECE
        return call(head, hidden)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "_CHUNK_LOGITS", PIECE * len(small.tokenizer()))
        patch.setattr(GatheredHead, "__call__", few)
        yield


@contextmanager
def _exchanging(gradients: bool) -> Iterator[None]:
    """Without it every rank keeps the gradient of its own rows."""
    with pytest.MonkeyPatch.context() as patch:
        if not gradients:
            for module in (learner_module, critic_module):
                patch.setattr(module, "sum_gradients", lambda model, group: None)
            for name in ("reduce_scatter_tensor", "reduce_scatter_single"):  # old and new name
                patch.setattr(torch.distributed, name, _own_part, raising=False)
        yield


@contextmanager
def _counting(others: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not others:
            patch.setattr(SharedSft, "count", lambda self, step: None)
        yield


def _own_part(output: Tensor, input: Tensor, *_: Any, **__: Any) -> None:
    """What a reduce-scatter would leave here if this rank's gradient were the only one."""
    rank = torch.distributed.get_rank()
    output.copy_(input.reshape(-1).chunk(torch.distributed.get_world_size())[rank])
