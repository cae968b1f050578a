"""Step-DPO: which replies are compared, to what, and where the margin goes."""

from __future__ import annotations

import math
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
    setup_of,
    turns_of,
    whole,
)
from trainer.branches.branching import select_roots
from trainer.config import ConfigError, SeroConfig
from trainer.learning.update import score_segments
from trainer.methods.imitation.base import turn_numbers
from trainer.methods.imitation.step_dpo import StepDpo
from trainer.methods.protocol import Rollouts, Step
from trainer.rollouts.data import make_segment, segments_from_turns

ALL = {"auxiliary__step_dpo__states": "failed"}


def _sum(model: Any, segment: Any) -> float:
    (row,) = score_segments(model, [segment], LIMITS)
    return float(row.double().sum())


def test_a_pair_is_the_oracles_reply_and_the_policys_own_at_one_state() -> None:
    config = config_of("step_dpo", **ALL)
    trajectories, model = mixed(config), small.model()
    method = prepared(config, trajectories, model)
    assert method.desk is not None
    asked, agreed, expected = 0, 0, {}
    for first, trajectory in zip(turn_numbers(trajectories), trajectories, strict=True):
        for t, turn in enumerate(trajectory.turns):
            if not trajectory.success:
                command = method.desk.label(trajectory, t)
                asked += 1
                agreed += command == turn.command
                if command != turn.command:
                    target = method.setup.student.target(command)
                    expected[first + t] = (*turn.prompt_ids, *target.ids), turn
    assert 0 < agreed < asked
    assert method.pairs.keys() == expected.keys()
    for number, (chosen, turn) in expected.items():
        pair = method.pairs[number]
        assert pair.chosen.ids == chosen
        assert pair.rejected.ids == (*turn.prompt_ids, *turn.response_ids)
        assert pair.rejected.trained == len(turn.response_ids)
        assert pair.chosen.trained == len(chosen) - len(turn.prompt_ids)
        assert float(pair.chosen_ref.sum()) == pytest.approx(_sum(model, pair.chosen), rel=1e-5)
        assert float(pair.rejected_ref.sum()) == pytest.approx(_sum(model, pair.rejected), rel=1e-5)
    metrics = method.metrics()
    assert metrics["step_dpo/pairs"] == asked - agreed
    assert metrics["step_dpo/agree_share"] == pytest.approx(agreed / asked)
    assert metrics["step_dpo/margin"] is None, "no optimiser step yet"


@pytest.mark.parametrize("states", ["root", "failed"])
def test_turns_that_are_left_out_of_the_base_are_no_negatives(states: str) -> None:
    config = config_of("step_dpo", auxiliary__step_dpo__states=states)
    trajectories, model = mixed(config), small.model()
    turns = turns_of(trajectories)
    numbers = sorted(prepared(config, trajectories, model).pairs)
    assert numbers
    out = numbers[::2]
    segments = segments_from_turns(turns)
    for i in out:
        nothing = [False] * len(turns[i].response_ids)
        segments[i] = make_segment(turns[i].prompt_ids, turns[i].response_ids, mask=nothing)
    method = StepDpo(setup_of(config, model), config.auxiliary.step_dpo)
    whole_run = prepared(config, trajectories, model).metrics()["step_dpo/asked"]
    method.prepare(Rollouts(0, turns, segments, trajectories), model)
    assert sorted(method.pairs) == numbers[1::2]
    assert method.metrics()["step_dpo/asked"] == whole_run - len(out), "nothing is asked in vain"


def test_both_replies_are_scored_at_the_temperature_of_the_turn() -> None:
    config = config_of("step_dpo", rollout__temperature=0.5, **ALL)
    trajectories = [
        replace(t, turns=tuple(replace(turn, temperature=0.5) for turn in t.turns))
        for t in mixed(config)
    ]
    pairs = prepared(config, trajectories).pairs.values()
    assert pairs
    assert {p.chosen.temperature for p in pairs} == {p.rejected.temperature for p in pairs} == {0.5}


def test_commands_that_are_too_long_for_a_reply_are_counted() -> None:
    config = config_of("step_dpo", **ALL)
    trajectories = mixed(config)
    whole_run = prepared(config, trajectories)
    longest = max(
        len(pair.chosen.ids) - len(turns_of(trajectories)[i].prompt_ids)
        for i, pair in whole_run.pairs.items()
    )
    assert whole_run.metrics()["step_dpo/invalid_reasons"] == {}
    short = config_of("step_dpo", rollout__max_new_tokens=longest - 1, **ALL)
    method = prepared(short, trajectories)
    dropped = len(whole_run.pairs) - len(method.pairs)
    assert 0 < dropped < len(whole_run.pairs)
    metrics = method.metrics()
    assert metrics["step_dpo/invalid_reasons"] == {"target_too_long": dropped}
    assert metrics["step_dpo/agree_share"] == whole_run.metrics()["step_dpo/agree_share"]


def test_by_default_the_states_are_the_roots_of_sero() -> None:
    config = config_of("step_dpo", env__max_steps=12)
    trajectories = mixed(config, 0.5)
    method = prepared(config, trajectories)
    roots = select_roots(trajectories, SeroConfig(), 0, 0)
    first = turn_numbers(trajectories)
    assert len(roots) == 2
    assert method.metrics()["step_dpo/asked"] == 2
    assert set(method.pairs) <= {first[root.index] + root.t for root in roots}
    assert method.pairs


