"""O15 for the oracles that are not the planner: what they say is possible, taken and goes through.

The planner's part is in test_alfworld_planner.py and test_alfworld_planner_games.py, the refusal
of plans that do not fit in test_branch.py, test_scripted.py, test_webshop_goal_ways.py
and test_webshop_baselines.py. Here every oracle acts in branches, which check that each command is
listed, or fits a template, and is accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.alfworld.games import GameSet
from agent_envs.streams import stream
from agent_envs.webshop.shop import Shop
from oracles import HistoryItem, Oracle, PlanStatus
from oracles.alfworld_explorer import ALFWorldExplorer
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import Branch, BranchStatus, Reason, RootRecord, run
from oracles.recordings import alfworld_tasks, walkthroughs
from oracles.scripted import ScriptedOracle
from oracles.walks import PLAYERS
from oracles.webshop_baselines import ChoiceOracle, RuleOracle
from oracles.webshop_goal import WebShopGoalOracle
from tests.support import full_count

Env = gymnasium.Env[str, str]
STATES = 20
"""Random states in the middle of an episode, a task."""


def begin(env: Env, task_id: str, oracle: Oracle[Any]) -> Branch:
    """The oracle plays a task from its start."""
    observation, info = env.reset(options={"task_id": task_id})
    expected = RootRecord(observation, info["admissible_actions"])
    return run(agent_envs.fork(env), agent_envs.snapshot(env), oracle, expected=expected)


def middles(env: Env, task_id: str, oracle: Oracle[Any], most: int) -> Iterator[Branch]:
    """The oracle takes over after 1 to `most` random steps, some of them refused."""
    fork = agent_envs.fork(env)
    for number in range(STATES):
        draw = stream(0, task=task_id, rollout=number, purpose="o15")
        observation, info = env.reset(options={"task_id": task_id})
        history = []
        for _ in range(int(draw.integers(1, most + 1))):
            command = "dance" if draw.random() < 0.1 else PLAYERS["random"]("", info, draw)
            before = observation
            at = agent_envs.snapshot(env)
            observation, _, terminated, truncated, info = env.step(command)
            if terminated or truncated:
                observation, info = agent_envs.restore(env, at)
                break
            history.append(HistoryItem(before, command, info["command_valid"]))
        yield run(
            fork,
            agent_envs.snapshot(env),
            oracle,
            history=tuple(history),
            expected=RootRecord(observation, info["admissible_actions"]),
        )


def impossible(branch: Branch) -> bool:
    """Whether the oracle said a thing that could not be done."""
    return not {Reason.INADMISSIBLE, Reason.REFUSED, Reason.NO_ACTION}.isdisjoint(branch.reasons)


# ------------------------------------------------------------------ ALFWorld


@pytest.mark.data
def test_o15_every_walkthrough_wins_as_an_oracle(real_games: GameSet) -> None:
    """All commands of the script, from its start and, with the student's record, from within."""
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split=None)
    ids = real_games.task_ids()[:: full_count(16, 1)]
    scripts = walkthroughs(real_games, ids)
    assert scripts.keys() == set(ids)
    oracle = ScriptedOracle(scripts, alfworld_tasks(real_games, ids))
    for task_id in ids:
        branch = begin(env, task_id, oracle)
        assert branch.valid, branch.detail
        assert branch.success
        assert tuple(step.action for step in branch.steps) == scripts[task_id]
        observation, info = env.reset(options={"task_id": task_id})
        history = []
        for command in scripts[task_id][:-1]:
            before = observation
            observation, _, _, _, info = env.step(command)
            history.append(HistoryItem(before, command, True))
        expected = RootRecord(observation, info["admissible_actions"])
        last = run(
            agent_envs.fork(env),
            agent_envs.snapshot(env),
            oracle,
            history=tuple(history),
            expected=expected,
        )
        assert last.success
        assert [step.action for step in last.steps] == [scripts[task_id][-1]]


@pytest.mark.data
def test_o15_a_script_that_does_not_fit_is_flagged(real_games: GameSet) -> None:
    ids = real_games.task_ids()[:: full_count(60, 6)]
    scripts = walkthroughs(real_games, ids)
    oracle = ScriptedOracle(scripts, alfworld_tasks(real_games, ids))
    for task_id in ids:
        tight = len(scripts[task_id])
        for steps in (tight, tight - 1):
            env = gymnasium.make("SeroALFWorld-v0", data=real_games, split=None, max_steps=steps)
            branch = begin(env, task_id, oracle)
            flagged = () if steps == tight else (Reason.of_status(PlanStatus.OVER_BUDGET),)
            assert branch.reasons == flagged
            assert len(branch.steps) == (tight if steps == tight else 0), "no part of it is played"


