"""The vectorised advantages agree with plain loops on random batches."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from benchmarks.reference_advantages import gigpo_loop, grpo_loop, hgpo_loop
from trainer.objectives import grpo_advantages
from trainer.objectives.anchors import anchor_ids
from trainer.objectives.gigpo import gigpo_advantages
from trainer.objectives.hgpo import hgpo_advantages

FLAVORS = ["paper", "code", "code_traj"]
MODES = ["mean_std_norm", "mean_norm"]


def batch(seed, shuffled=True):
    """Groups of one to five trajectories of one to nine turns on a small graph of states."""
    rng = random.Random(seed)
    rows, tid = [], 0
    for uid in range(4):
        for _ in range(rng.randint(1, 5)):
            for t in range(rng.randint(1, 9)):
                reward = rng.choice([0.0, 0.0, 0.0, 0.5, 1.0, 10.0, rng.random()])
                rows.append((reward, rng.random() < 0.8, uid, tid, t, f"state {rng.randrange(4)}"))
            tid += 1
    if shuffled:
        rng.shuffle(rows)
    reward, valid, uid, tids, t, keys = zip(*rows, strict=True)
    uid_M = tensor(uid)
    return (
        tensor(reward, dtype=torch.float64),
        tensor(valid),
        uid_M,
        tensor(tids),
        tensor(t) if shuffled else None,
        anchor_ids(keys, uid_M),
    )


def agree(got, want):
    assert want.dtype == torch.float64
    assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert want.abs().max() > 0.01


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("seed", range(4))
def test_grpo(seed, flavor):
    rows = batch(seed, shuffled=seed > 0)[:5]
    for use_std, ddof in product([True, False], [0, 1]):
        options = {"use_std": use_std, "ddof": ddof, "flavor": flavor, "penalty": 0.3}
        agree(grpo_advantages(*rows, **options), grpo_loop(*rows, **options))
    if flavor != "paper":
        raw = {"flavor": flavor, "singleton": "raw"}
        agree(grpo_advantages(*rows, **raw), grpo_loop(*rows, **raw))
    agree(grpo_advantages(*rows), grpo_loop(*rows))


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("seed", range(4))
def test_gigpo(seed, flavor):
    rows = batch(seed, shuffled=seed > 0)
    for mode, gamma, omega in product(MODES, [0.0, 0.7, 1.0], [0.5, 1.0]):
        options = {"mode": mode, "gamma": gamma, "omega": omega, "flavor": flavor}
        agree(gigpo_advantages(*rows, **options), gigpo_loop(*rows, **options))
    if flavor != "paper":
        raw = {"flavor": flavor, "singleton": "raw", "penalty": 0.3, "eps": 0.01}
        agree(gigpo_advantages(*rows, **raw), gigpo_loop(*rows, **raw))
    agree(gigpo_advantages(*rows), gigpo_loop(*rows))


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("seed", range(4))
def test_hgpo(seed, flavor):
    rows = batch(seed, shuffled=seed > 0)
    for mode, depth, base_group in product(MODES, [0, 2, 5], [False, True]):
        options = {"mode": mode, "depth": depth, "base_group": base_group, "flavor": flavor}
        agree(hgpo_advantages(*rows, **options), hgpo_loop(*rows, **options))
    other = {"alpha": 1.7, "gamma": 0.6, "eps": 0.01, "penalty": 0.3, "flavor": flavor}
    agree(hgpo_advantages(*rows, **other), hgpo_loop(*rows, **other))
    agree(hgpo_advantages(*rows), hgpo_loop(*rows))
