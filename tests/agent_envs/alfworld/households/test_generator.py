"""Generated households: one game.

Promises: the same (seed, split, index, specification) gives the same bytes in every process;
every game can be won, is not won at the start, and its walkthrough is a shortest plan; splits
share neither games nor, for valid_unseen, rooms; the task sentence says no more than the public
ones do. In numbers, and in the original engine: test_generator_games.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from statistics import mean

import pytest

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.households.generator import (
    SMALL,
    SPLITS,
    STANDARD,
    HouseholdSpec,
    InvalidSpec,
    generate_game,
    task_id,
)
from agent_envs.alfworld.households.problem_writer import SENTENCES
from agent_envs.alfworld.model import Game, TaskType
from agent_envs.alfworld.text import intro
from agent_envs.draws import Draws
from tests.support import full_count, run_python

# Over 36 games each. When one changes, the same seed gives other games of that style: raise its
# number in GENERATOR_VERSIONS. What learnt on small games is compared by their hash.
GOLDEN = {
    "SMALL": "9294c05da1d342f045bc99e44f4ddbf113e890d83bbca717cc177b09c9454833",
    "STANDARD": "b1d2bfde9b10a24140931d6a2085af2d2631706aa711080d1fcbd7b0f8c77d22",
}

# Small rooms with every awkwardness of real ones: brute force still reaches all plans.
AWKWARD = HouseholdSpec(receptacles=7, objects=8, extras=True)
PRESETS = {"small": SMALL, "standard": STANDARD, "awkward": AWKWARD}

DIGEST = """
import hashlib, json
from agent_envs.alfworld.households.generator import SMALL, STANDARD, SPLITS, generate_game
digests = {}
for name, spec in ORDER([("SMALL", SMALL), ("STANDARD", STANDARD)]):
    games, digest = {}, hashlib.sha256()
    for split in ORDER(SPLITS):
        for index in ORDER(range(12)):
            games[split, index] = generate_game(3, index, split, spec)
    for split in SPLITS:
        for index in range(12):
            digest.update(json.dumps(list(games[split, index])).encode())
    digests[name] = digest.hexdigest()
print(json.dumps(digests))
"""


def games(spec: HouseholdSpec, count: int, split: str = "train", seed: int = 1) -> list[Game]:
    return [compile_game(generate_game(seed, i, split, spec).payload) for i in range(count)]


def shortest_length(game: Game) -> int:
    """Commands in a shortest plan, by breadth-first search over the engine's own states."""
    frontier, seen, depth = [game.start], {game.start}, 0
    while not any(won(game, state) for state in frontier):
        after = []
        for state in frontier:
            for command in admissible(game, state):
                new = step(game, state, command)[0]
                if new not in seen:
                    seen.add(new)
                    after.append(new)
        frontier, depth = after, depth + 1
        assert frontier, "unsolvable"
    return depth


@pytest.mark.parametrize(
    ("hash_seed", "order"), [("0", "list"), ("4711", "lambda s: list(s)[::-1]")]
)
def test_same_bytes_in_every_process_and_order(hash_seed: str, order: str) -> None:
    digests = run_python(DIGEST.replace("ORDER", f"({order})"), env={"PYTHONHASHSEED": hash_seed})
    assert json.loads(digests) == GOLDEN


def test_o12_seed_zero_and_one_differ() -> None:
    texts = [generate_game(seed, 0, "train", SMALL).payload["pddl_problem"] for seed in (0, 1)]
    assert texts[0] != texts[1]


def test_no_global_randomness() -> None:
    import random

    random.seed(5)
    state = random.getstate()
    generate_game(0, 0, "train", STANDARD)
    assert random.getstate() == state


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("split", SPLITS)
def test_walkthrough_wins_with_its_last_command_only(preset: str, split: str) -> None:
    found = games(PRESETS[preset], full_count(24, 200), split)
    assert Counter(g.task_type for g in found).keys() == set(TaskType)
    for game in found:
        state = game.start
        assert game.solvable
        assert game.walkthrough
        for command in game.walkthrough:
            assert not won(game, state)
            assert command in admissible(game, state)
            state, _, accepted = step(game, state, command)
            assert accepted
        assert won(game, state)


