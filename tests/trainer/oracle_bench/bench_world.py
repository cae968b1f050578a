"""Trained tiny policies, and roots of theirs from which an oracle played on."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_envs.streams import stream
from oracles.bench.figures import Probe
from oracles.branches import BranchRunner
from tests.trainer import small
from tests.trainer.test_webshop_training import shop_config
from trainer.banks.policy import TrainedPolicy, load_policy_of
from trainer.banks.rows import grown_roots
from trainer.branches.branching import score
from trainer.branches.records import GrownRoot
from trainer.config import Config, SeroConfig
from trainer.loop import train
from trainer.methods.protocol import PassLimits
from trainer.oracle_bench.model import _bank_row, section_of
from trainer.runs.folder import make_student
from trainer.worlds.oracles import make_oracle


def home_config(**overrides: Any) -> Config:
    """Households in which the policy wins about every second time."""
    return small.small_config(
        **{
            "env__max_steps": 10,
            "env__generated__train": 24,
            "warmstart__demonstrations": 24,
            "env__generated__receptacles": 5,
            "env__generated__objects": 4,
            "warmstart__steps": 300,
            "warmstart__lr": 2e-2,
            "warmstart__batch": 12,
            "rollout__tasks": 3,
            "rollout__rollouts": 4,
            "run__iterations": 1,
            "optim__lr": 1e-3,
            "eval__tasks": 1,
            **overrides,
        }
    )


def train_home(folder: Path, **overrides: Any) -> Path:
    train(home_config(**overrides), folder)
    return folder


def train_shop(folder: Path) -> Path:
    train(shop_config(run__iterations=1, warmstart__steps=30, eval__tasks=1), folder)
    return folder


def opened(run: Path) -> TrainedPolicy:
    return load_policy_of(run, None)


def probes_of(trained: TrainedPolicy, number: int, seed: int = 0) -> list[Probe]:
    """One state of each of the first failed episodes, and the environment's own oracle there."""
    env_id = trained.recipe.env_id
    roots: list[tuple[Any, int]] = []
    for walk in trained.walks(seed):
        if not walk.success and walk.snapshots:
            draw = stream(seed, rollout=walk.rollout, purpose="test-root")
            roots.append((walk, int(draw.integers(len(walk.snapshots)))))
        if len(roots) == number:
            break
    with BranchRunner(lambda: make_oracle("planner", None, env_id), trained.recipe) as runner:
        branches = runner.run([walk.request(t) for walk, t in roots])
    return [
        Probe(walk, t, branch, walk.rest(t))
        for (walk, t), branch in zip(roots, branches, strict=True)
    ]


def scored_roots(
    trained: TrainedPolicy, probes: Sequence[Probe], section: SeroConfig | None = None
) -> list[GrownRoot]:
    config = trained.config
    student = make_student(config, trained.model, trained.tokenizer)
    section = section_of(config, "success", 1.0) if section is None else section
    rows = [_bank_row(probe, trained, 0) for probe in probes]
    roots = grown_roots(rows, student, section, config.rollout.max_new_tokens)
    return score(roots, trained.model, PassLimits.of(config, student))


def digest(model: Any) -> str:
    """Of a model's parameters, buffers and gradients, and of which modules are in train mode."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    found.update(repr([m.training for m in model.modules()]).encode())
    found.update(repr([(p.grad is None, p.requires_grad) for p in model.parameters()]).encode())
    return found.hexdigest()


def global_state() -> str:
    """Of every global generator and setting that a measurement could move."""
    found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    numpy_state: Any = np.random.get_state()
    found.update(repr((random.getstate(), numpy_state[1].tobytes(), numpy_state[2])).encode())
    found.update(repr((torch.get_num_threads(), torch.is_grad_enabled())).encode())
    return found.hexdigest()
