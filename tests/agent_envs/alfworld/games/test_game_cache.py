"""Compiled games on disk: equal to what was compiled, whole or absent, bounded."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet, game_cache, game_set
from agent_envs.alfworld.games.game_cache import GameCache
from agent_envs.alfworld.model import Game, Words
from agent_envs.disk_cache import write_sealed
from agent_envs.errors import CorruptGame
from tests.agent_envs.alfworld.household import LOOK, PUT, TREAT, TWO, payload, toy
from tests.agent_envs.alfworld.trees import GOOD, PICK, TREE, trajectory, write
from tests.support import ROOT, full_count

GOALS = (
    PUT.format(obj="MugType", rec="ShelfType"),
    TREAT.format(able="coolable", done="isCool", obj="MugType", rec="ShelfType"),
    TWO.format(obj="MugType", rec="ShelfType"),
    LOOK.format(obj="PenType"),
)


def digest(text: object) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()


@pytest.fixture
def cache(tmp_path: Path) -> GameCache:
    return GameCache(str(tmp_path / "cache" / "games"))


def everything(game: Game) -> dict[str, Any]:
    """All that a game holds, as values that can be compared."""
    values = {f.name: getattr(game, f.name) for f in dataclasses.fields(Game)}
    words = {f.name: getattr(game.words, f.name) for f in dataclasses.fields(Words)}
    del words["memo"]
    words["go_to"] = [game.words.go_to[loc] for loc in range(len(game.locs))]
    return {**values, "words": words}


def assert_equal(found: Game | None, game: Game) -> None:
    assert found is not None
    assert everything(found) == everything(game)
    state = found.start
    assert type(state) is type(game.start)
    assert admissible(found, state) == admissible(game, state)
    for command in admissible(game, state):
        assert step(found, state, command) == step(game, state, command)


@pytest.mark.parametrize("number", range(len(GOALS)))
def test_every_table_comes_back(cache: GameCache, number: int) -> None:
    game = compile_game(payload(GOALS[number], walkthrough=["look", "go to desk 1"]))
    assert cache.get(digest(1)) is None
    cache.put(digest(1), game)
    assert_equal(cache.get(digest(1)), game)
    assert cache.get(digest(2)) is None


def test_real_games_come_back(cache: GameCache, real_data: Path, real_games: GameSet) -> None:
    older = GameSet.from_path(real_data / "alfworld_games_old.tar.xz")
    some = [(real_games, t) for t in real_games.task_ids()[:: full_count(40, 1)]]
    generations = set()
    for games, task_id in [*some, *((older, t) for t in older.task_ids()[::3])]:
        game = compile_game(games.payload(task_id))
        generations.add(game.generation)
        cache.put(digest(task_id), game)
        assert_equal(cache.get(digest(task_id)), game)
    assert generations == {"move", "put"}


def make_tree(root: Path) -> Path:
    for number in range(3):
        write(root / TREE / "train" / f"{GOOD}{number}", payload(GOALS[0]) | {"n": number})
    return root


def test_a_set_compiles_a_game_once_per_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERO_CACHE", str(tmp_path / "cache"))
    first = GameSet.from_path(make_tree(tmp_path))
    games = [first.load(task_id) for task_id in first.task_ids()]
    monkeypatch.setattr(game_set, "compile_game", lambda data: pytest.fail("compiled again"))
    second = GameSet.from_path(tmp_path / TREE)
    for task_id, game in zip(second.task_ids(), games, strict=True):
        assert_equal(second.load(task_id), game)
        assert second.load(task_id) is second.load(task_id)
    assert len(list((tmp_path / "cache" / "games").iterdir())) == 3


def test_a_changed_file_is_never_answered_with_the_old_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERO_CACHE", str(tmp_path / "cache"))
    place = tmp_path / TREE / "train" / GOOD
    write(place, payload(task="put some mug on shelf"), trajectory())
    GameSet.from_path(tmp_path).load(f"train/{GOOD}")
    opened = GameSet.from_path(tmp_path)
    write(place, payload(task="put some cup on shelf"))
    with pytest.raises(CorruptGame, match="changed"):
        opened.load(f"train/{GOOD}")
    again = GameSet.from_path(tmp_path).load(f"train/{GOOD}")
    assert again.task_sentence == "put some cup on shelf."


@pytest.mark.parametrize("damage", ["head", "byte", "cut", "empty", "long", "folder", "renamed"])
def test_a_damaged_file_counts_as_absent_and_is_replaced(cache: GameCache, damage: str) -> None:
    game = toy()
    cache.put(digest(1), game)
    (file,) = Path(cache.folder).iterdir()
    data = bytearray(file.read_bytes())
    if damage == "head":
        data[12] ^= 1
    elif damage == "byte":
        data[-100] ^= 1
    changed = {"cut": data[:-1], "empty": b"", "long": bytes(data) + b" "}.get(damage, data)
    file.write_bytes(changed)
    key = digest(1)
    if damage == "folder":
        file.unlink()
        file.mkdir()
    elif damage == "renamed":  # two files whose digests begin alike
        key = digest(1)[:32] + digest(2)[32:]
    assert cache.get(key) is None
    if damage != "folder":
        cache.put(key, game)
        assert_equal(cache.get(key), game)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"{", b'"x"', b"[" * 90_000])
def test_what_is_whole_but_no_game_is_thrown_away(cache: GameCache, body: bytes) -> None:
    path, head = cache._place(digest(1))
    assert write_sealed(path, head, body)
    assert cache.get(digest(1)) is None
    assert not os.path.exists(path)


def test_another_compiler_does_not_see_them(cache: GameCache) -> None:
    cache.put(digest(1), toy())
    assert dataclasses.replace(cache).get(digest(1)) is not None
    assert dataclasses.replace(cache, code="0" * 16).get(digest(1)) is None
    assert len(game_cache.compiler_hash()) == 16


def test_the_game_not_used_for_longest_goes_first(cache: GameCache) -> None:
    game = toy()
    cache.put(digest(0), game)
    _, size = cache.size()
    small = GameCache(cache.folder, limit=3 * size + size // 2)
    for number in range(1, 3):
        small.put(digest(number), game)
    for number in range(3):
        os.utime(small._place(digest(number))[0], (1000 + number, 1000 + number))
    assert small.get(digest(0)) is not None  # used: now 1 is the oldest
    small.put(digest(3), game)
    assert small.size() == (3, 3 * size)
    assert small.get(digest(1)) is None
    assert all(small.get(digest(number)) is not None for number in (0, 2, 3))
    tiny = GameCache(cache.folder, limit=size // 2)
    tiny.put(digest(9), game)
    assert tiny.get(digest(9)) is None


def test_a_bound_holds_over_many_games(tmp_path: Path) -> None:
    game = toy()
    probe = GameCache(str(tmp_path / "probe"))
    probe.put(digest(0), game)
    limit = 10 * probe.size()[1]
    cache = GameCache(str(tmp_path / "games"), limit=limit)
    for number in range(60):
        cache.put(digest(number), game)
        assert cache.size()[1] <= limit + limit // 16 + probe.size()[1]


def test_leftovers_of_a_writer_that_was_killed_go_after_an_hour(cache: GameCache) -> None:
    cache.put(digest(0), toy())
    (game,) = Path(cache.folder).iterdir()
    old, new = (Path(f"{game}.{n}.0.0.part") for n in range(2))
    old.write_text("half")
    new.write_text("half")
    os.utime(old, (1000, 1000))
    assert cache.size()[0] == 1
    assert not old.exists()
    assert new.exists()


def test_threads_and_processes_may_write_at_the_same_time(cache: GameCache) -> None:
    code = (
        "import sys; from agent_envs.alfworld.games.game_cache import GameCache\n"
        "from tests.agent_envs.alfworld.games.test_game_cache import digest, everything, toy\n"
        "game, cache = toy(), GameCache(sys.argv[1])\n"
        "for n in range(200):\n"
        "    cache.put(digest(n % 3), game)\n"
        "    found = cache.get(digest(n % 3))\n"
        "    assert found is not None and everything(found) == everything(game), n\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, cache.folder],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    game = toy()

    def write_and_read(number: int) -> bool:
        cache.put(digest(number % 3), game)
        return cache.get(digest(number % 3)) is not None

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write_and_read, range(100)))
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert cache.size()[0] == 3


def test_names_and_texts_are_shared_between_games(cache: GameCache) -> None:
    first = compile_game(payload(GOALS[0]))
    second = compile_game(payload(GOALS[2]))
    cache.put(digest(1), first)
    third = cache.get(digest(1))
    assert third is not None
    for one, other in ((first, second), (first, third)):
        for name in ("recs", "objs"):
            for a, b in zip(getattr(one, name), getattr(other, name), strict=True):
                assert a is b
        for name in ("a_obj", "on_rec", "closed_rec", "arrive"):
            for a, b in zip(getattr(one.words, name), getattr(other.words, name), strict=True):
                assert a is b


def test_games_in_memory_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERO_CACHE", str(tmp_path / "cache"))
    task_id = f"train/{PICK}-Mug/t"
    assert GameSet.from_games([(task_id, "train", payload())]).load(task_id).recs
    assert not (tmp_path / "cache").exists()


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    """`SERO_CACHE` may name a folder that has a folder `games` for something else."""
    theirs = {"chess.bin": bytes(5000), "film.part": b"x", "save.json": b"{}"}
    for name, data in theirs.items():
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (1, 1))
    game = toy()
    probe = GameCache(str(tmp_path / "probe"))
    probe.put(digest(0), game)
    cache = GameCache(str(tmp_path), limit=int(1.5 * probe.size()[1]))
    for number in range(4):
        cache.put(digest(number), game)
    assert cache.size()[0] == 1
    for name, data in theirs.items():
        assert (tmp_path / name).read_bytes() == data


def test_the_key_covers_all_code_that_compiles() -> None:
    """Every module of this package that `compile` imports, also from another."""
    folder = Path(game_cache.__file__).parents[1]
    waiting, needed = ["compile", "games/game_cache"], set()
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text("utf-8"))):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.startswith("agent_envs.alfworld."):
                waiting.append(module.removeprefix("agent_envs.alfworld.").replace(".", "/"))
    assert set(game_cache._CODE) == needed
