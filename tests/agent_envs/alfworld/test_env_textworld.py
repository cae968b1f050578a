"""``engine="textworld"``: the promises of the env, kept by the original packages."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.alfworld.compile import compile_game, text_hash
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.rules_view import RulesView
from agent_envs.errors import (
    ResetNeeded,
    SnapshotMismatch,
    UnsupportedGame,
)
from tests.agent_envs.alfworld.household import PUT, payload
from tests.agent_envs.alfworld.worlds import ENGINES, LAMP, MUG, PEN, game_set, make, seen, tree
from tests.support import full_count, run_python

pytestmark = pytest.mark.reference

WIN = ("go to desk 1", "take mug 3 from desk 2", "go to shelf 1", "move mug 3 to shelf 1")


@pytest.fixture(scope="module", autouse=True)
def _kept_open(reference: None) -> Iterator[None]:
    """Loading a game takes a second; while an env has it, others share it."""
    kept = make(engine="textworld"), make(engine="textworld")
    for env, task_id in zip(kept, (MUG, PEN), strict=True):
        env.reset(options={"task_id": task_id})
    yield
    for env in kept:
        env.close()


@pytest.fixture(params=ENGINES)
def env(request: pytest.FixtureRequest, reference: None) -> Iterator[gymnasium.Env[str, str]]:
    made = make(engine=request.param, split=None, extras=("inventory", "location"))
    yield made
    made.close()


def original(reference: None, **options: Any) -> gymnasium.Env[str, str]:
    return make(engine="textworld", **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"domain_randomization": True}, {"goal_source": "human", "goal_index": 0}],
    ids=["plain", "numbers", "words"],
)
def test_both_engines_answer_alike(
    reference: None, options: dict[str, Any], tmp_path: Path
) -> None:
    """Texts, lists, flags, extras, the privileged view, for a random walk of a seed."""
    options = {"extras": ("inventory", "location"), "data": tree(tmp_path), **options}
    ours, real = make(**options), make(engine="textworld", **options)
    rng = Random(1)
    answer = ours.reset(seed=5, options={"task_id": MUG})
    assert seen(real.reset(seed=5, options={"task_id": MUG})) == seen(answer)
    plan = ["take mug 1 from desk 2", "use desklamp 1", "dance", "use desklamp 1", "  look  ", 7]
    for number in range(full_count(14, 45)):
        info = answer[-1]
        command: Any = rng.choice(info["admissible_actions"])
        if number % 2 and plan:
            command = plan.pop(0)
        answer = ours.step(command)
        assert seen(real.step(command)) == seen(answer), command
        if answer[2]:
            break
        view, other = ours.unwrapped.privileged(), real.unwrapped.privileged()
        assert other.state == view.state, command
        assert (other.game.objs, other.game.recs) == (view.game.objs, view.game.recs)
        assert (other.game.revision, other.steps_left) == (view.game.revision, view.steps_left)


def test_the_state_of_the_original_says_it_all(reference: None) -> None:
    """Every field of `State` is read from the original engine, after what changes it."""
    ours, real = make(data=game_set()), original(reference)
    for env in (ours, real):
        env.reset(options={"task_id": PEN})
    for command in (
        "go to shelf 1", "take knife 1 from shelf 1", "go to fridge 1", "open fridge 1",
        "slice apple 1 with knife 1", "move knife 1 to fridge 1", "take apple 1 from fridge 1",
        "go to microwave 1", "heat apple 1 with microwave 1", "go to sinkbasin 1",
        "clean apple 1 with sinkbasin 1", "go to desk 1", "use desklamp 1", "use desklamp 1",
        "use cellphone 1",
    ):  # fmt: skip
        assert ours.step(command)[0] == real.step(command)[0] != "Nothing happens."
        assert real.unwrapped.privileged().state == ours.unwrapped.privileged().state
    state = real.unwrapped.privileged().state
    start = compile_game(payload()).start
    assert all(now != then for now, then in zip(state, start, strict=True))


def test_o5_o7_refusals_spend_a_step_and_change_nothing(env: gymnasium.Env[str, str]) -> None:
    _, info = env.reset(options={"task_id": MUG})
    before = env.unwrapped.privileged().state
    listed = info["admissible_actions"]
    hostile = (
        "> go to shelf 1", "think: go to shelf 1", "open door then go north", "", "\n",
        "a" * 5000, "😀", "look\x00", "go to shelf 1\ngo to desk 1", None, 7, b"look",
    )  # fmt: skip
    for number, command in enumerate(hostile, start=1):
        text, reward, terminated, _, info = env.step(command)  # type: ignore[arg-type]
        assert (text, reward, terminated) == ("Nothing happens.", 0.0, False), command
        assert (info["command_valid"], info["steps_left"]) == (False, 50 - number)
        assert info["admissible_actions"] == listed
        assert env.unwrapped.privileged().state == before
    assert env.step("go to shelf 1")[4]["command_valid"]


@pytest.mark.parametrize("engine", ENGINES)
def test_o6_the_end(reference: None, engine: str) -> None:
    env = make(engine=engine, max_steps=len(WIN))
    env.reset(options={"task_id": MUG})
    for _ in WIN:
        _, reward, terminated, truncated, info = env.step("look")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["success"], info["stop_reason"]) == (False, "step_limit")
    env.reset(options={"task_id": MUG})
    for command in WIN:
        _, reward, terminated, truncated, info = env.step(command)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["success"], info["score"], info["stop_reason"]) == (True, 1.0, "success")
    with pytest.raises(ResetNeeded):
        env.step("look")


def test_o12_seeds(env: gymnasium.Env[str, str]) -> None:
    first = env.reset(seed=42)
    assert env.reset(seed=1)[1]["task_id"] != env.reset(seed=0)[1]["task_id"]
    env.step("look")
    assert env.reset(seed=42) == first


def test_o14_every_prefix_of_a_plan_resumes(env: gymnasium.Env[str, str]) -> None:
    rng = Random(3)
    env.reset(seed=1, options={"task_id": MUG})
    snaps, answers = [agent_envs.snapshot(env)], []
    for command in WIN:
        answers.append(env.step(command))
        snaps.append(agent_envs.snapshot(env))
    for number in rng.sample(range(len(WIN)), len(WIN)):
        _, info = agent_envs.restore(env, snaps[number])
        for _ in range(2):
            info = env.step(rng.choice(info["admissible_actions"]))[4]
            if info["success"]:
                break
        agent_envs.restore(env, snaps[number])
        assert agent_envs.snapshot(env) == snaps[number]
        assert [env.step(command) for command in WIN[number:]] == answers[number:]
    assert agent_envs.restore(env, snaps[-1])[1]["success"]
    with pytest.raises(ResetNeeded):
        env.step("look")


def test_o14_forks_and_copies_share_the_engine_and_nothing_else(
    env: gymnasium.Env[str, str],
) -> None:
    env.reset(seed=1, options={"task_id": MUG})
    env.step("go to desk 1")
    snap = agent_envs.snapshot(env)
    others = [agent_envs.fork(env), copy.deepcopy(env)]
    texts = {}
    for number, command in enumerate(("take mug 3 from desk 2", "open drawer 1", "look")):
        for index, one in enumerate([env, *others]):  # interleaved, each its own way
            texts[index, number] = one.step(command if index != 1 else "look")[0]
    assert texts[0, 0] == texts[2, 0] == "You pick up the mug 3 from the desk 2."
    assert texts[1, 0] == texts[1, 1] == texts[1, 2]
    assert env.unwrapped.privileged().state == others[1].unwrapped.privileged().state
    agent_envs.restore(others[0], snap)
    assert others[0].step("take mug 3 from desk 2")[0] == texts[0, 0]


def test_a_snapshot_is_a_value_in_a_fresh_process(reference: None, tmp_path: Path) -> None:
    root = tree(tmp_path)
    env = make(data=root, engine="textworld")
    env.reset(seed=2, options={"task_id": MUG})
    for command in ("look", "go to desk 1", "dance", "take bowl 1 from desk 2", "look"):
        env.step(command)
    env.step("move bowl 1 to desk 1")
    snap = agent_envs.snapshot(env)
    assert "dance" not in snap.state[0]
    code = (
        "import sys, gymnasium, agent_envs\n"
        "env = gymnasium.make('SeroALFWorld-v0', data=sys.argv[1], engine='textworld')\n"
        "snap = agent_envs.Snapshot.from_bytes(bytes.fromhex(sys.argv[2]))\n"
        "print(repr(agent_envs.restore(env, snap)))\n"
        "print(agent_envs.snapshot(env) == snap, repr(env.step('look')))"
    )
    printed = run_python(code, str(root), snap.to_bytes().hex())
    answer = agent_envs.restore(env, snap)
    text = env.step("look")
    assert "Next to it, you see a bowl 1." in text[0]
    assert printed == f"{answer!r}\nTrue {text!r}\n"


def test_forged_commands_are_refused_and_change_nothing(reference: None) -> None:
    env = original(reference)
    env.reset(options={"task_id": MUG})
    env.step("go to desk 1")
    snap = agent_envs.snapshot(env)
    forged: tuple[tuple[Any, ...], ...] = (
        ("textworld", "dance"),
        ("textworld", "go to desk 1", "go to desk 2"),  # the same spot
        ("textworld", "go to desk 1", " look"),
        ("textworld", "go to desk 1", "look", "look"),  # changes nothing any more
        ("textworld", "go to desk 1", 7),
        ("textworld", ("go to desk 1",)),
        ("text", "go to desk 1"),
        tuple(compile_game(payload()).start),
        (),
    )
    for commands in forged:
        with pytest.raises(SnapshotMismatch):
            agent_envs.restore(env, replace(snap, state=(commands, *snap.state[1:])))
        assert agent_envs.snapshot(env) == snap
    assert env.step("take mug 3 from desk 2")[0] == "You pick up the mug 3 from the desk 2."


def test_provenance_names_engine_and_packages(reference: None) -> None:
    env = original(reference)
    _, info = env.reset(options={"task_id": MUG})
    told = info["provenance"]
    assert told["engine"] == "textworld"
    for package in ("alfworld 0.4.", "textworld 1.7.", "tatsu 5.8.3"):
        assert package in told["engine_version"]
    assert (told["generation"], told["data_revision"]) == (
        "move", make().reset(options={"task_id": MUG})[1]["provenance"]["data_revision"],
    )  # fmt: skip
    json.dumps(dict(told))


def unknown(**changes: Any) -> dict[str, Any]:
    """A game whose wording no native engine knows."""
    game = payload(PUT.format(obj="PenType", rec="DrawerType"), "put pens away")
    return {**game, "grammar": game["grammar"].replace("You open the", "You fling open the")}


def test_o1_unknown_rules_are_played_by_the_original_alone(reference: None) -> None:
    game = unknown()
    games = GameSet.from_games([(PEN, "train", game)])
    with pytest.raises(UnsupportedGame, match="engine='textworld'") as caught:
        make(data=games).reset()
    assert text_hash(game["pddl_domain"]) in str(caught.value)
    env = make(data=games, engine="textworld", extras=("inventory", "location"))
    text, info = env.reset(seed=0)
    assert info["goal"] == "put pens away."
    assert text.endswith(info["goal"])
    assert (info["task_type"], info["provenance"]["generation"]) == (
        "pick_and_place_simple", "unknown",
    )  # fmt: skip
    env.step("go to desk 1")
    text, *_, info = env.step("open drawer 1")
    assert text.startswith("You fling open the drawer 1.")
    assert dict(info["observation_extras"]) == {
        "inventory": (), "location": ("desk 2", "desk 1", "drawer 1"),
    }  # fmt: skip
    view = env.unwrapped.privileged()
    assert isinstance(view, RulesView)
    assert view.domain == game["pddl_domain"]
    assert ("opened", "drawer_bar_a") in view.facts
    snap = agent_envs.snapshot(env)
    env.step("take pen 1 from desk 1")
    *_, terminated, _, _ = env.step("move pen 1 to drawer 1")
    assert terminated
    assert agent_envs.restore(env, snap)[0] == text
    assert agent_envs.snapshot(env) == snap


@pytest.mark.parametrize("predicate", ["canHold", "no parameters"])
def test_a_game_that_the_original_refuses_changes_nothing(reference: None, predicate: str) -> None:
    broken = payload()
    broken["pddl_problem"] = broken["pddl_problem"].replace("canContain", predicate)
    games = GameSet.from_games([(MUG, "train", payload()), (PEN, "train", broken)])
    env = original(reference, data=games)
    env.reset(options={"task_id": MUG})
    env.step("go to shelf 1")
    snap = agent_envs.snapshot(env)
    with pytest.raises(UnsupportedGame):
        env.reset(seed=3, options={"task_id": PEN})
    assert agent_envs.snapshot(env) == snap
    assert env.step("look")[0].startswith("You are facing the shelf 1")


def test_another_split_keeps_its_numbers(reference: None) -> None:
    env = original(reference, split=None, domain_randomization=True)
    plain = make(split=None).reset(seed=1, options={"task_id": LAMP})
    assert seen(env.reset(seed=1, options={"task_id": LAMP})) == seen(plain)


def test_a_sentence_may_repeat_the_words_before_it(
    reference: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Your task is to: move. Your task is to: put"
    monkeypatch.setattr(GameSet, "annotations", lambda self, task_id: (said,))
    answers = []
    for engine in ENGINES:
        env = make(engine=engine, goal_source="human")
        answers.append(seen(env.reset(options={"task_id": MUG})))
        env.close()
    assert answers[0] == answers[1]
    assert answers[0][1]["goal"] == said + "."
