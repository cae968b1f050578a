"""The oracle that plays scripts, and the readers of scripts.

Promises:
1. It goes on where the student's history has got to: exactly at a beginning of the script, with
   refused commands passed over; a deviation stops it or restarts it, as asked.
2. A status says why nothing is played; asking changes nothing.
3. Walkthroughs win; what is read from a transcript, played in a branch, scores what was recorded,
   and every command of it is admissible.
4. Damaged transcripts are errors that name the line.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.alfworld.games import GameSet
from agent_envs.errors import CorruptData, MissingData
from agent_envs.webshop.catalogue import Shop
from agent_envs.webshop.states import goal_id
from oracles import Decision, HistoryItem, PlanStatus
from oracles.branch import BranchStatus, run
from oracles.recordings import (
    Recording,
    alfworld_tasks,
    best_scripts,
    read_alfworld,
    read_webshop,
    walkthroughs,
    webshop_sentence,
    webshop_tasks,
)
from oracles.scripted import ScriptedOracle
from tests.support import full_count


@dataclass(frozen=True)
class Room:
    """A view with a task and a budget."""

    task: str
    steps_left: int | None = None


def oracle(on_deviation: Any = "stop", *, script: tuple[str, ...] = ("a", "b", "c")) -> Any:
    return ScriptedOracle(
        {"one": script}, lambda view: view.task or None, on_deviation=on_deviation
    )


def history(*commands: str) -> tuple[HistoryItem, ...]:
    """Commands with a ``!`` were refused."""
    return tuple(HistoryItem("seen", c.rstrip("!"), not c.endswith("!")) for c in commands)


def played(made: ScriptedOracle, view: Room, *commands: str) -> list[Any]:
    """Commands up to where it stops, and the status."""
    found: list[Any] = []
    state = made.start(view, history(*commands))
    for _ in range(9):
        decision, state = made.act(state, view, "whatever")
        if decision.status is not PlanStatus.FOUND:
            return [*found, decision.status]
        found.append(decision.action)
    raise AssertionError("it never stops")


END = PlanStatus.UNSUPPORTED


@pytest.mark.parametrize(
    ("student", "stop", "restart"),
    [
        ([], ["a", "b", "c", END], ["a", "b", "c", END]),
        (["a"], ["b", "c", END], ["b", "c", END]),
        (["x!", "a", "b!", "y!"], ["c", END], ["c", END]),  # "b" was refused there as well
        (["a", "x!"], ["b", "c", END], ["b", "c", END]),
        (["a", "b", "c"], [END], [END]),
        (["x"], [END], ["a", "b", "c", END]),
        (["a", "x", "b"], [END], ["a", "b", "c", END]),
        (["a", "b", "c", "x"], [END], ["a", "b", "c", END]),
        (["A"], [END], ["a", "b", "c", END]),
    ],
)
def test_it_goes_on_from_the_history(
    student: list[str], stop: list[Any], restart: list[Any]
) -> None:
    assert played(oracle(), Room("one"), *student) == stop
    assert played(oracle("restart"), Room("one"), *student) == restart


def test_it_says_why_it_stops() -> None:
    made = oracle()
    for view, student, detail in (
        (Room("two"), (), "there is no script for task 'two'"),
        (Room(""), (), "there is no script for this task"),
        (Room("one"), ("a", "x"), "step 1 of the history is 'x', the script has 'b'"),
        (Room("one"), ("a", "b", "c", "x"), "step 3 of the history is 'x', the script has nothing"),
        (Room("one"), ("a", "b", "c"), "all 3 commands of the script are played"),
    ):
        decision, _ = made.act(made.start(view, history(*student)), view, "")
        assert (decision.status, decision.action) == (PlanStatus.UNSUPPORTED, None)
        assert decision.detail.startswith(detail)


def test_a_script_longer_than_the_budget_is_over_it() -> None:
    made = oracle()
    state = made.start(Room("one"), history("a"))
    assert made.act(state, Room("one", 2), "")[0] == Decision(PlanStatus.FOUND, "b")
    decision, _ = made.act(state, Room("one", 1), "")
    assert (decision.status, decision.action) == (PlanStatus.OVER_BUDGET, "b")
    assert decision.detail == "the script has 2 commands left, 1 may be taken"


def test_the_state_is_a_value_and_scripts_are_copied() -> None:
    commands = ["a", "b"]
    made = ScriptedOracle({"one": commands}, lambda view: "one")
    commands[0] = "z"
    state = made.start(None, ())
    assert made.act(state, None, "")[0].action == made.act(state, None, "")[0].action == "a"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="'stop' or 'restart', found 'skip'"):
        oracle("skip")
    with pytest.raises(ValueError, match="the script of 'one' is a text"):
        oracle(script="look")  # type: ignore[arg-type]


def test_the_best_recording_of_a_task() -> None:
    recordings = [
        Recording("one", ("a",), 0.0),
        Recording("one", ("a", "b", "c"), 1.0),
        Recording("one", ("x", "b"), 1.0),
        Recording("one", ("y", "b"), 1.0),
        Recording("two", ("z",), 0.5),
    ]
    assert best_scripts(recordings) == {"one": ("x", "b"), "two": ("z",)}
    assert best_scripts(recordings, 1.0) == {"one": ("x", "b")}


# ------------------------------------------------------------------ games and shops


def test_walkthroughs_win_from_every_step_of_themselves() -> None:
    env = gymnasium.make("SeroALFWorld-v0", data="generated:small?train=3")
    unwrapped: Any = env.unwrapped
    games = unwrapped.games
    ids = games.task_ids("train")
    scripts = walkthroughs(games, ids)
    assert sorted(scripts) == sorted(ids)
    made = ScriptedOracle(scripts, alfworld_tasks(games, ids))
    env.reset(seed=0)
    fork = agent_envs.fork(env)
    for task_id in ids:
        observation, _ = env.reset(options={"task_id": task_id})
        record: tuple[HistoryItem, ...] = ()
        for place, command in enumerate(scripts[task_id]):
            branch = run(fork, agent_envs.snapshot(env), made, history=record)
            assert branch.success
            assert tuple(step.action for step in branch.steps) == scripts[task_id][place:]
            record = (*record, HistoryItem(observation, command, True))
            observation, *_ = env.step(command)


def test_tasks_of_other_environments_are_not_known() -> None:
    env = gymnasium.make("SeroWebShop-v0", data="generated:small")
    unwrapped: Any = env.unwrapped
    env.reset(options={"task_id": unwrapped.goals.task_ids("train")[0]})
    goals, view = unwrapped.goals, unwrapped.privileged()
    task_id = goals.task_ids("train")[0]
    assert webshop_tasks(goals, [task_id])(view) == task_id
    assert webshop_tasks(goals, goals.task_ids("train")[1:3])(view) is None
    assert webshop_sentence(view) == goal_id(goals.goal(task_id))
    games = gymnasium.make("SeroALFWorld-v0", data="generated:small?train=2")
    inner: Any = games.unwrapped
    games.reset(seed=0)
    room = inner.privileged()
    assert webshop_sentence(room) is None
    assert webshop_tasks(goals, [task_id])(room) is None
    assert alfworld_tasks(inner.games, inner.games.task_ids())(view) is None


# ------------------------------------------------------------------ transcripts


def lines(path: Path, *values: Any) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(value) + "\n" for value in values)
    return path


def test_an_alfworld_transcript_by_hand(tmp_path: Path) -> None:
    def step(action: str | None, admissible: list[str], won: bool = False) -> dict[str, Any]:
        return {"action": action, "observation": "x", "admissible": admissible, "won": won}

    steps = [
        step(None, ["look", "go"]),
        step(" look ", ["look", "go"]),
        step("fly", ["look", "go"]),
        step("go", ["look", "take"]),
        step("take", ["look"], True),
        step("look", ["look"], True),
    ]
    path = lines(
        tmp_path / "a.jsonl.gz",
        {"game": "json_2.1.1/train/folder/trial_1/game.tw-pddl", "steps": steps},
        {"game": "train/folder/trial_2/game.tw-pddl", "steps": steps[:2]},
    )
    assert read_alfworld(path) == [
        Recording("train/folder/trial_1", ("look", "go", "take"), 1.0),
        Recording("train/folder/trial_2", ("look",), 0.0),
    ]
    broken = [step(None, ["look"]), step("fly", ["look", "land"])]
    path = lines(tmp_path / "b.jsonl.gz", {"game": "a/b/c/d", "steps": broken})
    with pytest.raises(CorruptData, match=r"line 1 is no transcript.*'fly' was not admissible"):
        read_alfworld(path)


def test_a_webshop_transcript_by_hand(tmp_path: Path) -> None:
    def step(action: str | None, page: str, available: list[Any], **more: Any) -> dict[str, Any]:
        return {"action": action, "observation": page, "available": available, **more}

    found = [False, ["Back to Search", "Next >", "B0A"]]
    steps = [
        step(None, "first", [True, ["search"]]),
        step("click[search]", "first", [True, ["search"]]),
        step("search[Blue MUG] please", "found", found),
        step("click[nope]", "found", found),
        step("search[mug]", "found mugs", found),
        step("click[B0A]", "item", [False, ["Back to Search", "Buy Now"]]),
        step("click[Buy Now]", "done", [False, []], reward=0.25, done=True),
    ]
    goal = {"instruction_text": "find me a mug"}
    path = lines(
        tmp_path / "a.jsonl.gz",
        {"meta": {}},
        {"goal": goal, "steps": steps},
        {"goal": goal, "steps": steps[:3]},
    )
    whole, part = read_webshop(path)
    assert whole.commands == (
        "search[blue mug]",
        "click[back to search]",
        "search[mug]",
        "click[b0a]",
        "click[buy now]",
    )
    assert (whole.score, part.score, part.commands) == (0.25, 0.0, ("search[blue mug]",))
    assert whole.task_id == part.task_id
    assert whole.goal is not None
    assert whole.goal.instruction == "find me a mug"
    odd = [steps[0], step("wave", "else", found)]
    path = lines(tmp_path / "b.jsonl.gz", {"meta": {}}, {"goal": goal, "steps": odd})
    with pytest.raises(CorruptData, match=r"line 2 is no transcript.*'wave' was not offered"):
        read_webshop(path)


@pytest.mark.parametrize("read", [read_alfworld, read_webshop])
@pytest.mark.parametrize("value", [7, [], {}, {"game": 3, "goal": 3}, {"game": "a", "steps": [1]}])
def test_what_is_no_transcript(tmp_path: Path, read: Any, value: Any) -> None:
    with pytest.raises(CorruptData, match="line 1"):
        read(lines(tmp_path / "a.jsonl.gz", value))
    with pytest.raises(MissingData, match="no file of transcripts"):
        read(tmp_path / "none.jsonl")


@pytest.mark.data
def test_recorded_episodes_of_alfworld_win_again(real_data: Path, real_games: GameSet) -> None:
    recordings = read_alfworld(real_data / "transcripts" / "alfworld.jsonl.gz")
    assert len(recordings) == 72
    scripts = best_scripts(recordings, 1.0)
    assert len(scripts) == 25
    ids = list(scripts)[: full_count(3, 25)]
    made = ScriptedOracle(scripts, alfworld_tasks(real_games, ids))
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split=None)
    env.reset(seed=0)
    fork = agent_envs.fork(env)
    for task_id in ids:
        env.reset(options={"task_id": task_id})
        branch = run(fork, agent_envs.snapshot(env), made)
        assert branch.valid, branch.detail
        assert branch.success
        assert len(branch.steps) == len(scripts[task_id])


@pytest.mark.data
@pytest.mark.parametrize("name", ["text_human", "text_synthetic", "text_rich_synthetic"])
def test_recorded_episodes_of_webshop_score_the_same(
    real_data: Path, real_shop: Shop, name: str
) -> None:
    path = real_data / "transcripts" / f"webshop_{name}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        meta = json.loads(file.readline())["meta"]
    recordings = read_webshop(path)
    shop = real_shop.with_prices(meta["prices"])
    env = gymnasium.make("SeroWebShop-v0", data=shop, split=None, max_steps=99)
    env.reset(seed=0)
    fork = agent_envs.fork(env)
    count = full_count(6, len(recordings))
    for one in recordings[:: len(recordings) // count][:count]:
        env.reset(options={"goal": one.goal})
        made = ScriptedOracle({one.task_id: one.commands}, webshop_sentence)
        branch = run(fork, agent_envs.snapshot(env), made)
        assert branch.total_reward == one.score
        assert tuple(step.action for step in branch.steps) == one.commands
        is_bought = one.commands[-1] == "click[buy now]"
        assert branch.status is (BranchStatus.OK if is_bought else BranchStatus.STOPPED)
        assert branch.reasons == (() if is_bought else ("oracle_unsupported",))
