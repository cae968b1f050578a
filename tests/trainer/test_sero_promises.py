"""What SERO must not touch, and what it must be exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from trainer.auxiliary.sero import Branch, sero_loss
from trainer.branches.branching import Brancher, step_rows
from trainer.branches.records import GrownRoot
from trainer.config import Config
from trainer.learning.learner import Learner
from trainer.learning.update import (
    BaseStep,
    LossStats,
    auxiliary_backward,
    base_backward,
    score_segments,
)
from trainer.methods.format_only import FormatOnly
from trainer.methods.protocol import PassLimits, Setup
from trainer.methods.registry import make_methods
from trainer.methods.sero import Sero
from trainer.metrics import Phases
from trainer.models.policy import collate, token_logprobs
from trainer.rollouts.data import Turn, read_turns, write_turns
from trainer.worlds.tasks import make_env


def _config(**overrides: Any) -> Config:
    return small.small_config(
        **{"env__max_steps": 8, "auxiliary__sero": {}, "rollout__rollouts": 4, **overrides}
    )


def _collected(config: Config) -> tuple[list[Turn], list[GrownRoot], Any]:
    """Turns with mixed outcomes, scored roots, and the policy that scored them."""
    trajectories = small.rollouts(config, small.half_expert(0.8))
    model = small.model()
    env = make_env(config.env, small.games(), "train")
    section = config.auxiliary.sero
    assert section is not None
    brancher = Brancher(config, section, env, small.student(config))
    roots = brancher.branch(0, trajectories, model)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert len({turn.success for turn in turns if turn.done}) == 2, "mixed outcomes are needed"
    assert any(root.gate > 0 for root in roots)
    return turns, roots, model


def _learn(config: Config, model: Any, turns: list[Turn], roots: list[GrownRoot]) -> dict[str, Any]:
    return _learner(config, model, roots).learn(0, turns, Phases())


def _learner(config: Config, model: Any, roots: list[GrownRoot], reference: Any = None) -> Learner:
    """A learner whose SERO has grown these roots already."""
    methods = make_methods(Setup(config, small.student(config), model))
    for method in methods:
        if isinstance(method, Sero):
            method.roots = roots
    return Learner(config, model, small.student(config), reference, methods)


@pytest.mark.parametrize("case", ["weight_zero", "no_roots", "gates_closed"])
def test_without_an_auxiliary_term_parameters_are_bit_identical_to_the_base(case: str) -> None:
    config = _config(auxiliary__sero__weight=0.0 if case == "weight_zero" else 0.3)
    turns, roots, model = _collected(config)
    if case == "no_roots":
        roots = []
    if case == "gates_closed":
        roots = [replace(root, gate=0.0, rows=(), z_rows=(), logz=()) for root in roots]
    base, with_sero = small.twin(model), small.twin(model)
    start = small.weights(model)
    _learn(_config(auxiliary__sero=None), base, turns, [])
    _learn(config, with_sero, turns, roots)
    assert not small.same(start, small.weights(base)), "the base step must move the policy"
    assert small.same(small.weights(base), small.weights(with_sero))


def test_with_an_auxiliary_term_parameters_differ() -> None:
    config = _config()
    turns, roots, model = _collected(config)
    base, with_sero = small.twin(model), small.twin(model)
    _learn(_config(auxiliary__sero=None), base, turns, [])
    metrics = _learn(config, with_sero, turns, roots)
    assert not small.same(small.weights(base), small.weights(with_sero))
    assert metrics["grad/aux_norm"] > 0
    assert metrics["loss/auxiliary"] > 0


def test_measuring_the_norms_apart_changes_no_parameter() -> None:
    config = _config()
    turns, roots, model = _collected(config)
    apart, together = small.twin(model), small.twin(model)
    measured = _learn(config, apart, turns, roots)
    blind = _learn(_config(auxiliary__measure_gradients=False), together, turns, roots)
    for name, value in small.weights(apart).items():
        torch.testing.assert_close(value, small.weights(together)[name], rtol=1e-4, atol=1e-5)
    assert measured["grad/aux_over_base"] > 0
    assert blind["grad/aux_over_base"] is None
    assert blind["grad/base_norm"] is None
    assert blind["grad/norm"] == pytest.approx(measured["grad/norm"], rel=1e-3)


def test_base_advantages_ratios_and_kl_do_not_know_of_sero() -> None:
    """Same batch, same parameters: everything but the gradient's sum is equal, bit for bit."""
    on = _config(objective__kl_coef=0.1, optim__steps=1, optim__old_logprobs="recompute")
    off = on.replace(**{"auxiliary.sero": None})
    turns, roots, model = _collected(on)
    reference = small.model(seed=1)
    seen = []
    for config, used in ((on, roots), (off, [])):
        learner = _learner(config, small.twin(model), used, reference)
        segments = learner.segments(turns)
        advantages = torch.cat(learner.advantages(turns, segments).tokens)
        kl = learner.reference_logprobs(segments)
        metrics = learner.learn(0, turns, Phases())
        seen.append((segments, advantages, kl, metrics))
    (segments, advantages, kl, metrics), (segments_off, advantages_off, kl_off, metrics_off) = seen
    assert segments == segments_off
    assert torch.equal(advantages, advantages_off)
    assert kl is not None
    assert kl_off is not None
    assert all(torch.equal(a, b) for a, b in zip(kl, kl_off, strict=True))
    for key in ("loss/policy", "loss/kl", "kl_old", "clip_fraction", "grad/base_norm"):
        assert metrics[key] == metrics_off[key], key
    assert metrics["loss/kl"] > 0
    assert metrics["grad/norm"] != metrics_off["grad/norm"]


