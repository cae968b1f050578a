"""CHORD: how the mix moves, and what an expert token weighs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.imitation_support import (
    LIMITS,
    config_of,
    gradient,
    learn,
    logprob,
    mixed,
    prepared,
    turns_of,
    whole,
)
from trainer.config import ConfigError
from trainer.learning.learner import Learner
from trainer.learning.update import (
    AuxiliaryRow,
    LossStats,
    auxiliary_backward,
    base_backward,
    score_segments,
)
from trainer.methods.protocol import PassLimits, Step


def test_the_share_of_the_expert_falls_from_0_9_to_0_05() -> None:
    config = config_of("chord")
    method = prepared(config, mixed(config))
    assert method.mu(0) == 0.9
    assert method.mu(100) == pytest.approx((0.9 + 0.05) / 2)
    assert method.mu(200) == method.mu(10**6) == pytest.approx(0.05)
    assert method.base_scale(0) == pytest.approx(0.1)
    assert method.metrics()["chord/mu"] == 0.9
    other = config_of(
        "chord",
        auxiliary__chord__mu_warmup=2,
        auxiliary__chord__mu_decay=4,
        auxiliary__chord__mu_peak=0.6,
        auxiliary__chord__mu_valley=0.2,
        auxiliary__chord__mu_shape="linear",
        auxiliary__chord__weight=0.5,
    )
    method = prepared(other, mixed(other))
    found = [method.mu(i) for i in range(8)]
    assert found == pytest.approx([0.0, 0.3, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2])
    assert method.base_scale(2) == pytest.approx(1 - 0.5 * 0.6)


@pytest.mark.parametrize("weights", ["phi", "none"])
def test_the_loss_is_a_weighted_mean_over_the_steps_expert_tokens(weights: str) -> None:
    config = config_of("chord", auxiliary__chord__token_weights=weights)
    trajectories, model = mixed(config), small.model()
    method = prepared(config, trajectories, model)
    assert method.part(whole(0)) == sorted(method.part(whole(0)), key=list(method.segments).index)
    logp = torch.cat(score_segments(model, method.segments, LIMITS)).double()
    p = logp.exp()
    each = -logp * (p * (1 - p) if weights == "phi" else 1.0)
    found = method.backward(model, whole(0), PassLimits(300, 0))
    assert found == pytest.approx(0.9 * float(each.mean()), rel=1e-5)
    half = Step(0, 0, 0, 2, ())
    part = method.part(half)
    assert abs(2 * len(part) - len(method.segments)) <= 1
    logp = torch.cat(score_segments(model, part, LIMITS)).double()
    each = -logp * (logp.exp() * (1 - logp.exp()) if weights == "phi" else 1.0)
    assert method.backward(model, half, LIMITS) == pytest.approx(0.9 * float(each.mean()), rel=1e-5)


def test_both_losses_are_mixed() -> None:
    """The gradient is (1 - mu) times that of the base plus mu times that of the expert's loss."""
    config = config_of(
        "chord", auxiliary__chord__mu_peak=0.25, auxiliary__chord__mu_valley=0.25,
        auxiliary__chord__token_weights="none",
    )  # fmt: skip
    trajectories, model = mixed(config), small.model()
    turns = turns_of(trajectories)
    method = prepared(config, trajectories, model)
    learner = Learner(config, model, small.student(config), methods=[method])
    segments = learner.segments(turns)
    advantages = learner.advantages(turns, segments).tokens
    step = whole(len(turns))
    found = []
    for scale in (learner.base_step(step, segments, advantages, None).scale, 1.0):
        base = learner.base_step(step, segments, advantages, None)
        assert base.scale == 0.75
        model.zero_grad()
        base_backward(model, replace(base, scale=scale), config.objective, LIMITS, LossStats())
        found.append(gradient(model))
    torch.testing.assert_close(found[0], 0.75 * found[1], rtol=1e-5, atol=1e-9)
    model.zero_grad()
    method.backward(model, step, LIMITS)
    mixed_in = gradient(model)
    model.zero_grad()
    logp = score_segments(model, method.segments, LIMITS)
    tokens = sum(row.numel() for row in logp)
    auxiliary_backward(model, [AuxiliaryRow(s, 1 / tokens) for s in method.segments], 0.25, LIMITS)
    torch.testing.assert_close(mixed_in, gradient(model), rtol=1e-4, atol=1e-7)


def test_without_an_expert_row_the_base_keeps_its_force() -> None:
    config = config_of("chord")
    model = small.model()
    method = prepared(config, [], model)
    assert method.base_scale(0) == 1.0
    assert not method.has_pass(whole(0))
    assert method.metrics()["chord/mu"] is None


def test_at_mu_0_there_is_no_pass() -> None:
    config = config_of("chord", auxiliary__chord__mu_warmup=5)
    method = prepared(config, mixed(config))
    assert method.base_scale(0) == 1.0
    assert not method.has_pass(whole(0))
    assert method.has_pass(whole(0, iteration=1))


def test_expert_rows_become_likelier() -> None:
    config = config_of("chord", auxiliary__chord__token_weights="none")
    trajectories, model = mixed(config), small.model()
    segments = prepared(config, trajectories, model).segments
    before = logprob(model, segments)
    learn(config, model, trajectories, iterations=2)
    assert logprob(model, segments) > before + 1.0


def test_with_phi_no_token_pulls_hard() -> None:
    """Expert tokens that the policy finds absurd teach next to nothing."""
    pulls = []
    for weights in ("phi", "none"):
        config = config_of("chord", auxiliary__chord__token_weights=weights)
        model = small.model()
        method = prepared(config, mixed(config), model)
        model.zero_grad()
        method.backward(model, whole(0), LIMITS)
        pulls.append(float(gradient(model).norm()))
    assert 0 < pulls[0] < 0.5 * pulls[1]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weight", -0.5, r"auxiliary\.chord\.weight=-0\.5"),
        ("weight", 1.5, r"auxiliary\.chord\.weight=1\.5 must lie in \[0, 1\]"),
        ("mu_valley", 0.95, r"auxiliary\.chord\.mu_valley=0\.95.*mu_peak=0\.9"),
        ("mu_peak", 1.5, r"auxiliary\.chord\.mu_peak=1\.5"),
        ("mu_valley", -0.1, r"auxiliary\.chord\.mu_valley=-0\.1"),
        ("mu_warmup", -1, r"auxiliary\.chord\.mu_warmup=-1"),
        ("mu_decay", -1, r"auxiliary\.chord\.mu_decay=-1"),
        ("oracle_budget_s", 0.0, r"auxiliary\.chord\.oracle_budget_s=0"),
    ],
)
def test_fields_are_checked(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("chord", **{f"auxiliary__chord__{field}": value})
