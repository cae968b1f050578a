"""What a set of games does: selection, compiled games, games in memory."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_envs.alfworld.games import GameSet, game_set
from agent_envs.alfworld.model import TaskType
from agent_envs.errors import (
    CorruptGame,
    InvalidOption,
    MissingData,
    TaskNotFound,
    UnsupportedGame,
)
from tests.agent_envs.alfworld.household import TREAT, payload, problem
from tests.agent_envs.alfworld.trees import GOOD, PICK, TREE, add, make_tree, trajectory, write


def test_manifest_hash_tells_contents_and_ids_apart() -> None:
    def of(task_id: str, **changes: Any) -> str:
        return GameSet.from_games([(task_id, "train", payload(**changes))]).manifest_hash

    first = of(f"train/{GOOD}")
    assert first == of(f"train/{GOOD}")
    assert first != of(f"train/{GOOD}2")
    assert first != of(f"train/{GOOD}", task="put a mug in shelf")


def test_selection_by_split_and_type(real_games: GameSet) -> None:
    """The published counts: 140 seen, 134 unseen, and 60 training games a type here."""
    assert len(real_games.task_ids("valid_seen")) == 140
    assert len(real_games.task_ids("valid_unseen")) == 134
    for kind in TaskType:
        ids = real_games.task_ids("train", [kind])
        assert len(ids) == 60
        assert ids == tuple(sorted(ids))
        assert {real_games.meta(task_id).task_type for task_id in ids} == {kind}
    assert real_games.task_ids("train", ["look_at_obj_in_light"]) == real_games.task_ids(
        "train", [TaskType.LOOK]
    )
    assert real_games.skipped == ()
    with pytest.raises(InvalidOption, match="look_at_obj"):
        real_games.task_ids(task_types=["look"])
    with pytest.raises(InvalidOption, match="string"):
        real_games.task_ids(task_types=PICK)


def test_types_told_by_the_index_are_those_of_the_goals(real_games: GameSet) -> None:
    for task_id in real_games.task_ids()[::7]:
        assert real_games.load(task_id).task_type is real_games.meta(task_id).task_type


def test_compiled_games_are_shared_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game_set, "COMPILED_LIMIT", 2)
    ids = [f"train/{PICK}-Mug-None-Shelf-1/trial_{n}" for n in range(4)]
    found = GameSet.from_games((task_id, "train", payload()) for task_id in ids)
    first = found.load(ids[0])
    assert found.load(ids[0]) is first
    found.load(ids[1])
    found.load(ids[0])
    found.load(ids[2])  # drops 1, the one not used for longest
    assert found.load(ids[0]) is first
    assert len(found._compiled) == 2


def test_games_made_on_request_are_not_made_before() -> None:
    made: list[int] = []

    def maker() -> dict[str, Any]:
        made.append(1)
        return payload()

    found = GameSet.from_games([(f"train/{GOOD}", "train", maker)], manifest_hash="of-the-recipe")
    assert found.manifest_hash == "of-the-recipe"
    assert found.meta(f"train/{GOOD}").task_type is TaskType.PICK
    assert made == []
    found.load(f"train/{GOOD}")
    found.load(f"train/{GOOD}")
    assert made == [1]


@pytest.mark.parametrize("task_id", ["trial", "train/a", "train//b", "valid/a/b"])
def test_ids_in_memory_are_checked(task_id: str) -> None:
    with pytest.raises(InvalidOption, match="task id"):
        GameSet.from_games([(task_id, "train", payload())])


def test_file_changed_after_indexing_is_noticed(tmp_path: Path) -> None:
    found = GameSet.from_path(make_tree(tmp_path))
    write(tmp_path / TREE / "train" / GOOD, payload(task="put a mug in shelf"))
    with pytest.raises(CorruptGame, match="changed"):
        found.load(f"train/{GOOD}")
    (tmp_path / TREE / "train" / GOOD / "game.tw-pddl").unlink()
    with pytest.raises(MissingData):
        found.load(f"train/{GOOD}")


def test_errors_of_a_game_name_it(tmp_path: Path) -> None:
    broken = payload(pddl_problem=problem("(:goal (and))"))
    found = GameSet.from_games([(f"train/{GOOD}", "train", broken)])
    with pytest.raises(UnsupportedGame, match=GOOD):
        found.load(f"train/{GOOD}")


def test_a_set_survives_being_sent_to_another_process(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "tree")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(root / TREE, TREE)
    for place in (root, tmp_path / "a.tar"):
        found = GameSet.from_path(place)
        game = found.load(f"train/{GOOD}")
        copy = pickle.loads(pickle.dumps(found))
        assert copy.task_ids() == found.task_ids()
        assert copy.skip_details() == found.skip_details()
        assert copy.manifest_hash == found.manifest_hash
        assert copy.load(f"train/{GOOD}").revision == game.revision
        assert len(pickle.dumps(found)) < 20_000  # no compiled games


def test_more_games_on_request_than_can_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(game_set, "MAX_ON_REQUEST", 3)
    made: list[int] = []

    def ids() -> Iterator[tuple[str, str, Any]]:
        for number in range(10**9):
            made.append(number)
            yield f"train/{GOOD}{number}", "train", payload

    with pytest.raises(InvalidOption, match=r"more than 3 games.*sero data generate"):
        GameSet.from_games(ids(), manifest_hash="of-the-recipe")
    assert made == [0, 1, 2, 3]
    in_memory = [(f"train/{GOOD}{number}", "train", payload()) for number in range(5)]
    assert len(GameSet.from_games(in_memory)) == 5  # they are there already


def test_walkthrough_of_a_set() -> None:
    goal = TREAT.format(able="coolable", done="isCool", obj="MugType", rec="ShelfType")
    plan = ["go to fridge 1"]
    found = GameSet.from_games(
        [("train/pick_cool_then_place_in_recep-Mug/t", "train", payload(goal, walkthrough=plan))]
    )
    assert found.walkthrough(found.task_ids()[0]) == tuple(plan)


def test_annotations_are_what_people_wrote(tmp_path: Path) -> None:
    split = tmp_path / TREE / "train"
    wordy = trajectory()
    wordy["turk_annotations"] = {
        "anns": [
            {"task_desc": " Put a mug\n on the shelf. ", "high_descs": ["Turn left."]},
            {"task_desc": ""},
            {"task_desc": 7},
            {"task_desc": "half \ud800 a letter"},
            "no object",
            {"task_desc": "move the cup"},
        ]
    }
    write(split / GOOD, payload(), wordy)
    write(split / f"{GOOD}2", payload(), trajectory())
    write(split / f"{GOOD}3", payload())
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("game.tw-pddl", "traj_data.json"):
            add(tar, f"{TREE}/train/{GOOD}/{name}", (split / GOOD / name).read_bytes())
    for found in (GameSet.from_path(tmp_path / TREE), GameSet.from_path(archive)):
        wanted = (" Put a mug\n on the shelf. ", "move the cup")
        assert found.annotations(f"train/{GOOD}") == wanted
    found = GameSet.from_path(tmp_path / TREE)
    assert found.annotations(f"train/{GOOD}2") == ()
    assert found.annotations(f"train/{GOOD}3") == ()
    with pytest.raises(TaskNotFound):
        found.annotations("train/a/b")
    (split / GOOD / "traj_data.json").write_text("[1]")
    with pytest.raises(CorruptGame, match=GOOD):
        found.annotations(f"train/{GOOD}")
    assert (
        GameSet.from_games([(f"train/{GOOD}", "train", payload())]).annotations(f"train/{GOOD}")
        == ()
    )


def test_annotations_of_the_published_games(real_games: GameSet) -> None:
    counts = [len(real_games.annotations(task_id)) for task_id in real_games.task_ids()]
    assert min(counts) >= 3
    assert max(counts) <= 7