def test_the_trained_loss_is_the_definition() -> None:
    """The micro-batched sum equals the objective written branch by branch in float64."""
    config = _config(auxiliary__sero__w_min=0.0)
    _, roots, model = _collected(config)
    student = small.student(config)
    branches = []
    for root in roots:
        rows, z = root.rows, root.z_rows
        everything = [
            replace(row, loss_mask=(False,) * (len(row.ids) - _reply(row)) + (True,) * _reply(row))
            for row in rows
        ]
        logps = score_segments(model, everything, PassLimits(4096, student.pad_id))
        branches.append(
            Branch(
                valid=root.valid,
                G_pi=root.G_pi,
                G_O=root.G_O,
                behaviour=logps,
                student=[value.double().requires_grad_() for value in logps],
                z_mask=[torch.tensor(row.loss_mask[-_reply(row) :]) for row in z],
                loss_mask=[torch.tensor(row.loss_mask[-_reply(row) :]) for row in rows],
            )
        )
    expected = float(sero_loss(branches).loss.detach())
    total = auxiliary_backward(
        model, step_rows(roots, config.auxiliary.sero), 0.1, PassLimits(300, 0)
    )
    assert expected > 0
    assert total == pytest.approx(expected, rel=1e-5)


def _reply(row: Any) -> int:
    """Tokens of a target: from the last `<think>` tag on."""
    first = small.tokenizer().convert_tokens_to_ids("<think>")
    return len(row.ids) - max(i for i, token in enumerate(row.ids) if token == first)