def test_commands_alone_can_be_compared() -> None:
    config = config_of("step_dpo", auxiliary__step_dpo__tokens="command", **ALL)
    trajectories = mixed(config)
    turns = turns_of(trajectories)
    method = prepared(config, trajectories)
    assert method.desk is not None

    def kept(segment: Any) -> str:
        pairs = zip(segment.ids, segment.loss_mask, strict=True)
        return str(small.tokenizer().decode([i for i, on in pairs if on]))

    for number, pair in method.pairs.items():
        assert kept(pair.rejected) == turns[number].command
        assert kept(pair.chosen) in turns[number].admissible
        assert kept(pair.chosen) != turns[number].command


def test_the_loss_is_the_mean_over_the_steps_pairs_against_the_first_policy() -> None:
    config = config_of("step_dpo", auxiliary__step_dpo__beta=0.3, **ALL)
    trajectories, initial = mixed(config), small.model()
    method = StepDpo(setup_of(config, initial), config.auxiliary.step_dpo)
    turns = turns_of(trajectories)
    moved = small.model(seed=1)
    method.prepare(Rollouts(3, turns, segments_from_turns(turns), trajectories), moved)
    numbers = sorted(method.pairs)[::2]
    step = Step(3, 0, 0, 1, tuple(numbers))
    losses, margins = [], []
    for number in numbers:
        pair = method.pairs[number]
        better = _sum(moved, pair.chosen) - _sum(initial, pair.chosen)
        worse = _sum(moved, pair.rejected) - _sum(initial, pair.rejected)
        margins.append(0.3 * (better - worse))
        losses.append(math.log1p(math.exp(-margins[-1])))
    assert len(numbers) > 2
    assert method.backward(moved, step, LIMITS) == pytest.approx(
        sum(losses) / len(losses), rel=1e-4
    )
    metrics = method.metrics()
    assert metrics["step_dpo/margin"] == pytest.approx(sum(margins) / len(margins), rel=1e-3)
    assert metrics["step_dpo/accuracy"] == pytest.approx(
        sum(margin > 0 for margin in margins) / len(margins)
    )
    difference = metrics["step_dpo/chosen_shift"] - metrics["step_dpo/rejected_shift"]
    assert 0.3 * difference == pytest.approx(metrics["step_dpo/margin"], rel=1e-6)


def test_the_behaviour_policy_as_reference_starts_at_margin_0() -> None:
    """Then the loss is log 2 and its gradient beta / 2 times that of the difference."""
    config = config_of("step_dpo", auxiliary__step_dpo__reference="behaviour", **ALL)
    trajectories, initial = mixed(config), small.model()
    method = StepDpo(setup_of(config, initial), config.auxiliary.step_dpo)
    assert method.state() == {}
    method.load_state({})
    turns = turns_of(trajectories)
    moved = small.model(seed=1)
    method.prepare(Rollouts(3, turns, segments_from_turns(turns), trajectories), moved)
    step = whole(len(turns), 3)
    assert method.backward(moved, step, LIMITS) == pytest.approx(math.log(2), rel=1e-5)
    assert method.metrics()["step_dpo/margin"] == pytest.approx(0.0, abs=1e-5)
    assert gradient(moved).abs().max() > 0


def test_the_first_policy_is_kept_and_gets_no_gradient() -> None:
    config = config_of("step_dpo", **ALL)
    trajectories, model = mixed(config), small.model()
    method = prepared(config, trajectories, model)
    start = small.weights(method.teacher.of(model))
    method.backward(model, whole(len(turns_of(trajectories))), LIMITS)
    kept = method.teacher.of(model)
    assert kept is not model
    assert all(p.grad is None and not p.requires_grad for p in kept.parameters())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert small.same(start, small.weights(kept))
    other = StepDpo(setup_of(config, model), config.auxiliary.step_dpo)
    other.load_state(method.state())
    assert small.same(start, small.weights(other.teacher.of(model)))


def test_a_reply_that_the_reference_cannot_give_makes_no_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def impossible(model: Any, segments: Any, limits: Any) -> list[torch.Tensor]:
        rows = score_segments(model, segments, limits)
        rows[-1] = rows[-1].masked_fill(torch.arange(rows[-1].numel()) == 0, -math.inf)
        return rows

    config = config_of("step_dpo", **ALL)
    trajectories = mixed(config)
    every = prepared(config, trajectories).pairs
    monkeypatch.setattr("trainer.methods.imitation.step_dpo.score_segments", impossible)
    assert list(prepared(config, trajectories).pairs) == list(every)[:-1]


def test_the_oracles_reply_gains_on_the_policys_own() -> None:
    config = config_of(
        "step_dpo", objective__name="none", auxiliary__step_dpo__weight=1.0, optim__lr=1e-3, **ALL
    )
    trajectories, model = mixed(config), small.model()
    pairs = prepared(config, trajectories, model).pairs.values()

    def margin() -> float:
        return logprob(model, [p.chosen for p in pairs]) - logprob(
            model, [p.rejected for p in pairs]
        )

    before = margin()
    metrics = learn(config, model, trajectories, iterations=3)
    assert margin() > before + 1.0
    assert metrics["step_dpo/margin"] > 0
    assert metrics["step_dpo/accuracy"] > 0.5
    assert metrics["loss/step_dpo"] < math.log(2)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weight", -1.0, r"auxiliary\.step_dpo\.weight=-1"),
        ("beta", 0.0, r"auxiliary\.step_dpo\.beta=0"),
        ("oracle_budget_s", 0.0, r"auxiliary\.step_dpo\.oracle_budget_s=0"),
        ("states", "all", r"auxiliary\.step_dpo\.states='all' must be one of root, failed"),
    ],
)
def test_fields_are_checked(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("step_dpo", **{f"auxiliary__step_dpo__{field}": value})
