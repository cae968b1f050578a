"""The original engine as functions of a state: going back, replaying, leaving nothing behind."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.naming import renamed
from agent_envs.alfworld.original import textworld_engine, textworld_session
from agent_envs.alfworld.original.textworld_engine import TextWorldGame
from agent_envs.alfworld.original.textworld_session import Session, open_session, state_of
from agent_envs.errors import CorruptGame, ResetNeeded, SnapshotMismatch
from tests.agent_envs.alfworld.household import payload
from tests.agent_envs.alfworld.worlds import MUG, PEN, make, walk
from tests.support import full_count, run_python

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module")
def session(reference: None) -> Session:
    return open_session(payload())


def path(session: Session, *commands: str) -> Any:
    point = session.start
    for command in commands:
        point, _, taken = session.step(point, command)
        assert taken, command
    return point


def test_points_are_values(session: Session) -> None:
    """A point stays good while the engine is elsewhere."""
    desk = path(session, "go to desk 1")
    shelf = path(session, "go to shelf 1")
    for _ in range(3):
        assert session.step(desk, "take mug 3 from desk 2")[1].startswith("You pick up the mug 3")
        assert session.step(shelf, "take mug 3 from desk 2")[1:] == ("Nothing happens.", False)
        assert session.step(session.start, "look")[1].endswith("you see nothing.")
    assert desk.commands == ("go to desk 1",)
    assert desk == path(session, "go to desk 1")


def test_commands_that_change_nothing_are_not_kept(session: Session) -> None:
    point = path(session, "go to desk 1", "look", "look", "examine desk 1", "examine desk 1")
    assert point.commands == ("go to desk 1", "look", "examine desk 1")
    assert session.step(point, "dance")[0] == point


@pytest.mark.parametrize("kept", [1, 32])
def test_going_back_equals_replaying(
    session: Session, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """With one place kept, most of the ways back are replays."""
    monkeypatch.setattr(textworld_session, "KEPT", kept)
    rng = Random(kept)
    points, game = [session.start], compile_game(payload())
    for _ in range(14):
        point = rng.choice(points[-6:])
        command = rng.choice(point.admissible)
        after, text, taken = session.step(point, command)
        state = game.start
        for earlier in point.commands:
            state = step(game, state, earlier)[0]
        state, expected, accepted = step(game, state, command)
        assert (text, taken, after.admissible) == (expected, accepted, admissible(game, state))
        assert session.point(after.commands) == after
        assert state_of(game, session.facts(after)) == state
        session.keep(after)
        points.append(after)
        assert len(session._kept) <= kept


def test_a_replay_that_fails_leaves_every_point_good(session: Session) -> None:
    desk = path(session, "go to desk 1")
    with pytest.raises(SnapshotMismatch, match="'take mug 1 from desk 1'"):
        session.point(("go to shelf 1", "look", "take mug 1 from desk 1"))
    assert session.step(desk, "open drawer 1")[1].startswith("You open the drawer 1.")


def test_one_session_for_a_game_and_a_naming(session: Session) -> None:
    assert open_session(payload()) is session
    other = open_session(payload(), 5)
    assert other is open_session(payload(), 5) is not session
    game = renamed(compile_game(payload()), 5)
    names = other.names()
    assert [names[name] for name in game.obj_ids] == list(game.objs)
    assert [names[name] for name in game.rec_ids] == list(game.recs)


def test_facts_of_another_game_are_refused() -> None:
    game = compile_game(payload())
    with pytest.raises(CorruptGame, match="where the agent is"):
        state_of(game, frozenset())
    with pytest.raises(CorruptGame, match="cup_bar_q"):
        state_of(game, frozenset([("inreceptacle", "cup_bar_q", "desk_bar_a")]))


def test_the_driver_goes_back(reference: None) -> None:
    with TextWorldGame(payload()) as game:
        for act in (game.save, game.mark, game.facts):
            with pytest.raises(ResetNeeded):
                act()
        game.reset()
        start, mark = game.save(), game.mark()
        game.step("go to desk 1")
        moved = game.mark()
        first = game.step("take mug 3 from desk 2")
        game.step("move mug 3 to desk 1")
        after = game.step("look")
        assert len({mark, moved, game.mark()}) == 3
        game.back(start)
        assert game.mark() == mark
        assert not any(fact[0] == "holds" for fact in game.facts())
        game.step("go to desk 1")
        assert game.mark() == moved
        assert game.step("take mug 3 from desk 2") == first
        game.step("move mug 3 to desk 1")
        assert game.step("look") == after


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_o8_envs_one_after_another_leave_nothing(
    reference: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One library serves them all: no temporary file, no open file, no library more."""
    # A folder of its own: other processes of this machine make temporary files, too.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = make(engine="textworld")
    env.reset(options={"task_id": PEN})  # a game that no other test keeps open
    env.close()
    gc.collect()
    before = set(os.listdir(tempfile.gettempdir())), descriptors()
    libraries = len(textworld_engine._libraries)
    assert libraries >= 1
    for number in range(full_count(4, 20)):
        env = make(engine="textworld")
        env.reset(options={"task_id": PEN})
        assert len(textworld_engine._libraries) == libraries - 1
        if number % 2:
            env.close()
        del env
    gc.collect()
    assert len(textworld_engine._libraries) == libraries
    assert {name for name in os.listdir(tempfile.gettempdir()) if "downward" in name} == set()
    assert (set(os.listdir(tempfile.gettempdir())) - before[0], descriptors()) == (
        set(), before[1],
    )  # fmt: skip


def test_o8_a_process_leaves_no_library_behind(reference: None, tmp_path: Path) -> None:
    code = (
        "from tests.agent_envs.alfworld.worlds import MUG, make\n"
        "env = make(engine='textworld')\n"
        "env.reset(options={'task_id': MUG})\n"
        "print(env.step('go to desk 1')[0][:22])"
    )
    printed = run_python(code, env={"TMPDIR": str(tmp_path)})
    assert printed.startswith("You arrive at desk 1.")
    assert list(tmp_path.iterdir()) == []


def test_envs_interleaved_and_in_threads_give_what_they_give_alone(reference: None) -> None:
    """Three envs of two games: two share an engine, and each plays its own way."""
    tasks = (MUG, PEN, MUG)

    def play(env: Any, number: int) -> list[Any]:
        rng = Random(number)
        trace = [env.reset(options={"task_id": tasks[number]})]
        for _ in range(7):
            trace += walk(env, trace[-1][-1], rng, 1)
        return trace

    alone = [play(make(engine="textworld"), number) for number in range(3)]

    envs = [make(engine="textworld") for _ in range(3)]
    rngs = [Random(number) for number in range(3)]
    mixed = [
        [env.reset(options={"task_id": task_id})] for env, task_id in zip(envs, tasks, strict=True)
    ]
    for _ in range(7):
        for env, rng, trace in zip(envs, rngs, mixed, strict=True):
            trace += walk(env, trace[-1][-1], rng, 1)
    assert mixed == alone

    threaded: dict[int, list[Any]] = {}

    def work(number: int) -> None:
        threaded[number] = play(make(engine="textworld"), number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert [threaded[number] for number in range(3)] == alone
