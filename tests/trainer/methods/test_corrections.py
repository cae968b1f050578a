"""Expert corrections: flat weights and a gate of 0 or 1 at the roots that SERO would choose."""

from __future__ import annotations

from typing import Any

import pytest

from oracles.base import Decision, PlanStatus
from tests.trainer import small
from tests.trainer.methods.imitation_support import (
    config_of,
    learn,
    logprob,
    mixed,
    prepared,
    setup_of,
    whole,
)
from tests.trainer.methods.test_oracle_rows import Says
from trainer.branches.branching import Brancher, select_roots, step_rows
from trainer.config import ConfigError, SeroConfig
from trainer.methods.imitation.corrections import Corrections
from trainer.methods.protocol import Rollouts, Step
from trainer.rollouts.data import segments_from_turns
from trainer.worlds.tasks import make_env


def test_it_is_sero_with_flat_weights() -> None:
    """Same roots, rows and coefficients, where every gate is 0 or 1."""
    config = config_of("corrections", env__max_steps=12, rollout__tasks=2)
    trajectories = mixed(config, 0.5)
    method = prepared(config, trajectories)
    sero = config.replace(**{"auxiliary.sero": {"rule": "flat", "w_min": 0.0}})
    section = sero.auxiliary.sero
    assert section is not None
    env = make_env(config.env, small.games(), "train")
    brancher = Brancher(sero, section, env, method.setup.student)
    roots = brancher.branch(0, trajectories, small.model())
    assert len(roots) == len(method.episodes) == 2
    assert {root.gate for root in roots} <= {0.0, 1.0}
    expected = step_rows(roots, section)
    found = method.rows(whole(100))
    assert len(found) == sum(len(root.rows) for root in roots) > 2
    key = {row.segment: row.coefficient for row in expected}
    assert {row.segment: row.coefficient for row in found} == pytest.approx(key)


def test_roots_that_are_not_solved_count_and_teach_nothing() -> None:
    config = config_of("corrections", env__max_steps=12)
    trajectories = mixed(config, 0.5)
    method = prepared(config, trajectories)
    both = {row.segment: row.coefficient for row in method.rows(whole(100))}
    solved = method.episodes[0]
    assert all(episode.solved for episode in method.episodes)
    assert method.desk is not None
    choices = select_roots(trajectories, SeroConfig(), 0, 0)
    method.desk.oracle = Says(Decision(PlanStatus.FOUND, "inventory"))
    other = trajectories[choices[1].index]
    wrong = method.desk.episode(other, choices[1].t)
    assert (wrong.valid, wrong.solved) == (True, False)
    method.episodes = [solved, wrong]
    method._rows = None
    one = {row.segment: row.coefficient for row in method.rows(whole(100))}
    assert len(one) == len(solved.rows)
    for segment, coefficient in one.items():
        assert coefficient == both[segment] == pytest.approx(1 / (2 * segment.trained))
    assert method.metrics()["corrections/solved_share"] == 0.5
    assert method.metrics()["corrections/rows"] == len(solved.rows)
    assert method.metrics()["corrections/roots"] == 2


def test_roots_are_cut_over_the_steps_and_each_step_counts_its_own() -> None:
    config = config_of("corrections", env__max_steps=12)
    trajectories = mixed(config, 0.5)
    method = prepared(config, trajectories)
    parts = [method.rows(Step(0, 0, index, 2, ())) for index in range(2)]
    assert sum(map(len, parts)) == len(method.rows(whole(0)))
    for part in parts:
        assert part
        assert all(row.coefficient == pytest.approx(1 / row.segment.trained) for row in part)
    other = [method.rows(Step(0, epoch, 0, 2, ())) for epoch in range(20)]
    assert len({rows[0].segment for rows in other}) == 2, "epochs shuffle anew"


def test_any_rollout_may_be_corrected_and_a_correction_may_be_short() -> None:
    config = config_of("corrections", env__max_steps=8)
    # A group with one failure: of two rollouts, or of the one that failed.
    group = mixed(config)[4:8]
    pair = [*[t for t in group if t.success][:1], *[t for t in group if not t.success][:1]]
    free = config_of("corrections", env__max_steps=8, auxiliary__corrections__pool="any")
    starts = {}
    for name, chosen in (("failed", config), ("any", free)):
        found = [prepared(chosen, pair, iteration=i).episodes[0].branch for i in range(8)]
        starts[name] = {branch.history[:1] + branch.history[-1:] for branch in found}
        roots = [select_roots(pair, SeroConfig(pool=name), 0, i)[0] for i in range(8)]  # type: ignore[arg-type]
        assert [branch.root_step for branch in found] == [root.t for root in roots]
        assert {root.index for root in roots} == ({1} if name == "failed" else {0, 1})
    assert starts["any"] != starts["failed"]
    short = config_of("corrections", env__max_steps=12, auxiliary__corrections__max_depth=1)
    cut = prepared(short, mixed(short, 0.5))
    assert {len(episode.branch.steps) for episode in cut.episodes} == {1}


def test_corrections_become_likelier() -> None:
    config = config_of(
        "corrections",
        env__max_steps=12,
        objective__name="none",
        auxiliary__corrections__weight=1.0,
        optim__steps=1,
    )
    trajectories = mixed(config, 0.5)
    model = small.model()
    segments = [row.segment for row in prepared(config, trajectories, model).rows(whole(100))]
    before = logprob(model, segments)
    learn(config, model, trajectories, iterations=3)
    assert logprob(model, segments) > before + 1.0


def test_without_an_environment_there_is_nothing() -> None:
    config = config_of("corrections")
    model = small.model()
    trajectories = mixed(config)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    method = Corrections(setup_of(config, model, playable=False), config.auxiliary.corrections)
    method.prepare(Rollouts(0, turns, segments_from_turns(turns), trajectories), model)
    assert not method.has_pass(whole(100))
    assert method.metrics() == {}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weight", -1.0, r"auxiliary\.corrections\.weight=-1"),
        ("oracle_budget_s", -1.0, r"auxiliary\.corrections\.oracle_budget_s=-1"),
        ("max_depth", 0, r"auxiliary\.corrections\.max_depth=0"),
        ("pool", "won", r"auxiliary\.corrections\.pool='won' must be one of failed, any"),
    ],
)
def test_fields_are_checked(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("corrections", **{f"auxiliary__corrections__{field}": value})
