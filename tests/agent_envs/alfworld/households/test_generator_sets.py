"""Generated households: sets of games, and the texts that name them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_envs.alfworld.env import ALFWorldEnv
from agent_envs.alfworld.games import load_game_set
from agent_envs.alfworld.households import generator
from agent_envs.alfworld.households.generator import (
    SMALL,
    SPLITS,
    STANDARD,
    HouseholdSpec,
    InvalidSpec,
    default_game_set,
    generate_game_set,
    parse_source,
)
from agent_envs.alfworld.households.source import Source, read_source
from agent_envs.alfworld.households.spec import ROOMS_FOR
from agent_envs.alfworld.model import TaskType
from tests.support import run_python

COUNTS = {"train": 7, "valid_seen": 6, "valid_unseen": 6}


def test_set_makes_games_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = generator.generate_game

    def counted(seed: int, index: int, split: str, spec: HouseholdSpec = STANDARD) -> object:
        made.append(index)
        return original(seed, index, split, spec)

    monkeypatch.setattr(generator, "generate_game", counted)
    games = generate_game_set(0, {"train": 300}, SMALL)
    assert len(games.task_ids("train")) == 300
    assert len(games.task_ids("train", [TaskType.HEAT])) == 50
    assert games.meta(games.task_ids()[0]).split == "train"
    assert made == []
    games.load(games.task_ids()[0])
    games.load(games.task_ids()[0])
    assert len(made) == 1


def test_default_set_is_large_and_standard() -> None:
    games = default_game_set()
    assert {split: len(games.task_ids(split)) for split in SPLITS} == {
        "train": 2000,
        "valid_seen": 500,
        "valid_unseen": 500,
    }
    assert games is default_game_set()
    assert games.skipped == ()
    assert len(games.load(games.task_ids("train", ["pick_heat_then_place_in_recep"])[0]).recs) > 12


def test_more_games_leave_the_first_ones_as_they_are() -> None:
    few, many = (generate_game_set(2, {"train": n}, SMALL) for n in (10, 40))
    assert set(few.task_ids()) < set(many.task_ids())
    name = few.task_ids()[3]
    assert few.load(name).revision == many.load(name).revision


def test_manifest_hash_names_the_games() -> None:
    sets = [
        generate_game_set(0, COUNTS, SMALL),
        generate_game_set(1, COUNTS, SMALL),
        generate_game_set(0, {**COUNTS, "train": 8}, SMALL),
        generate_game_set(0, COUNTS, STANDARD),
    ]
    assert len({games.manifest_hash for games in sets}) == 4
    assert generate_game_set(0, COUNTS, SMALL).manifest_hash == sets[0].manifest_hash
    code = (
        "from agent_envs.alfworld.households.generator import *\n"
        f"print(generate_game_set(0, {COUNTS}, SMALL).manifest_hash)"
    )
    assert run_python(code, env={"PYTHONHASHSEED": "77"}).strip() == sets[0].manifest_hash


def test_set_can_be_sent_to_another_process() -> None:
    games = generate_game_set(0, COUNTS, SMALL)
    there = pickle.loads(pickle.dumps(games))
    assert there.task_ids() == games.task_ids()
    name = games.task_ids()[0]
    assert there.load(name).revision == games.load(name).revision


def test_source_text_names_a_set_wherever_a_path_does(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "generated:small?seed=1&train=12&valid_seen=6&valid_unseen=0"
    games = load_game_set(text)
    assert games.source == text
    assert games is load_game_set(Path(text))
    expected = generate_game_set(1, {"train": 12, "valid_seen": 6}, SMALL)
    assert games.manifest_hash == expected.manifest_hash
    assert games.task_ids() == expected.task_ids()
    monkeypatch.setenv("SERO_ALFWORLD_DATA", text)
    assert load_game_set() is games
    assert parse_source("/tmp/generated:small") is None


def test_env_plays_a_generated_set_to_the_end() -> None:
    env = ALFWorldEnv(data="generated:small?train=6&valid_seen=0&valid_unseen=0")
    data = load_game_set("generated:small?train=6&valid_seen=0&valid_unseen=0")
    for name in data.task_ids("train"):
        _, info = env.reset(options={"task_id": name})
        assert info["task_type"] == data.meta(name).task_type
        total = 0.0
        for command in data.walkthrough(name) or ():
            _, reward, terminated, _, info = env.step(command)
            total += reward
        assert terminated
        assert info["success"]
        assert total == 1.0
    env.close()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("generated:", "preset"),
        ("generated:smal", "smal"),
        ("generated:small?sed=1", "did you mean 'seed'"),
        ("generated:small?seed", "key=value"),
        ("generated:small?seed=-1", "seed"),
        ("generated:small?seed=1&seed=2", "twice"),
        ("generated:small?train=1e3", "train"),
        ("generated:small?task_types=juggle", "juggle"),
        ("generated:small?receptacles=2", "receptacles"),
        ("generated:small?rooms=kitchen", "look_at_obj_in_light"),
        ("generated:standard?depth=deep", "depth"),
        ("generated:standard?depth=2", "depth"),
        ("generated:small?objects=8&distractors=3", "distractors"),
        (f"generated:small?seed={'9' * 41}", "seed"),
    ],
)
def test_wrong_source_text_is_refused(text: str, named: str) -> None:
    with pytest.raises(InvalidSpec, match=named):
        load_game_set(text)


def test_what_no_text_can_name_is_refused() -> None:
    for seed in (10**40, 10**5000):
        with pytest.raises(InvalidSpec, match="seed has more than 40 digits"):
            generate_game_set(seed, COUNTS, SMALL)


def test_equal_specifications_make_equal_games() -> None:
    """Python holds 0.0 and -0.0 for equal, and spells them differently."""
    plus, minus = (replace(SMALL, depth=depth) for depth in (0.0, -0.0))
    assert plus == minus
    assert repr(plus.key) == repr(minus.key)


@pytest.mark.parametrize("counts", [{"test": 3}, {"train": -1}, {"train": 2.0}, {"train": True}])
def test_wrong_counts_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(InvalidSpec, match=next(iter(counts))):
        generate_game_set(0, counts, SMALL)


@given(
    seed=st.integers(0, 10**40 - 1),
    counts=st.dictionaries(st.sampled_from(SPLITS), st.integers(0, 10**6)),
    receptacles=st.none() | st.integers(5, 30),
    objects=st.none() | st.integers(3, 60),
    task_types=st.lists(st.sampled_from(list(TaskType)), min_size=1, unique=True),
    spare=st.lists(st.sampled_from(["bedroom", "bathroom"]), unique=True),
    extras=st.booleans(),
    distractors=st.none() | st.integers(0, 57),
    depth=st.none() | st.floats(0, 1),
)
def test_source_text_round_trip(
    seed: int,
    counts: dict[str, int],
    receptacles: int | None,
    objects: int | None,
    task_types: list[TaskType],
    spare: list[str],
    extras: bool,
    distractors: int | None,
    depth: float | None,
) -> None:
    rooms = {ROOMS_FOR[kind][0]: None for kind in task_types} | dict.fromkeys(spare)
    if distractors is not None:
        objects = None
    spec = HouseholdSpec(
        receptacles, objects, tuple(task_types), tuple(rooms), extras, distractors, depth
    )
    source = Source(seed, counts, spec)
    assert read_source(str(source)) == source