@pytest.mark.parametrize("preset", ["small", "awkward"])
def test_walkthrough_is_shortest_by_brute_force(preset: str) -> None:
    for game in games(PRESETS[preset], full_count(24, 120)):
        assert game.walkthrough is not None
        assert len(game.walkthrough) == shortest_length(game), game.walkthrough


def test_small_games_fit_the_short_horizon_and_have_no_dead_ends() -> None:
    for game in games(SMALL, 60):
        assert (len(game.recs), len(game.objs)) == (8, 8)
        assert game.walkthrough is not None
        assert len(game.walkthrough) <= 10
        somewhere = 0
        for held in game.can_hold:
            somewhere |= held
        assert game.pickupable & ~somewhere == 0


def test_agent_starts_where_no_receptacle_is() -> None:
    for game in games(STANDARD, 24) + games(SMALL, 24):
        assert game.recs_at[game.start.loc] == ()
        assert game.start.opened == 0


@pytest.mark.parametrize("preset", ["small", "standard"])
def test_unseen_rooms_are_in_no_other_split(preset: str) -> None:
    rooms: dict[str, dict[int, tuple[str, ...]]] = {}
    inventories: dict[str, set[tuple[str, ...]]] = {}
    for split in SPLITS:
        for index in range(full_count(150, 600)):
            game = generate_game(1, index, split, PRESETS[preset])
            compiled = compile_game(game.payload)
            scene = int(game.task_id.split("/")[1].rsplit("-", 1)[1])
            assert game.traj_data["scene"]["scene_num"] == scene
            assert rooms.setdefault(split, {}).setdefault(scene, compiled.rec_ids) == (
                compiled.rec_ids
            )
            inventories.setdefault(split, set()).add(tuple(sorted(compiled.rec_class)))
    assert not rooms["valid_unseen"].keys() & (rooms["train"].keys() | rooms["valid_seen"].keys())
    assert not inventories["valid_unseen"] & (inventories["train"] | inventories["valid_seen"])
    common = rooms["train"].keys() & rooms["valid_seen"].keys()
    assert len(common) > 40
    assert all(rooms["train"][scene] == rooms["valid_seen"][scene] for scene in common)


@pytest.mark.parametrize("preset", ["small", "standard"])
def test_splits_share_no_game(preset: str) -> None:
    def what_is_where(game: Game) -> tuple[object, ...]:
        """The game but for the coordinates in object ids."""
        things = [
            (game.rec_ids[r], cls)
            for r, mask in enumerate(game.start.contents)
            for i, cls in enumerate(game.obj_class)
            if mask >> i & 1
        ]
        return game.goal.kind, game.task_sentence, tuple(sorted(things))

    seen: set[tuple[object, ...]] = set()
    count = full_count(100, 1000)
    for split in SPLITS:
        found = [what_is_where(game) for game in games(PRESETS[preset], count, split)]
        assert not seen & set(found)
        seen |= set(found)


def test_sentence_says_no_more_than_the_public_ones() -> None:
    wordings: Counter[tuple[TaskType, int]] = Counter()
    for spec in (SMALL, STANDARD):
        for index in range(60):
            game = generate_game(4, index, "train", spec)
            compiled = compile_game(game.payload)
            params = game.traj_data["pddl_params"]
            o = params["object_target"].lower()
            r = (params["parent_target"] or params["toggle_target"]).lower()
            options = [form.format(o=o, r=r) + "." for form in SENTENCES[compiled.task_type]]
            assert compiled.task_sentence in options
            wordings[compiled.task_type, options.index(compiled.task_sentence)] += 1
            # Nothing but the receptacles and the sentence is told at the start.
            told = intro(compiled, compiled.start)
            assert told.endswith(f"Your task is to: {compiled.task_sentence}")
            listed = set(re.findall(r"a ([a-z]+ \d+)", told))
            assert listed == set(compiled.recs)
    assert len(wordings) == 12


def test_wordings_are_those_of_the_public_games(real_games: GameSet) -> None:
    found = set()
    for name in real_games.task_ids()[:: full_count(6, 1)]:
        game = real_games.load(name)
        _, obj, _, rec, _ = name.split("/")[1].split("-")
        form = game.task_sentence.removesuffix(".")
        form = re.sub(rf"\b{rec.lower()}$", "{r}", form)
        form = re.sub(rf"\b{obj.lower()}\b", "{o}", form, count=1)
        found.add((game.task_type, form))
    own = {(kind, form) for kind, forms in SENTENCES.items() for form in forms}
    assert own == {(kind, form.replace("desklamp", "{r}")) for kind, form in found}