def _gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("tokens", [1, 400, 1000])
def test_o23_micro_batches_change_nothing(tokens: int) -> None:
    config = _config(objective__kl_coef=0.05, objective__entropy_coef=0.01)
    turns, roots, model = _collected(config)
    learner = Learner(config, model, small.student(config), small.model(seed=1))
    segments = learner.segments(turns)
    base = BaseStep(
        segments,
        range(len(turns)),
        learner.advantages(turns, segments).tokens,
        learner.reference_logprobs(segments),
        length=24,
    )
    rows = step_rows(roots, config.auxiliary.sero)
    gradients = []
    for size in (10**9, tokens):
        stats = LossStats()
        model.zero_grad()
        base_backward(model, base, config.objective, PassLimits(size, 0), stats)
        base_part = _gradient(model)
        auxiliary_backward(model, rows, 0.3, PassLimits(size, 0))
        gradients.append((base_part, _gradient(model), stats.metrics()))
    (a, b, stats_a), (c, d, stats_d) = gradients
    torch.testing.assert_close(c, a, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(d, b, rtol=1e-4, atol=1e-6)
    for key, value in stats_a.items():
        assert stats_d[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


def test_sero_is_flat_where_the_policy_is_sure_and_root_only_where_it_would_never_follow() -> None:
    config = _config(auxiliary__sero__w_min=0.0)
    _, roots, _ = _collected(config)
    roots = [root for root in roots if len(root.rows) > 1]
    assert roots

    def coefficients(rule: str, logz: float) -> list[float]:
        changed = [replace(root, logz=(logz,) * len(root.rows)) for root in roots]
        rows = step_rows(changed, config.replace(**{"auxiliary.sero.rule": rule}).auxiliary.sero)
        return [row.coefficient for row in rows]

    assert coefficients("sero", 0.0) == coefficients("flat", -1.0)
    assert coefficients("sero", -math.inf) == coefficients("root", -1.0)
    assert coefficients("sero", -0.5) != coefficients("flat", -1.0)


def test_w_is_the_product_of_earlier_likelihoods_when_the_token_sets_coincide() -> None:
    """w_k = exp(-sum of l_j before k) at the behaviour parameters."""
    config = _config(auxiliary__sero__w_min=0.0, auxiliary__sero__normaliser="active")
    _, roots, model = _collected(config)
    root = max(roots, key=lambda r: len(r.rows))
    root = replace(root, rows=root.z_rows)
    with torch.no_grad():
        batch = collate(root.rows)
        nll = -token_logprobs(model, batch).logprobs.double().sum(-1) / batch.mask_B_T.sum(-1)
    rows = step_rows([root], config.auxiliary.sero)
    assert len(rows) >= 2
    for k, row in enumerate(rows):
        weight = row.coefficient * row.segment.trained / root.gate
        assert weight == pytest.approx(math.exp(-float(nll[:k].sum())), rel=1e-5)


def test_turns_from_a_file_give_the_numbers_of_the_run(tmp_path: Path) -> None:
    config = _config()
    turns, roots, model = _collected(config)
    write_turns(tmp_path / "turns.parquet", turns)
    read = read_turns(tmp_path / "turns.parquet")
    left, right = small.twin(model), small.twin(model)
    from_run = _learn(config, left, turns, roots)
    from_file = _learn(config, right, read, roots)
    clock = "perf/tokens_per_s"
    assert from_run.pop(clock) > 0 < from_file.pop(clock)
    assert from_run == from_file
    assert small.same(small.weights(left), small.weights(right))


def test_format_control_sees_neither_reward_nor_command() -> None:
    config = _config(auxiliary__sero=None, objective__name="none", auxiliary__format_only={})
    turns, _, model = _collected(_config())
    won, lost = small.twin(model), small.twin(model)
    metrics = _learn(config, won, turns, [])
    _learn(config, lost, [replace(turn, success=False, reward=0.0) for turn in turns], [])
    assert small.same(small.weights(won), small.weights(lost))
    assert not small.same(small.weights(model), small.weights(won))
    assert metrics["loss/policy"] is None
    assert metrics["advantage_abs_mean"] == 0.0
    (method,) = make_methods(Setup(config, small.student(config), model))
    assert isinstance(method, FormatOnly)
    assert method.rows([replace(turns[0], format_valid=False)]) == []
    (row,) = method.rows(turns[:1])
    kept = [i for i, keep in zip(row.segment.ids, row.segment.loss_mask, strict=True) if keep]
    assert small.tokenizer().decode(kept) == "<think></think><action></action><end>"
    assert row.coefficient == pytest.approx(1 / len(kept))


def test_format_control_can_be_added_to_the_base() -> None:
    config = _config(auxiliary__sero=None, auxiliary__format_only={})
    turns, _, model = _collected(_config())
    metrics = _learn(config, model, turns, [])
    assert metrics["grad/base_norm"] > 0
    assert metrics["grad/aux_norm"] > 0
