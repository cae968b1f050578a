"""The `pddl` oracle: statuses, closed loop, and games that only the original engine can play."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.alfworld.env import ALFWorldEnv
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import PrivilegedView, TaskType
from agent_envs.alfworld.rules_view import RulesView, rules_view
from agent_envs.errors import InvalidOption, UnsupportedGame
from oracles import Planner, PlanStatus
from oracles.branch import BranchStatus, run
from oracles.pddl import oracle as oracle_module
from oracles.pddl.commands import read_templates, spelled
from oracles.pddl.oracle import PDDLOracle, pddl_game
from tests.agent_envs.alfworld.household import PUT, payload
from tests.oracles.pddl.toys import processes_in
from tests.oracles.rooms import SOLUTION, house, make
from tests.oracles.toy import House, Obj, Rec

AMPLE = 300.0
PEN = "train/pick_and_place_simple-Pen-None-Shelf-1/t"


def unknown() -> dict[str, Any]:
    """A game whose rules and wording are not ALFWorld's.

    Putting something down is another command, and a drawer takes only what was wiped clean there.
    """
    game = payload(PUT.format(obj="PenType", rec="DrawerType"), "put pens away")
    domain = game["pddl_domain"].replace("(canContain ?rt ?ot)\n", "(isClean ?o)\n", 1)
    wipe = """(:action Wipe
        :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
        :precondition (and (holds ?a ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l)
            (not (isClean ?o)) (forall (?x - object) (or (= ?x ?o) (not (holds ?a ?x)))))
        :effect (when (receptacleType ?r ShelfType) (isClean ?o)))
    (:action help"""
    domain = domain.replace("(:action help", wipe, 1)
    grammar = game["grammar"].replace(
        'template :: "move {o} to {r}"', 'template :: "lay {o} in {r}"'
    )
    grammar = grammar.replace(
        "action help {",
        'action Wipe {\n template :: "wipe {o} on [{r.name | '
        'receptacleatlocation(r:receptacle, l:location)}]";\n feedback :: "You wipe.";\n}\n'
        "action help {",
    )
    return {**game, "pddl_domain": domain, "grammar": grammar}


class Seeing(ALFWorldEnv):
    """An env that shows the rules where there are no tables."""

    def privileged(self) -> Any:
        return rules_view(self._game, self._state, self.remaining_steps)


gymnasium.register("SeroSeeing-v0", lambda **options: Seeing(**options))


def seeing(**options: Any) -> gymnasium.Env[str, str]:
    games = GameSet.from_games([(PEN, "train", unknown())])
    return gymnasium.make("SeroSeeing-v0", data=games, engine="textworld", **options)


def native_view(of: House, steps_left: int | None = None) -> PrivilegedView:
    game = of.game()
    return PrivilegedView(game, game.start, steps_left)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every search that is started."""
    made: list[int] = []
    real = oracle_module.solve_task

    def counted(*args: Any, **options: Any) -> Any:
        made.append(1)
        return real(*args, **options)

    monkeypatch.setattr(oracle_module, "solve_task", counted)
    return made


def test_it_is_a_planner() -> None:
    oracle = PDDLOracle()
    assert isinstance(oracle, Planner)
    assert oracle.privileged


@pytest.mark.parametrize("optimal", [False, True])
def test_plans_win(fast_downward: None, optimal: bool) -> None:
    env = make(house(1))
    env.reset(seed=0)
    oracle = PDDLOracle(AMPLE, optimal=optimal)
    branch = run(agent_envs.fork(env), agent_envs.snapshot(env), oracle)
    assert (branch.status, branch.success, branch.valid) == (BranchStatus.OK, True, True)
    assert not optimal or len(branch.steps) == len(SOLUTION) + 1  # this shelf has a door


def test_statuses(fast_downward: None) -> None:
    oracle = PDDLOracle(optimal=True)
    view = native_view(house(1))
    plan = oracle.plan(view, None, AMPLE)
    assert plan.status is PlanStatus.FOUND
    assert oracle.plan(view, None, AMPLE) == plan
    over = oracle.plan(view, len(plan.actions) - 1, AMPLE)
    assert (over.status, over.actions) == (PlanStatus.OVER_BUDGET, plan.actions)
    assert f"has {len(plan.actions)} commands" in over.detail
    assert oracle.plan(view, len(plan.actions), AMPLE).status is PlanStatus.FOUND
    assert oracle.plan(view, None, 0).status is PlanStatus.TIMEOUT
    nowhere = House(TaskType.PICK, [Rec("Cabinet", 1)], [Obj("Mug")])
    assert oracle.plan(native_view(nowhere), None, AMPLE).status is PlanStatus.UNSOLVABLE
    there = House(TaskType.PICK, [Rec("Cabinet", 1)], [Obj("Mug", (0,))])
    for budget in (0, None):
        assert oracle.plan(native_view(there), None, budget).status is PlanStatus.ALREADY_DONE


def test_a_plan_that_is_too_long_gives_its_first_command(fast_downward: None) -> None:
    oracle = PDDLOracle(AMPLE, optimal=True)
    plan = oracle.plan(native_view(house(1)), None, AMPLE)
    decision, _ = oracle.act(None, native_view(house(1), 1), "")
    assert (decision.status, decision.action) == (PlanStatus.OVER_BUDGET, plan.actions[0])


def test_other_views_are_refused() -> None:
    with pytest.raises(InvalidOption, match="RulesView"):
        PDDLOracle().plan(object())


def test_o16_asking_with_too_little_time_changes_nothing(
    fast_downward: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    env = make(house(1))
    env.reset(seed=0)
    env.step("look")
    before = agent_envs.snapshot(env)
    variables = set(os.environ)
    plan = PDDLOracle().plan(env.unwrapped.privileged(), None, 1e-3)  # type: ignore[attr-defined]
    assert (plan.status, plan.actions) == (PlanStatus.TIMEOUT, ())
    decision, state = PDDLOracle(1e-3).act(None, env.unwrapped.privileged(), "")  # type: ignore[attr-defined]
    assert (decision.status, decision.action, state) == (PlanStatus.TIMEOUT, None, None)
    assert agent_envs.snapshot(env) == before
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert set(os.environ) == variables


def test_o17_a_game_with_unsupported_rules_is_named() -> None:
    game = unknown()
    view = RulesView(
        domain=game["pddl_domain"].replace(":adl", ":adl\n:durative-actions"),
        problem=game["pddl_problem"],
        grammar=game["grammar"],
        facts=frozenset(),
        names=agent_envs.frozen.FrozenDict(),
        steps_left=None,
    )
    plan = PDDLOracle().plan(view)
    assert plan.status is PlanStatus.UNSUPPORTED
    assert ":durative-actions" in plan.detail
    assert "domain.pddl:7" in plan.detail


def test_templates_that_say_more_than_names_are_refused() -> None:
    task = pddl_game(native_view(house(1))).task
    operator = ("openobject", "agent1", "loc_bar_1", "shelf_bar_1")
    names = {"shelf_bar_1": "shelf 2"}
    for template in (
        "open {r}",
        "open {r.name}",
        "open {r.name or r.id}",
        "open [{r.name | at(r:r)}]",
    ):
        assert spelled(task, operator, {"openobject": template}, names) == "open shelf 2"
    for template in ("open #thing(r)#", "open {q}", "open [{r.name}, {l.name}]"):
        with pytest.raises(UnsupportedGame):
            spelled(task, operator, {"openobject": template}, names)
    with pytest.raises(UnsupportedGame, match="no command"):
        spelled(task, operator, {}, names)


def test_templates_are_read_in_any_order() -> None:
    grammar = (
        'grammar :: """{"a": "action Fake { template :: x"}""";\n'
        'action A/b-c { feedback :: "said"; # template :: "no"\n template :: "do {x}"; }'
    )
    assert dict(read_templates(grammar)) == {"a/b-c": "do {x}"}


@pytest.mark.reference
@pytest.mark.parametrize("optimal", [False, True])
def test_plans_win_where_only_the_original_knows_the_rules(
    reference: None, fast_downward: None, optimal: bool
) -> None:
    env = seeing()
    env.reset(seed=0)
    for command in ("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1"):
        *_, info = env.step(command)
        assert info["command_valid"]
    before = agent_envs.snapshot(env)
    view = env.unwrapped.privileged()  # type: ignore[attr-defined]
    oracle = PDDLOracle(optimal=optimal)
    plan = oracle.plan(view, agent_envs.remaining_steps(env), AMPLE)
    assert plan.status is PlanStatus.FOUND
    assert "wipe pen 1 on shelf 1" in plan.actions
    assert "lay pen 1 in drawer 1" in plan.actions
    assert agent_envs.snapshot(env) == before
    for command in plan.actions:
        _, reward, terminated, _, info = env.step(command)
        assert info["command_valid"], command
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    # Carried out as a branch as well, from the same point.
    branch = run(agent_envs.fork(env), before, oracle)
    assert (branch.status, branch.success, branch.valid) == (BranchStatus.OK, True, True)
    assert [step.action for step in branch.steps] == list(plan.actions)
    env.close()


@pytest.mark.reference
def test_it_follows_its_plan_and_plans_anew_after_a_deviation(
    reference: None, fast_downward: None, searches: list[int]
) -> None:
    env = seeing()
    observation, _ = env.reset(seed=0)
    oracle, state = PDDLOracle(AMPLE, optimal=True), None
    for number in range(20):
        view = env.unwrapped.privileged()  # type: ignore[attr-defined]
        decision, state = oracle.act(state, view, observation)
        assert decision.status is PlanStatus.FOUND
        assert decision.action is not None
        observation, _, terminated, _, _ = env.step(decision.action)
        if number == 0:
            assert len(searches) == 1
            env.step("look")  # changes nothing that a rule reads
        if number == 1:
            assert len(searches) == 1
            env.step("go to bathtubbasin 1")
        if terminated:
            break
    assert terminated
    assert len(searches) == 2
    env.close()


@pytest.mark.reference
def test_a_view_stays_what_it_was(reference: None) -> None:
    env = seeing()
    env.reset(seed=0)
    view = env.unwrapped.privileged()  # type: ignore[attr-defined]
    copy = replace(view)
    env.step("go to desk 1")
    assert view == copy
    assert view != env.unwrapped.privileged()  # type: ignore[attr-defined]
    hash(view)
    env.close()