def test_id_is_known_without_the_game() -> None:
    for split in SPLITS:
        for index in range(12):
            game = generate_game(6, index, split, STANDARD)
            assert task_id(6, index, split, STANDARD) == game.task_id
            assert game.traj_data["task_id"] == game.task_id.rsplit("/", 1)[1]


def test_task_types_take_turns() -> None:
    spec = HouseholdSpec(8, 8, (TaskType.LOOK, TaskType.TWO), ("bedroom",), extras=False)
    kinds = [game.task_type for game in games(spec, 4)]
    assert kinds == [TaskType.LOOK, TaskType.TWO] * 2


def test_rooms_do_not_depend_on_the_tasks_wanted() -> None:
    def rooms(spec: HouseholdSpec) -> dict[int, tuple[str, ...]]:
        made = [generate_game(0, i, "train", spec) for i in range(80)]
        return {g.traj_data["scene"]["scene_num"]: compile_game(g.payload).rec_ids for g in made}

    every = rooms(HouseholdSpec(8, 8, extras=False))
    look = rooms(HouseholdSpec(8, 8, (TaskType.LOOK,), ("bedroom",), extras=False))
    common = every.keys() & look.keys()
    assert len(common) >= 5
    assert all(every[scene] == look[scene] for scene in common)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"receptacles": 4}, "receptacles"),
        ({"receptacles": 31}, "receptacles"),
        ({"receptacles": 8.0}, "receptacles"),
        ({"objects": 0}, "objects"),
        ({"objects": True}, "objects"),
        ({"distractors": -1}, "distractors"),
        ({"objects": 8, "distractors": 4}, "distractors"),
        ({"depth": 1.5}, "depth"),
        ({"depth": float("nan")}, "depth"),
        ({"depth": True}, "depth"),
        ({"rooms": ()}, "rooms"),
        ({"rooms": ("garage",)}, "garage"),
        ({"rooms": ("kitchen", "kitchen")}, "rooms"),
        ({"rooms": ("kitchen",)}, "look_at_obj_in_light"),
        ({"task_types": ()}, "task_types"),
        ({"task_types": ("juggle",)}, "juggle"),
        ({"task_types": "look_at_obj_in_light"}, "task_types"),
    ],
)
def test_wrong_specification_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidSpec, match=named):
        HouseholdSpec(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seed", "index", "split"),
    [(-1, 0, "train"), (0, -1, "train"), (0, 0, "test"), (1.5, 0, "train"), (None, 0, "train")],
)
def test_wrong_arguments_are_refused(seed: int, index: int, split: str) -> None:
    with pytest.raises(InvalidSpec):
        generate_game(seed, index, split, SMALL)


def test_names_of_task_types_are_accepted() -> None:
    spec = HouseholdSpec(task_types=("look_at_obj_in_light",))  # type: ignore[arg-type]
    assert spec.task_types == (TaskType.LOOK,)
    assert spec == HouseholdSpec(task_types=(TaskType.LOOK,))


def test_smallest_and_largest_sizes_work() -> None:
    for size, count in ((5, 3), (30, 60)):
        for game in games(HouseholdSpec(size, count, extras=False), 12):
            assert (len(game.recs), len(game.objs)) == (size, count)
            assert len(set(game.obj_ids)) == count


def test_draws_count_keeps_its_bounds_and_mean() -> None:
    for low, average, high in ((0, 0.4, 4), (2, 13.3, 27), (1, 1.0, 1), (0, 3.5, 4)):
        draws = Draws("count", low, high)
        counts = [draws.count(low, average, high) for _ in range(3000)]
        assert low <= min(counts) <= max(counts) <= high
        assert abs(mean(counts) - average) < 0.06 * max(1, high - low)


def test_draws_weighted_follows_the_weights() -> None:
    draws = Draws("weighted")
    counts = Counter(draws.weighted("abc", (1, 0, 3)) for _ in range(4000))
    assert counts["b"] == 0
    assert 0.7 < counts["c"] / 4000 < 0.8
