"""The student's side of a branch holds no privileged word.

Two worlds that differ only in what was not seen, driven by the same commands, look alike up to
the first observation that differs. What an oracle says beside its commands, and what the leak audit
says of them, is for people.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_envs.alfworld.games import GameSet
from oracles import Oracle
from oracles.alfworld_explorer import ALFWorldExplorer
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import Branch
from oracles.leak_audit import audit
from oracles.student_view import StudentView, history_at, student_views
from oracles.webshop_goal import WebShopGoalOracle
from tests.oracles.twins import (
    ALFWORLD,
    CANARY,
    SHOPPING,
    WEBSHOP,
    Script,
    Twin,
    branch_in,
    households,
    shops,
)
from tests.support import ROOT, full_count

STUDENT = ("inventory", "go to nowhere 1", "look")
"""Steps after which everything is still to be seen."""


def generated(count: int) -> list[tuple[Twin, Twin]]:
    data = f"generated:small?train={count}&seed=3"
    games: GameSet = gymnasium.make(ALFWORLD, data=data).unwrapped.games  # type: ignore[attr-defined]
    return households(games, games.task_ids("train"))


def compared(left: Branch, right: Branch) -> int | None:
    """The number of steps after which the observations differ; until then all has to agree.

    Where they differ, all but the page itself and what may be done there has to agree as well.
    """
    ours, theirs = student_views(left), student_views(right)
    for k, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.observation != other.observation:
            assert _without_page(one) == _without_page(other)
            return k
        assert repr(one) == repr(other)
        assert history_at(left, k) == history_at(right, k)
    last = min(len(ours), len(theirs)) - 1
    if left.steps[last].next_observation != right.steps[last].next_observation:
        return last + 1
    assert len(ours) == len(theirs)
    return None


def _without_page(view: StudentView) -> tuple[object, ...]:
    return view.goal, view.history, view.step


@pytest.mark.parametrize("oracle", [ALFWorldPlanner(), ALFWorldExplorer()])
def test_households_look_alike_until_they_are_seen_to_differ(oracle: Oracle[Any]) -> None:
    """Commands of the planner, who knows the first house, and of the explorer, in both houses."""
    places = []
    pairs = generated(full_count(25, 250))
    for left, right in pairs:
        commands = [step.action for step in branch_in(left, STUDENT, oracle).steps]
        scripts = Script(commands), Script(commands)
        branches = [
            branch_in(twin, STUDENT, script)
            for twin, script in zip((left, right), scripts, strict=True)
        ]
        views = [script.views[0] for script in scripts]
        assert views[0] != views[1], "the oracle sees the difference at once"
        assert branches[0].success
        split = compared(*branches)
        places += [] if split is None else [split]
    # the first thing seen is the answer to the first command at the earliest
    assert min(places) >= 1
    assert len(places) > 0.8 * len(pairs)


def test_ids_of_the_game_files_and_places_are_in_no_view() -> None:
    """PDDL names and coordinates, which the planner reads."""
    for left, _ in generated(full_count(10, 60)):
        script = Script(())
        branch_in(left, (), script)
        assert "_bar_" in script.views[0]
        branch = branch_in(left, STUDENT, ALFWorldPlanner())
        assert branch.success
        told = repr(student_views(branch))
        assert not re.search(r"_bar_|_minus_|_dot_|\bloc_?\d", told)


def test_shops_look_alike_to_their_last_page() -> None:
    """Goals of one sentence, and products alike but for attributes, query and categories."""
    left, right = shops()
    scripts = Script(SHOPPING), Script(SHOPPING)
    ours, theirs = branch_in(left, (), scripts[0]), branch_in(right, (), scripts[1])
    assert ours.valid
    assert theirs.valid
    # the page after the purchase tells what it was worth; nobody acts on it
    assert compared(ours, theirs) == len(student_views(ours)) == len(SHOPPING)
    assert ours.total_reward != theirs.total_reward
    assert CANARY in scripts[1].views[0]
    assert CANARY not in repr((student_views(theirs), theirs.steps))


@pytest.mark.parametrize("taken", range(1, len(SHOPPING) - 1))
def test_shops_look_alike_from_every_page(taken: int) -> None:
    ours, theirs = (branch_in(twin, SHOPPING[:taken], Script(SHOPPING[taken:])) for twin in shops())
    assert ours.valid
    assert theirs.valid
    assert compared(ours, theirs) == len(SHOPPING) - taken
    assert CANARY not in repr((student_views(theirs), theirs.history))


def test_the_goal_oracle_does_tell_the_shops_apart() -> None:
    """Otherwise nothing would be shown by their looking alike."""
    left, right = shops()
    clicked = []
    for twin in (left, right):
        branch = branch_in(twin, SHOPPING[:1], WebShopGoalOracle())
        assert branch.valid
        clicked.append(branch.steps[0].action)
    assert clicked == ["click[b000000001]", "click[b000000002]"]


def test_what_an_oracle_says_beside_its_commands_stays_out() -> None:
    left, _ = shops()
    stopped = branch_in(left, (), Script(SHOPPING[:3]))
    assert not stopped.valid
    assert CANARY in stopped.detail
    assert CANARY not in repr((student_views(stopped), stopped.steps, stopped.history))


def test_the_audit_changes_no_branch_and_reads_the_students_side_alone() -> None:
    """Branches of twin shops that look alike leak alike, whatever is behind them."""
    branches = [branch_in(twin, (), Script(SHOPPING)) for twin in shops()]
    before = repr(branches)
    figures = [audit([branch], WEBSHOP) for branch in branches]
    assert repr(branches) == before
    assert figures[0] == figures[1]
    assert figures[0] is not None
    for example in figures[0].examples:
        assert example.why not in before


def test_only_people_read_the_audit() -> None:
    """What makes prompts, targets and metrics of training does not even import it."""
    named = re.compile(r"leak_(audit|alfworld|webshop)\b|LeakFigures")
    may = re.compile(r"oracles/(leak_\w+|bench/.*)\.py|trainer/(oracle_bench|cli)/.*\.py")
    readers = [
        path.relative_to(ROOT).as_posix()
        for package in ("agent_envs", "oracles", "trainer")
        for path in Path(ROOT, package).rglob("*.py")
        if named.search(path.read_text("utf-8"))
    ]
    assert "oracles/leak_audit.py" in readers
    assert [path for path in readers if not may.fullmatch(path)] == []
