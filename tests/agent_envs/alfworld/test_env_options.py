"""What `gymnasium.make("SeroALFWorld-v0", ...)` can be asked for."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs import FrozenDict
from agent_envs.alfworld.games import GameSet
from agent_envs.errors import InvalidOption, SnapshotMismatch, TaskNotFound
from tests.agent_envs.alfworld.household import payload
from tests.agent_envs.alfworld.trees import make_tree
from tests.agent_envs.alfworld.worlds import LAMP, MUG, PEN, game_set, make


def played(env: gymnasium.Env[str, str], n: int) -> list[str]:
    return [env.reset()[1]["task_id"] for _ in range(n)]


def test_a_list_of_tasks_is_played_as_listed() -> None:
    listed = (PEN, LAMP, MUG)
    assert played(make(task_ids=listed), 7) == [*listed, *listed, PEN]
    assert played(make(task_ids=iter([MUG])), 2) == [MUG, MUG]
    assert make(task_ids=listed).unwrapped.task_ids == listed


def test_a_seed_shuffles_a_list_of_tasks() -> None:
    env = make(task_ids=(PEN, LAMP, MUG))
    env.reset()
    orders = set()
    for seed in range(6):
        first = env.reset(seed=seed)[1]["task_id"]
        orders.add((first, *played(env, 2)))
    assert all(set(order) == {PEN, LAMP, MUG} for order in orders)
    assert len(orders) > 1


def test_an_asked_for_task_leaves_the_list_alone() -> None:
    env = make(task_ids=(PEN, LAMP, MUG))
    assert played(env, 1) == [PEN]
    env.reset(options={"task_id": MUG})
    assert played(env, 1) == [LAMP]


def test_the_place_in_the_list_is_part_of_the_snapshot() -> None:
    env = make(task_ids=(PEN, LAMP, MUG))
    played(env, 2)
    snap = agent_envs.Snapshot.from_bytes(agent_envs.snapshot(env).to_bytes())
    others = [make(task_ids=(PEN, LAMP, MUG)), agent_envs.fork(env), copy.deepcopy(env)]
    agent_envs.restore(others[0], snap)
    played(env, 2)
    for other in others:
        assert played(other, 2) == [MUG, PEN]
    agent_envs.restore(env, snap)
    assert played(env, 1) == [MUG]


def test_a_listed_place_does_not_fit_a_drawn_schedule_of_another_length() -> None:
    env, other = make(task_ids=(LAMP, MUG)), make(split=None)
    played(env, 1)
    agent_envs.restore(other, agent_envs.snapshot(env))
    assert played(other, 3) == sorted([LAMP, MUG, PEN])  # as listed: in the order of that env


def test_o4_an_unplayable_task_in_the_list_is_named_with_its_reason(tmp_path: Any) -> None:
    games = GameSet.from_path(make_tree(tmp_path))
    unsolvable = "train/pick_and_place_simple-Mug-None-Shelf-1/trial_5"
    with pytest.raises(TaskNotFound, match="unsolvable"):
        make(data=games, task_ids=[unsolvable])
    with pytest.raises(TaskNotFound, match="Did you mean"):
        make(task_ids=[MUG + "x"])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"task_ids": MUG}, MUG),
        ({"task_ids": 7}, "7"),
        ({"task_ids": [MUG, 7]}, "7"),
        ({"task_ids": []}, "none"),
        ({"task_ids": [MUG, PEN, MUG]}, "more than once"),
        ({"task_ids": [MUG], "task_types": ["pick_and_place_simple"]}, "exclude"),
        ({"extras": "inventory"}, "found 'inventory'"),
        ({"extras": ["facts"]}, "found 'facts'"),
        ({"extras": 3}, "found 3"),
        ({"extras": [["inventory"]]}, "found"),
        ({"domain_randomization": 1}, "found 1"),
        ({"domain_randomization": "no"}, "found 'no'"),
        ({"goal_source": "robot"}, "found 'robot'"),
        ({"goal_source": None}, "found None"),
        ({"goal_index": 0}, "goal_source='template'"),
        ({"goal_index": -1, "goal_source": "human"}, "found -1"),
        ({"goal_index": True, "goal_source": "human"}, "found True"),
        ({"engine": "unreal"}, "found 'unreal'"),
        ({"engine": None}, "found None"),
        ({"engine": ["native"]}, "found"),
        ({"max_steps": 0}, "found 0"),
        ({"max_steps": -3}, "found -3"),
        ({"max_steps": True}, "found True"),
        ({"max_steps": 7.0}, "found 7.0"),
        ({"max_steps": "7"}, "found '7'"),
        ({"split": 3}, "found 3"),
    ],
)
def test_bad_values_say_what_was_found(options: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        make(**options)
    assert found in str(caught.value)


def test_no_limit_of_steps() -> None:
    env = make(max_steps=None)
    env.reset(options={"task_id": MUG})
    for _ in range(120):
        _, _, terminated, truncated, info = env.step("look")
        assert not terminated
        assert not truncated
        assert info["steps_left"] is None


def test_extras_are_what_the_player_knows_beside_an_unchanged_observation() -> None:
    plain, env = make(), make(extras=["location", "inventory"])
    assert plain.reset(options={"task_id": MUG})[0] == env.reset(options={"task_id": MUG})[0]
    start = env.reset(options={"task_id": MUG})[1]["observation_extras"]
    assert isinstance(start, FrozenDict)
    assert dict(start) == {"inventory": (), "location": ()}
    by_hand = {
        "go to desk 1": ((), ("desk 2", "desk 1", "drawer 1")),  # three at one spot, by id
        "take mug 3 from desk 2": (("mug 3",), ("desk 2", "desk 1", "drawer 1")),
        "dance": (("mug 3",), ("desk 2", "desk 1", "drawer 1")),
        "go to fridge 1": (("mug 3",), ("fridge 1",)),
        "open fridge 1": (("mug 3",), ("fridge 1",)),
        "move mug 3 to fridge 1": ((), ("fridge 1",)),
    }
    plain.reset(options={"task_id": MUG})
    for command, (held, here) in by_hand.items():
        observation, *_, info = env.step(command)
        assert dict(info["observation_extras"]) == {"inventory": held, "location": here}
        other, *_, unasked = plain.step(command)
        assert other == observation
        assert "observation_extras" not in unasked
        assert {**unasked, "observation_extras": info["observation_extras"]} == info


def test_one_extra_alone_and_through_snapshots() -> None:
    env = make(extras=("location",))
    env.reset(options={"task_id": MUG})
    env.step("go to shelf 1")
    snap = agent_envs.snapshot(env)
    for other in (agent_envs.fork(env), copy.deepcopy(env), make(extras=("location",))):
        _, info = agent_envs.restore(other, snap)
        assert dict(info["observation_extras"]) == {"location": ("shelf 1",)}


def test_options_are_in_the_spec() -> None:
    """`gymnasium.make(env.spec)` gives the same env again, as vector envs do it."""
    options = {
        "task_ids": (MUG, PEN),
        "extras": ("inventory",),
        "domain_randomization": True,
        "max_steps": 9,
        "render_mode": "ansi",
    }
    env = make(**options)
    again = gymnasium.make(env.spec)
    assert again.reset(seed=4) == env.reset(seed=4)
    assert again.render() == env.render() != ""
    assert again.unwrapped.max_steps == 9


def test_close_ends_the_episode_and_reset_starts_another() -> None:
    env = make()
    first = env.reset(seed=1)
    snap = agent_envs.snapshot(env)
    env.close()
    for act in (lambda: env.step("look"), lambda: agent_envs.snapshot(env)):
        with pytest.raises(agent_envs.ResetNeeded):
            act()
    assert agent_envs.restore(env, snap) == first
    env.close()
    assert env.reset(seed=1) == first


def test_a_reset_that_fails_changes_nothing() -> None:
    broken = payload()
    broken["pddl_domain"] += ";"
    games = GameSet.from_games([(MUG, "train", payload()), (PEN, "train", broken)])
    env = make(data=games, domain_randomization=True)
    env.reset(seed=5, options={"task_id": MUG})
    env.step("go to shelf 1")
    before = agent_envs.snapshot(env)
    for seed in (None, 8):
        with pytest.raises(agent_envs.UnsupportedGame):
            env.reset(seed=seed, options={"task_id": PEN})
        assert agent_envs.snapshot(env) == before
    assert env.step("look")[0].startswith("You are facing the shelf 1")


def test_snapshots_of_two_engines_are_told_apart() -> None:
    env = make(data=game_set())
    env.reset(options={"task_id": MUG})
    snap = agent_envs.snapshot(env)
    (engine, *rest) = snap.state
    assert len(engine) == 12
    forged = agent_envs.Snapshot(
        *[getattr(snap, name) for name in ("format", "env_id", "task_id")],
        (("textworld", "look"), *rest),
        snap.steps_left,
        snap.rng_state,
        snap.wrappers,
        snap.data_revision,
    )
    with pytest.raises(SnapshotMismatch, match="'textworld'"):
        agent_envs.restore(env, forged)
    assert agent_envs.snapshot(env) == snap


@pytest.mark.parametrize(
    "options",
    [
        {"task_types": 5},
        {"task_ids": {PEN, MUG}},
        {"task_ids": frozenset((PEN,))},
        {"data": 5},
        {"data": "generated:large"},
        {"data": "generated:small?seed=-1"},
    ],
    ids=["types", "set", "frozen set", "number", "preset", "seed"],
)
def test_values_that_are_not_understood_are_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        gymnasium.make("SeroALFWorld-v0", **{"data": game_set(), **options})
