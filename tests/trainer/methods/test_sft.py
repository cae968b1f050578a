"""Supervised fine-tuning: one oracle episode a task, every row alike."""

from __future__ import annotations

from typing import Any

import pytest

from oracles.base import Decision, PlanStatus
from tests.trainer import small
from tests.trainer.methods.imitation_support import (
    LIMITS,
    config_of,
    learn,
    logprob,
    mixed,
    prepared,
    setup_of,
    turns_of,
    whole,
)
from tests.trainer.methods.test_oracle_rows import Says
from trainer.config import ConfigError
from trainer.learning.update import score_segments
from trainer.methods.imitation.sft import Sft
from trainer.methods.protocol import Rollouts, Step
from trainer.rollouts.data import segments_from_turns


def test_the_rows_are_those_of_the_walkthrough_of_each_task() -> None:
    config = config_of("sft")
    trajectories = mixed(config)
    method = prepared(config, trajectories)
    tasks = list(dict.fromkeys(t.episode.task_id for t in trajectories))
    plans = [small.games().walkthrough(task) or () for task in tasks]
    assert len(tasks) == 2
    assert len(method.segments) == sum(map(len, plans)) == method.metrics()["sft/rows"]
    kept = [
        small.tokenizer().decode([i for i, on in zip(s.ids, s.loss_mask, strict=True) if on])
        for s in method.segments
    ]
    assert kept[0] == f"{plans[0][0]}</action><end>"
    assert kept[len(plans[0])] == f"{plans[1][0]}</action><end>"
    assert method.segments[0].ids[: len(trajectories[0].turns[0].prompt_ids)] == (
        trajectories[0].turns[0].prompt_ids
    )


def test_the_loss_is_the_mean_over_the_steps_rows_of_their_mean_nll() -> None:
    config = config_of("sft")
    trajectories = mixed(config)
    model = small.model()
    method = prepared(config, trajectories, model)
    parts = [Step(0, 0, index, 2, ()) for index in range(2)]
    rows = [method.rows(step) for step in parts]
    assert {row.segment for part in rows for row in part} == set(method.segments)
    assert abs(len(rows[0]) - len(rows[1])) <= 1, "rows are cut, not episodes"
    for step, part in zip(parts, rows, strict=True):
        scored = score_segments(model, [row.segment for row in part], LIMITS)
        mean = sum(-float(row.double().mean()) for row in scored) / len(part)
        assert method.backward(model, step, LIMITS) == pytest.approx(mean, rel=1e-5)


def test_an_episode_without_success_is_no_example() -> None:
    config = config_of("sft")
    trajectories, model = mixed(config), small.model()
    method = Sft(setup_of(config, model), config.auxiliary.sft)
    turns = turns_of(trajectories)
    assert method.desk is not None
    method.desk.oracle = Says(Decision(PlanStatus.FOUND, "inventory"))
    method.prepare(Rollouts(0, turns, segments_from_turns(turns), trajectories), model)
    assert not method.has_pass(whole(100))
    assert method.metrics()["sft/rows"] == 0
    assert method.metrics()["sft/asked"] == 2


def test_expert_rows_become_likelier() -> None:
    config = config_of("sft", objective__name="none", auxiliary__sft__weight=1.0)
    trajectories, model = mixed(config), small.model()
    segments = prepared(config, trajectories, model).segments
    before = logprob(model, segments)
    learn(config, model, trajectories, iterations=2)
    assert logprob(model, segments) > before + 1.0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weight", -1.0, r"auxiliary\.sft\.weight=-1"),
        ("oracle_budget_s", 0.0, r"auxiliary\.sft\.oracle_budget_s=0"),
    ],
)
def test_fields_are_checked(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("sft", **{f"auxiliary__sft__{field}": value})