def check_explorer(games: GameSet, ids: tuple[str, ...], refused: int) -> None:
    """It wins from the start and from the middle, or the planner proves that nobody can."""
    env = gymnasium.make("SeroALFWorld-v0", data=games, split=None, max_steps=200)
    explorer, outcomes = ALFWorldExplorer(), Counter[str]()
    for task_id in ids:
        branch = begin(env, task_id, explorer)
        outcomes["impossible"] += impossible(branch)
        if not impossible(branch):
            assert branch.success, (task_id, branch.detail)
        for branch in middles(env, task_id, explorer, 30):
            outcomes["states"] += 1
            outcomes["impossible"] += impossible(branch)
            outcomes["won"] += branch.success
            if branch.success or impossible(branch):
                continue
            assert branch.reasons == (Reason.of_status(PlanStatus.UNSOLVABLE),), branch.detail
            proof = run(agent_envs.fork(env), branch.root, ALFWorldPlanner())
            assert proof.reasons == branch.reasons, task_id
    assert outcomes["states"] == STATES * len(ids)
    assert outcomes["won"] > 0.7 * outcomes["states"]
    assert outcomes["impossible"] <= refused


@pytest.mark.data
def test_o15_the_explorer_wins_the_published_games(real_games: GameSet) -> None:
    ids = real_games.task_ids()[5 :: full_count(80, 10)]
    check_explorer(real_games, ids, full_count(0, 3))


def test_o15_the_explorer_wins_generated_games() -> None:
    count = full_count(6, 40)
    env: Any = gymnasium.make("SeroALFWorld-v0", data=f"generated:small?train={count}").unwrapped
    check_explorer(env.games, env.games.task_ids("train"), full_count(1, 4))


# ------------------------------------------------------------------ WebShop


def check_shopper(env: Env, oracle: Oracle[Any], count: int) -> Counter[str]:
    """From the start and from the middle the shopper buys, with nothing refused."""
    unwrapped: Any = env.unwrapped
    ids, outcomes = unwrapped.task_ids, Counter[str]()
    for task_id in ids[:: max(len(ids) // count, 1)][:count]:
        whole = begin(env, task_id, oracle)
        outcomes["tasks"] += 1
        outcomes["whole"] += whole.success
        for branch in (whole, *middles(env, task_id, oracle, 6)):
            assert not impossible(branch), branch.detail
            outcomes["branches"] += 1
            outcomes["bought"] += branch.valid
            outcomes["full"] += branch.success
            outcomes["worse"] += branch.valid and branch.total_reward < whole.total_reward
            if not branch.valid:
                # what does not fit is flagged, and then nothing of it is played
                assert branch.status is BranchStatus.STOPPED
                assert branch.steps == ()
                assert len(branch.reasons) == 1
                outcomes[branch.reasons[0]] += 1
            else:
                assert branch.status is BranchStatus.OK
                assert branch.steps[-1].terminated
    return outcomes


@pytest.mark.parametrize("kind", [WebShopGoalOracle, ChoiceOracle])
def test_o15_shoppers_from_random_states_of_a_generated_shop(kind: type[WebShopGoalOracle]) -> None:
    """With 15 steps everything can still be had, after six random ones as well."""
    count = full_count(10, 60)
    env = gymnasium.make("SeroWebShop-v0", data="generated:small", max_steps=15)
    outcomes = check_shopper(env, kind(), count)
    assert outcomes["branches"] == outcomes["bought"] == count * (STATES + 1)
    assert outcomes["whole"] == count
    assert outcomes["full"] == outcomes["branches"]
    assert outcomes["worse"] == 0


def test_o15_a_shopper_with_few_steps_is_flagged_or_buys_less() -> None:
    env = gymnasium.make("SeroWebShop-v0", data="generated:small", max_steps=7)
    outcomes = check_shopper(env, WebShopGoalOracle(), full_count(10, 60))
    assert outcomes["oracle_over_budget"] > 0
    assert outcomes["worse"] > 0
    assert outcomes["bought"] + outcomes["oracle_over_budget"] == outcomes["branches"]


def test_o15_the_rule_from_random_states_of_a_generated_shop() -> None:
    """It knows no steps left; with enough of them it buys something from everywhere."""
    env = gymnasium.make("SeroWebShop-v0", data="generated:small", max_steps=15)
    outcomes = check_shopper(env, RuleOracle(), full_count(10, 60))
    assert outcomes["bought"] == outcomes["branches"]


@pytest.mark.data
@pytest.mark.parametrize("source", ["synthetic", "human"])
def test_o15_the_goal_oracle_from_random_states_of_the_published_shop(
    source: str, real_shop: Shop
) -> None:
    """As much is bought from the middle as from the start, whatever was selected before."""
    count = full_count(5, 60)
    env = gymnasium.make("SeroWebShop-v0", data=real_shop, goal_source=source, max_steps=30)
    outcomes = check_shopper(env, WebShopGoalOracle(), count)
    assert outcomes["branches"] == outcomes["bought"] == outcomes["tasks"] * (STATES + 1)
    assert outcomes["tasks"] >= min(count, 7)
    assert outcomes["worse"] == 0
    assert outcomes["whole"] > 0.5 * outcomes["tasks"]
