"""DAgger: which states are labelled, and what a label weighs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.methods.imitation_support import (
    LIMITS,
    config_of,
    learn,
    logprob,
    mixed,
    prepared,
    turns_of,
    whole,
)
from trainer import rng
from trainer.config import ConfigError
from trainer.learning.update import score_segments
from trainer.methods.protocol import Step


def _labelled(config: Any, trajectories: Any, iteration: int = 0) -> set[int]:
    """Numbers of the turns that have a row."""
    method = prepared(config, trajectories, iteration=iteration)
    total = len(turns_of(trajectories))
    return {
        i for i in range(total) if method.rows(Step(iteration, 0, 0, 1, (i,)))
    }  # a step of one turn


def test_every_state_of_failed_rollouts_is_labelled_and_no_other() -> None:
    config = config_of("dagger")
    trajectories = mixed(config)
    failed, number = set(), 0
    for trajectory in trajectories:
        if not trajectory.success:
            failed |= set(range(number, number + len(trajectory.turns)))
        number += len(trajectory.turns)
    assert 0 < len(failed) < number
    assert _labelled(config, trajectories) == failed
    everything = config_of("dagger", auxiliary__dagger__states="all")
    assert _labelled(everything, trajectories) == set(range(number))


def test_a_row_is_the_students_prompt_and_the_oracles_command() -> None:
    config = config_of("dagger")
    trajectories = mixed(config)
    method = prepared(config, trajectories)
    index = next(i for i, t in enumerate(trajectories) if not t.success)
    first = sum(len(t.turns) for t in trajectories[:index])
    assert method.desk is not None
    for t, turn in enumerate(trajectories[index].turns):
        (row,) = method.rows(Step(0, 0, 0, 1, (first + t,)))
        command = method.desk.label(trajectories[index], t)
        target = method.setup.student.target(command)
        assert row.segment.ids == (*turn.prompt_ids, *target.ids)
        assert row.segment.loss_mask[len(turn.prompt_ids) :] == target.loss_mask
        assert row.coefficient == pytest.approx(1 / sum(target.loss_mask))


def test_commands_that_are_too_long_for_a_reply_are_counted() -> None:
    config = config_of("dagger")
    trajectories = mixed(config)
    n = len(turns_of(trajectories))
    rows = prepared(config, trajectories).rows(whole(n))
    replies = [sum(r.segment.loss_mask) for r in rows]
    assert len(set(replies)) > 1
    form = len(small.student().target("x").ids) - sum(small.student().target("x").loss_mask)
    short = config_of("dagger", rollout__max_new_tokens=form + max(replies) - 1)
    method = prepared(short, trajectories)
    dropped = replies.count(max(replies))
    metrics = method.metrics()
    assert metrics["dagger/rows"] == len(rows) - dropped
    assert metrics["dagger/invalid_reasons"] == {"target_too_long": dropped}


def test_the_loss_of_a_step_is_the_mean_over_its_own_rows() -> None:
    config = config_of("dagger")
    trajectories = mixed(config)
    model = small.model()
    method = prepared(config, trajectories, model)
    total = len(turns_of(trajectories))
    for turns in (range(total), range(0, total, 2)):
        step = Step(0, 0, 0, 1, tuple(turns))
        rows = method.rows(step)
        nll = [
            -float(row.double().mean())
            for row in score_segments(model, [row.segment for row in rows], LIMITS)
        ]
        assert len(nll) > 2
        assert method.backward(model, step, LIMITS) == pytest.approx(sum(nll) / len(nll), rel=1e-5)
    assert not method.has_pass(Step(0, 0, 0, 1, ()))


def test_a_cap_draws_some_states_of_each_rollout_from_a_stream_of_its_own() -> None:
    config = config_of("dagger", auxiliary__dagger__max_states=3)
    trajectories = mixed(config)
    method = prepared(config, trajectories)
    for trajectory in (t for t in trajectories if not t.success):
        stream = rng.stream(0, 5, trajectory.episode.tid, purpose="dagger-states")
        expected = sorted(stream.permutation(len(trajectory.turns))[:3].tolist())
        assert method.states(5, trajectory) == expected
    short = next(t for t in trajectories if t.success)
    everything = config_of(
        "dagger", auxiliary__dagger__max_states=len(short.turns), auxiliary__dagger__states="all"
    )
    assert prepared(everything, trajectories).states(0, short) == list(range(len(short.turns)))


@pytest.mark.parametrize(
    ("direction", "iteration", "states"),
    [
        ("forward", 0, [0, 1]),
        ("forward", 5, [0, 1, 2, 3, 4]),  # 2 + (8 - 2) * 5 // 10
        ("forward", 10, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("backward", 0, [6, 7]),
    ],
)
def test_the_labelled_part_grows(direction: str, iteration: int, states: list[int]) -> None:
    config = config_of(
        "dagger",
        auxiliary__dagger__depth_iterations=10,
        auxiliary__dagger__depth_start=2,
        auxiliary__dagger__depth_direction=direction,
    )
    trajectories = mixed(config)
    method = prepared(config, trajectories)
    failed = next(t for t in trajectories if not t.success)
    assert len(failed.turns) == 8
    assert method.states(iteration, failed) == states


def test_figures_say_how_often_the_policy_agrees() -> None:
    config = config_of("dagger")
    trajectories = mixed(config)
    method = prepared(config, trajectories)
    assert method.desk is not None
    agrees = [
        method.desk.label(trajectory, t) == turn.command
        for trajectory in trajectories
        if not trajectory.success
        for t, turn in enumerate(trajectory.turns)
    ]
    metrics = prepared(config, trajectories).metrics()
    assert metrics["dagger/rows"] == metrics["dagger/asked"] == len(agrees)
    assert metrics["dagger/agree_share"] == pytest.approx(sum(agrees) / len(agrees))
    assert 0 < sum(agrees) < len(agrees)
    won = [t for t in trajectories if t.success]
    assert prepared(config, won).metrics()["dagger/agree_share"] is None


def test_labels_become_likelier() -> None:
    config = config_of("dagger", objective__name="none", auxiliary__dagger__weight=1.0)
    trajectories = mixed(config)
    model = small.model()
    method = prepared(config, trajectories, model)
    segments = [row.segment for row in method.rows(whole(100))]
    before = logprob(model, segments)
    metrics = learn(config, model, trajectories, iterations=2)
    assert logprob(model, segments) > before + 1.0
    assert metrics["loss/auxiliary"] == pytest.approx(metrics["loss/dagger"])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weight", -1.0, r"auxiliary\.dagger\.weight=-1"),
        ("oracle_budget_s", 0.0, r"auxiliary\.dagger\.oracle_budget_s=0"),
        ("max_states", 0, r"auxiliary\.dagger\.max_states=0"),
        ("depth_start", 0, r"auxiliary\.dagger\.depth_start=0"),
        ("depth_iterations", -1, r"auxiliary\.dagger\.depth_iterations=-1"),
        ("oracle", "best", r"auxiliary\.dagger\.oracle='best'"),
        ("states", "won", r"auxiliary\.dagger\.states='won' must be one of failed, all"),
    ],
)
def test_fields_are_checked(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("dagger", **{f"auxiliary__dagger__{field}": value})
