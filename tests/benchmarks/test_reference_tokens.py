"""The estimators with one number a token agree with plain loops on random batches."""

from __future__ import annotations

import random
import sys
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from benchmarks.reference_tokens import (
    ppo_trajectory_loop,
    ppo_turnwise_loop,
    reinforce_pp_baseline_loop,
    reinforce_pp_loop,
    rloo_loop,
    turn_gae_loop,
)
from tests.support import ROOT
from trainer.config import ObjectiveConfig
from trainer.objectives.ppo import ppo_trajectory, ppo_turnwise, turn_gae
from trainer.objectives.reinforce_pp import (
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
)
from trainer.objectives.rloo import rloo_advantages

SEEDS = range(4)


def batch(seed: int) -> dict[str, Any]:
    """Shuffled turns; every reply has a token, and masks have holes."""
    rng = random.Random(seed)
    rows = [
        (rng.choice([0.0, 0.0, 1.0, 10.0, rng.random()]), rng.random() < 0.7, uid, 10 * uid + i, t)
        for uid in range(4)
        for i in range(rng.randint(1, 4))
        for t in range(rng.randint(1, 6))
    ]
    rng.shuffle(rows)
    reward, valid, uid, tid, t = zip(*rows, strict=True)
    mask = [[k == 2 or rng.random() < 0.6 for k in range(7)] for _ in rows]
    value = torch.randn(len(rows), 7, generator=torch.Generator().manual_seed(seed)).double()
    return {
        "rows": (tensor(reward).double(), tensor(valid), tensor(uid), tensor(tid), tensor(t)),
        "mask": mask,
        "value": value,
    }


def agree(got: torch.Tensor, want: object) -> None:
    expected = torch.tensor(want, dtype=torch.float64)
    assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert expected.abs().max() > 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_rloo(seed: int) -> None:
    rows = batch(seed)["rows"]
    agree(rloo_advantages(*rows), rloo_loop(*rows))
    agree(rloo_advantages(*rows, penalty=0.7), rloo_loop(*rows, penalty=0.7))


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_pp(seed: int) -> None:
    b = batch(seed)
    reward, valid, uid, tid, t = b["rows"]
    for options in ({}, {"gamma": 0.8, "penalty": 0.5}):
        got, _ = reinforce_pp_advantages(reward, valid, tid, tensor(b["mask"]), **options)
        agree(got, reinforce_pp_loop(reward, valid, tid, b["mask"], **options))
        tokens = tensor(b["mask"]).sum(-1) - 1  # some replies without a token
        own = {k: v for k, v in options.items() if k == "penalty"}
        words = (reward, valid, uid, tid, tokens, t)
        agree(
            reinforce_pp_baseline_advantages(*words, **own),
            reinforce_pp_baseline_loop(*words, **own),
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_critic(seed: int) -> None:
    b = batch(seed)
    reward, valid, _, tid, t = b["rows"]
    value, mask = b["value"], tensor(b["mask"])
    lists = value.tolist(), b["mask"]
    for options in ({}, {"gamma": 0.7, "lam": 0.6, "penalty": 0.5}):
        got = ppo_turnwise(reward, valid, tid, value, mask, **options).advantages
        agree(got, ppo_turnwise_loop(reward, valid, tid, *lists, **options))
        got = turn_gae(reward, valid, tid, value[:, 0], t, **options).advantages
        agree(got, turn_gae_loop(reward, valid, tid, value[:, 0].tolist(), t, **options))
        for inner in ({}, {"token_gamma": 0.9, "token_lam": 0.8}):
            got = ppo_trajectory(reward, valid, tid, value, mask, t, **options, **inner).advantages
            agree(got, ppo_trajectory_loop(reward, valid, tid, *lists, t, **options, **inner))


def test_every_base_objective_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    from benchmarks import advantages

    names = set(get_args(get_type_hints(ObjectiveConfig)["name"])) - {"none"}
    for name, size in {"GROUPS": 5, "TURNS": 4, "STATES": 8}.items():
        monkeypatch.setattr(advantages, name, size)
    found = advantages.cases(advantages.batch())
    assert {name for name, case in found.items() if case.bound} == names
    assert all(case.loop is not None for case in found.values() if case.bound)
    for name, case in found.items():
        figures = advantages.measure(case)
        assert figures["difference"] is None or figures["difference"] < 1e-9, name
