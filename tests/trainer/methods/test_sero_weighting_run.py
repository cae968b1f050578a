"""SERO's weights and schedules in a run, and what they may not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.sero_support import (
    brancher_of,
    grown,
    lookers,
    sero_config,
)
from trainer.auxiliary.sero import Branch, sero_loss
from trainer.branches.branching import score, step_rows
from trainer.branches.records import GrownRoot, branch_metrics, depth_at, weighting
from trainer.config import Config, ConfigError, SeroConfig
from trainer.learning.learner import Learner
from trainer.learning.update import score_segments
from trainer.methods.protocol import PassLimits, Rollouts, Setup, Step
from trainer.methods.sero import Sero
from trainer.metrics import Phases

# -------------------------------------------------------------- weights in a run


def _scored(config: Config, model: Any) -> list[GrownRoot]:
    return brancher_of(config).branch(0, lookers(config), model)


def _method(config: Config, model: Any, roots: Sequence[GrownRoot]) -> Sero:
    method = Sero(Setup(config, small.student(config), model), config.auxiliary.sero)
    method.prepare(Rollouts(0, (), ()), model)
    method.roots = roots
    return method


def _step(iteration: int = 0, epoch: int = 0) -> Step:
    return Step(iteration, epoch, 0, 1, ())


def _by_root(method: Sero, step: Step) -> list[list[int]]:
    """Which rows of each root a step trains."""
    kept = [row.segment for row in method.rows(step)]
    return [[k for k, row in enumerate(root.rows) if row in kept] for root in method.roots]


def test_a_growing_depth_trains_more_and_more_of_a_branch() -> None:
    model = small.model()
    config = sero_config(depth_iterations=10, w_min=0.0, rule="flat")
    roots = _scored(config, model)
    sizes = [len(root.rows) for root in roots]
    assert min(sizes) >= 3
    for direction in ("forward", "backward"):
        one = config.replace(**{"auxiliary.sero.depth_direction": direction})
        method = _method(one, model, roots)
        # k = 1 + floor(11 * iteration / 10), up to the 12 steps of the env
        for iteration, depth in ((0, 1), (1, 2), (9, 10), (10, 12), (99, 12)):
            assert depth_at(one.auxiliary.sero, 12, iteration) == depth
            expected = [
                list(range(min(depth, n)))
                if direction == "forward"
                else list(range(max(n - depth, 0), n))
                for n in sizes
            ]
            assert _by_root(method, _step(iteration)) == expected
    capped = config.replace(**{"auxiliary.sero.max_depth": 4, "auxiliary.sero.depth_start": 2})
    assert [depth_at(capped.auxiliary.sero, 12, i) for i in (0, 5, 10)] == [2, 3, 4]
    assert depth_at(sero_config().auxiliary.sero, 12, 0) is None
    metrics = branch_metrics(roots, config.auxiliary.sero, 2, 2)
    assert (metrics["sero/depth"], metrics["sero/rows"]) == (2, 4)
    assert metrics["sero/effective_depth"] == 2.0


def test_a_depth_beyond_the_longest_branch_is_refused_at_once() -> None:
    for switches in ({"depth_start": 13}, {"depth_start": 4, "max_depth": 3}):
        config = sero_config(depth_iterations=2, **switches)
        with pytest.raises(ConfigError, match=r"depth_start=\d+ exceeds the longest branch"):
            brancher_of(config)
    with pytest.raises(ConfigError, match="depth_start=99 has no effect"):
        sero_config(depth_start=99)  # without a schedule


def test_a_matched_decay_gives_rule_depth_the_mass_of_sero() -> None:
    model = small.model(std=0.05)
    config = sero_config(rule="depth", delta="matched", w_min=0.0)
    roots = _scored(config, model)
    # Likelihoods that are neither 0 nor 1.
    roots = [replace(root, logz=(-0.4,) * len(root.rows)) for root in roots]
    sero = [sum(math.exp(-0.4 * k) for k in range(len(root.rows))) for root in roots]
    scheme = weighting(roots, config.auxiliary.sero)
    assert scheme.delta == pytest.approx(math.exp(-0.4), rel=1e-9)
    assert sum(sum(scheme.weights(root.logz)) for root in roots) == pytest.approx(sum(sero))
    # Matched over the iteration, not over a step's own roots.
    roots[1] = replace(roots[1], logz=(-2.0,) * len(roots[1].rows))
    delta = weighting(roots, config.auxiliary.sero).delta
    method = _method(config, model, roots)
    for index in (0, 1):
        rows = method.rows(Step(0, 0, index, 2, ()))
        masses = [row.coefficient * row.segment.trained for row in rows]
        assert masses == pytest.approx([delta**k for k in range(len(rows))])
    closed = [replace(root, gate=0.0) for root in roots]
    assert weighting(closed, config.auxiliary.sero).delta == 0.0
    assert branch_metrics(roots, config.auxiliary.sero, 2)["sero/delta"] == delta
    assert branch_metrics(roots, SeroConfig(), 2)["sero/delta"] is None


@pytest.mark.parametrize(
    ("switches", "masses"),
    [
        ({}, [1.0, 0.5, 0.25]),
        ({"rule": "flat"}, [1.0, 1.0, 1.0]),
        ({"rule": "root"}, [1.0]),
        ({"rule": "depth", "delta": 0.75}, [1.0, 0.75, 0.5625]),
        ({"rule": "depth", "decay": "harmonic"}, [1.0, 1 / 2, 1 / 3]),
        ({"rule": "depth", "decay": "linear"}, [1.0, 2 / 3, 1 / 3]),
        ({"branch_norm": "mass"}, [1 / 1.75, 0.5 / 1.75, 0.25 / 1.75]),
        ({"rule": "flat", "branch_norm": "mass"}, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_rules_share_roots_gates_and_rows(switches: dict[str, Any], masses: list[float]) -> None:
    """Three states with z = 1/2 each; the mean over the tokens is taken out."""
    config = sero_config(w_min=0.0)
    root = grown(config, lookers(config)[0])
    rows = root.rows[:3], root.z_rows[:3]
    root = replace(root, rows=rows[0], z_rows=rows[1], logz=(math.log(0.5),) * 3)
    found = step_rows([root], replace(config.auxiliary.sero, **switches))  # type: ignore[type-var]
    assert [row.segment for row in found] == list(root.rows[: len(masses)])
    assert [row.coefficient * row.segment.trained for row in found] == pytest.approx(masses)


def test_normalisers_count_selected_valid_and_open_roots() -> None:
    config = sero_config(w_min=0.0)
    root = grown(config, lookers(config)[0])
    root = replace(root, rows=root.rows[:1], z_rows=root.z_rows[:1], logz=(0.0,))
    useless = replace(root, gate=0.0, rows=(), z_rows=(), logz=())
    roots = [root, useless, replace(useless, valid=False), replace(useless, valid=False)]
    for name, count in (("selected", 4), ("valid", 2), ("active", 1)):
        section = replace(config.auxiliary.sero, normaliser=name)  # type: ignore[type-var]
        (row,) = step_rows(roots, section)
        assert row.coefficient * row.segment.trained == pytest.approx(1 / count), name


def test_z_is_measured_again_in_every_epoch_if_asked_for() -> None:
    model = small.model(std=0.05)
    for every in ("iteration", "epoch"):
        config = sero_config(z_every=every, w_min=0.0)
        trained = small.twin(model)
        roots = _scored(config, trained)
        method = _method(config, trained, roots)
        before = [row.coefficient for row in method.rows(_step())]
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.mul_(2.0)
        after = sorted(row.coefficient for row in method.rows(_step(epoch=1)))
        limits = PassLimits(4096, small.student(config).pad_id)
        fresh = step_rows(score(roots, trained, limits), config.auxiliary.sero)
        expected = before if every == "iteration" else [row.coefficient for row in fresh]
        assert after == pytest.approx(sorted(expected), rel=1e-6)
        assert sorted(before) != pytest.approx(sorted(row.coefficient for row in fresh), rel=1e-3)
        assert method.roots is roots, "what is logged is the z of the rollouts' policy"


def _definition(roots: Sequence[GrownRoot], model: Any, config: Config) -> float:
    """The objective written branch by branch in float64, from z rows and loss rows."""
    limits = PassLimits(4096, 0)
    branches = []
    for root in roots:
        students = [v.double() for v in score_segments(model, root.rows, limits)]
        branches.append(
            Branch(root.valid, root.G_pi, root.G_O, behaviour=students, student=students)
        )
    section = config.auxiliary.sero
    assert section is not None
    result = sero_loss(branches, rule="flat", token_weights=section.token_weights)
    return float(result.loss.detach())


@pytest.mark.parametrize("weights", ["none", "chord"])
def test_token_weights_enter_the_trained_loss_and_its_gradient(weights: str) -> None:
    config = sero_config(rule="flat", w_min=0.0, token_weights=weights)
    model = small.model(std=0.05)
    roots = _scored(config, model)
    method = _method(config, model, roots)
    gradients = []
    for size in (10**9, 300):
        model.zero_grad()
        total = method.backward(model, _step(), PassLimits(size, 0))
        assert total == pytest.approx(_definition(roots, model, config), rel=1e-5)
        gradients.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    # The last bias-free direction by differences of the plain NLL, weights held fixed.
    rows = method.rows(_step())
    limits = PassLimits(4096, 0)
    logps = score_segments(model, [row.segment for row in rows], limits)
    fixed = [lp.exp() * (1 - lp.exp()) if weights == "chord" else torch.ones_like(lp)
             for lp in logps]  # fmt: skip
    direction = [torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
                 for i, p in enumerate(model.parameters())]  # fmt: skip
    values = []
    for sign in (1.0, -1.0):
        moved = small.twin(model)
        with torch.no_grad():
            for p, d in zip(moved.parameters(), direction, strict=True):
                p.add_(sign * 1e-4 * d)
        again = score_segments(moved, [row.segment for row in rows], limits)
        values.append(
            sum(
                -row.coefficient * float((f.double() * lp.double()).sum())
                for row, f, lp in zip(rows, fixed, again, strict=True)
            )
        )
    slope = sum(
        float((p.grad.double() * d.double()).sum())
        for p, d in zip(model.parameters(), direction, strict=True)
    )
    assert method.weight * (values[0] - values[1]) / 2e-4 == pytest.approx(slope, rel=2e-2)


# ---------------------------------------------------------------- in the learner

SWITCHED: list[dict[str, Any]] = [
    {"think_mode": "none", "loss_tokens": "all", "z_tokens": "all"},
    {"think_mode": "template", "token_weights": "chord"},
    {"depth_iterations": 3, "depth_direction": "backward", "rule": "depth", "delta": "matched"},
    {"z_every": "epoch", "target": "reward", "gamma": 0.9, "scheme": "first"},
]


def _learned(config: Config, model: Any, turns: Any, roots: Sequence[GrownRoot]) -> dict[str, Any]:
    student = small.student(config)
    methods = []
    if config.auxiliary.sero is not None:
        methods = [Sero(Setup(config, student, model), config.auxiliary.sero)]
        methods[0].roots = roots
    return Learner(config, model, student, None, methods).learn(0, turns, Phases())


@pytest.mark.parametrize("switches", SWITCHED, ids=lambda s: next(iter(s.values())))
def test_with_weight_zero_no_switch_moves_the_base_and_with_weight_all_teach(
    switches: dict[str, Any],
) -> None:
    config = sero_config(**switches, w_min=0.0).replace(
        **{"optim.epochs": 2, "optim.steps": 1, "objective.kl_coef": 0.0}
    )
    trajectories = small.rollouts(config, small.half_expert(0.8))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    model = small.model(std=0.05)
    roots = brancher_of(config).branch(0, trajectories, model)
    assert any(root.gate > 0 for root in roots)
    base, zero = small.twin(model), small.twin(model)
    _learned(config.replace(**{"auxiliary.sero": None}), base, turns, [])
    _learned(config.replace(**{"auxiliary.sero.weight": 0.0}), zero, turns, roots)
    assert not small.same(small.weights(model), small.weights(base))
    assert small.same(small.weights(base), small.weights(zero))
    # Alone and strong, it makes what it trains more likely.
    alone = config.replace(
        **{"objective.name": "none", "auxiliary.sero.weight": 1.0, "optim.lr": 1e-3}
    )
    taught = small.twin(model)
    metrics = _learned(alone, taught, turns, roots)
    assert metrics["loss/sero"] > 0
    limits = PassLimits(4096, 0)
    section = config.auxiliary.sero
    assert section is not None
    depth = depth_at(section, 12, 0)
    rows = step_rows(roots, section, weighting(roots, section, depth))
    segments = [row.segment for row in rows]
    gain = [
        row.coefficient * float((after - before).double().sum())
        for row, before, after in zip(
            rows,
            score_segments(model, segments, limits),
            score_segments(taught, segments, limits),
            strict=True,
        )
    ]
    assert sum(gain) > 0
