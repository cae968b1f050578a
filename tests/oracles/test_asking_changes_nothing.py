"""Asking an oracle changes nothing in the environment, however often it is asked.

The same episodes are played with the oracle off, asked once a step, asked three times a step, and
with whole branches of it run from every state. Observations, admissible commands, rewards, flags,
`info` and the digest of the snapshot after every step are the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.streams import stream
from oracles import HistoryItem, Oracle, Planner
from oracles.alfworld_explorer import ALFWorldExplorer
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import run
from oracles.walks import PLAYERS
from oracles.webshop_baselines import ChoiceOracle, RuleOracle
from oracles.webshop_goal import WebShopGoalOracle
from tests.support import full_count

HOUSES = ("SeroALFWorld-v0", {"data": "generated:small?seed=3&train=12", "max_steps": 20})
SHOPS = ("SeroWebShop-v0", {"data": "generated:small"})
CASES: list[tuple[tuple[str, dict[str, Any]], Callable[[], Oracle[Any]]]] = [
    (HOUSES, ALFWorldPlanner),
    (HOUSES, ALFWorldExplorer),
    (SHOPS, WebShopGoalOracle),
    (SHOPS, RuleOracle),
    (SHOPS, ChoiceOracle),
]
IDS = [factory.__name__ for _, factory in CASES]  # type: ignore[attr-defined]

Ask = Callable[[gymnasium.Env[str, str], tuple[HistoryItem, ...], str], object]


def trace(
    world: tuple[str, dict[str, Any]], ask: Ask | None, follow: Oracle[Any] | None = None
) -> list[Any]:
    """All that came of some episodes; `ask` is called before every command.

    Every fifth command is nonsense, the others are drawn, or `follow`'s.
    """
    env_id, options = world
    env: gymnasium.Env[str, str] = gymnasium.make(env_id, **options)
    kept: list[Any] = []
    observation, info = env.reset(seed=0)
    for episode in range(full_count(4, 40)):
        draws = stream(1, rollout=episode, purpose="test-asking")
        history: list[HistoryItem] = []
        over = False
        while not over:
            kept.append((observation, dict(info), digest(env)))
            if ask is not None:
                ask(env, tuple(history), observation)
                assert kept[-1] == (observation, dict(info), digest(env))
            command = PLAYERS["random"](observation, info, draws)
            if follow is not None:
                command = answers(follow, env, tuple(history), observation)[0].action or command
            if len(history) % 5 == 4:
                command = "xyzzy 7"
            before = observation
            observation, reward, terminated, truncated, info = env.step(command)
            history.append(HistoryItem(before, command, info["command_valid"]))
            kept.append((command, reward, terminated, truncated))
            over = terminated or truncated
        kept.append((observation, dict(info), digest(env)))
        observation, info = env.reset()
    env.close()
    return kept


def digest(env: gymnasium.Env[str, str]) -> str:
    return hashlib.sha256(agent_envs.snapshot(env).to_bytes()).hexdigest()


def answers(
    oracle: Oracle[Any],
    env: gymnasium.Env[str, str],
    history: tuple[HistoryItem, ...],
    observation: str,
    times: int = 1,
) -> list[Any]:
    """`times` decisions at one state, from one state of the oracle."""
    unwrapped: Any = env.unwrapped
    view = unwrapped.privileged() if oracle.privileged else None
    state = oracle.start(view, history)
    found = [oracle.act(state, view, observation)[0] for _ in range(times)]
    if isinstance(oracle, Planner):
        for _ in range(times):
            oracle.plan(view, agent_envs.remaining_steps(env), None)
    if oracle.privileged:
        assert view == unwrapped.privileged()
    return found


@pytest.fixture(scope="module")
def silent() -> dict[str, list[Any]]:
    """With the oracle off."""
    return {world[0]: trace(world, None) for world in (HOUSES, SHOPS)}


@pytest.mark.parametrize(("world", "factory"), CASES, ids=IDS)
def test_asked_never_once_or_three_times_is_the_same(
    world: tuple[str, dict[str, Any]],
    factory: Callable[[], Oracle[Any]],
    silent: dict[str, list[Any]],
) -> None:
    oracle = factory()
    once: list[Any] = []
    thrice: list[Any] = []
    assert trace(world, lambda *at: once.append(answers(oracle, *at))) == silent[world[0]]
    assert trace(world, lambda *at: thrice.append(answers(oracle, *at, 3))) == silent[world[0]]
    # asked again at the same state it says the same
    assert [[one[0]] * 3 for one in once] == thrice
    assert len(once) > 20


@pytest.mark.parametrize(("world", "factory"), CASES, ids=IDS)
def test_branches_from_every_state_are_the_same(
    world: tuple[str, dict[str, Any]],
    factory: Callable[[], Oracle[Any]],
    silent: dict[str, list[Any]],
) -> None:
    oracle = factory()
    lengths = []

    def branch(
        env: gymnasium.Env[str, str], history: tuple[HistoryItem, ...], observation: str
    ) -> None:
        found = run(agent_envs.fork(env), agent_envs.snapshot(env), oracle, history=history)
        lengths.append(len(found.steps))

    assert trace(world, branch) == silent[world[0]]
    assert sum(lengths) > 40


@pytest.mark.parametrize(("world", "factory"), CASES, ids=IDS)
def test_an_episode_of_the_oracle_itself_is_the_same_however_often_it_is_asked(
    world: tuple[str, dict[str, Any]], factory: Callable[[], Oracle[Any]]
) -> None:
    followed = trace(world, None, factory())
    asked = factory()
    assert trace(world, lambda *at: answers(asked, *at, 3), factory()) == followed


def test_a_question_that_changed_something_would_be_seen() -> None:
    with pytest.raises(AssertionError):
        trace(HOUSES, lambda env, *_: env.unwrapped.np_random.random())
