"""Generated households in numbers: knobs, likeness to the public games, 3,000 games in full.

Promises: each knob does what it says and nothing else; standard games lie in stated bands around
the public ones; all of them load, can be won, and carry shortest plans; the original engine plays
them in step with ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from statistics import mean

import pytest

from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.households.class_tables import class_tables, room_figures
from agent_envs.alfworld.households.generator import (
    SMALL,
    SPLITS,
    STANDARD,
    HouseholdSpec,
    generate_game,
)
from agent_envs.alfworld.households.house import ROOMS
from agent_envs.alfworld.model import Game, PrivilegedView, State, TaskType, bits
from agent_envs.alfworld.original.lockstep import lockstep
from agent_envs.alfworld.original.lockstep_walks import MixedWalk
from oracles.alfworld_planner import ALFWorldPlanner
from tests.support import full_count

# Over the 3,827 public games.
PLANS = {
    TaskType.LOOK: 3.6,
    TaskType.PICK: 4.2,
    TaskType.CLEAN: 6.3,
    TaskType.HEAT: 6.2,
    TaskType.COOL: 6.2,
    TaskType.TWO: 8.3,
}
STATIONS = {TaskType.CLEAN: "sinkbasin", TaskType.HEAT: "microwave", TaskType.COOL: "fridge"}


@lru_cache(maxsize=8)
def games(spec: HouseholdSpec, count: int, seeds: int = 6) -> tuple[Game, ...]:
    return tuple(
        compile_game(generate_game(i % seeds, i // seeds, "train", spec).payload)
        for i in range(count)
    )


def standard() -> tuple[Game, ...]:
    return games(STANDARD, full_count(360, 1200))


def where(game: Game, i: int) -> list[int]:
    return [r for r, mask in enumerate(game.start.contents) if mask >> i & 1]


def wanted(game: Game) -> list[int]:
    """Objects of the wanted class that are in a receptacle."""
    return [i for i in bits(game.goal.objects) if where(game, i)]


def behind_doors(game: Game) -> list[bool]:
    return [all(game.openable >> r & 1 for r in where(game, i)) for i in wanted(game)]


def share(hits: Iterator[bool]) -> float:
    return mean(map(bool, hits))


def test_plans_are_as_long_as_in_the_public_games() -> None:
    lengths: dict[TaskType, list[int]] = {}
    for game in standard():
        lengths.setdefault(game.task_type, []).append(len(game.walkthrough or ()))
    for kind, expected in PLANS.items():
        assert abs(mean(lengths[kind]) / expected - 1) < 0.15, kind


def test_sizes_are_those_of_the_public_games() -> None:
    # Receptacles 23.5 (6 to 54), objects 41.7 (17 to 73), locations 30.1 (13 to 61).
    found = standard()
    for sizes, expected, low, high in (
        ([len(g.recs) for g in found], 23.5, 6, 60),
        ([len(g.objs) for g in found], 41.7, 12, 80),
        ([len(g.locs) for g in found], 30.1, 10, 70),
    ):
        assert abs(mean(sizes) / expected - 1) < 0.15
        assert low <= min(sizes)
        assert max(sizes) <= high
    assert max(len(g.recs) for g in found) > 40, "large kitchens are missing"


def test_awkwardness_is_as_common_as_in_the_public_games() -> None:
    found = standard()
    shared = share(any(len(here) > 1 for here in g.recs_at) for g in found)
    assert 0.64 < shared < 0.89  # public: 74 %
    twice = share(any(len(where(g, i)) > 1 for i in range(len(g.objs))) for g in found)
    assert 0.26 < twice < 0.50  # public: 39 %
    anything = {cls.lower() for held in class_tables().can.values() for cls in held}
    dead = share(
        any(g.obj_class[i] not in anything and where(g, i) for i in bits(g.pickupable))
        for g in found
    )
    assert 0.15 < dead < 0.37  # public: 26 %
    odd = share(
        any(
            where(g, i) and not any(g.start.at[g.rec_loc[r]] >> i & 1 for r in where(g, i))
            for i in range(len(g.objs))
        )
        for g in found
    )
    assert 0.03 < odd < 0.12  # public: 7 %
    floor = share(any(not where(g, i) for i in bits(g.pickupable)) for g in found)
    assert 0.2 < floor < 0.9


@pytest.mark.parametrize(
    ("cls", "expected"),
    [("cabinet", 0.82), ("drawer", 0.84), ("safe", 0.87), ("microwave", 1.0), ("fridge", 1.0)],
)
def test_doors_are_as_common_as_in_the_public_games(cls: str, expected: float) -> None:
    # By room, not by game: a room stands still however many games are played in it.
    rooms = {g.rec_ids: g for g in standard()}.values()
    doors = [
        g.openable >> r & 1 for g in rooms for r, name in enumerate(g.rec_class) if name == cls
    ]
    deviation = (expected * (1 - expected) / len(doors)) ** 0.5
    assert abs(mean(doors) - expected) <= 4 * deviation


def test_only_wanted_things_in_the_fridge_are_cool_and_none_starts_at_its_station() -> None:
    cool = 0
    for game in standard():
        chilled = [
            i for i in wanted(game)
            if game.coolable >> i & 1 and any(game.fridges >> r & 1 for r in where(game, i))
        ]  # fmt: skip
        assert list(bits(game.start.cool)) == sorted(chilled)
        cool += bool(chilled)
        station = STATIONS.get(game.task_type)
        for i in wanted(game):
            assert station not in [game.rec_class[r] for r in where(game, i)]
    assert cool > 5


def test_rooms_have_what_rooms_of_their_kind_have() -> None:
    figures = room_figures()
    assert set(figures.rooms) == set(ROOMS)
    for room, entry in figures.rooms.items():
        table = class_tables().receptacles[room]
        assert set(entry.receptacles) <= set(table)
        for cls, numbers in entry.receptacles.items():
            low, _, high = table[cls]
            assert low <= min(numbers) <= max(numbers) <= high


@pytest.mark.parametrize("preset", [SMALL, STANDARD], ids=["small", "standard"])
@pytest.mark.parametrize("depth", [0.0, 1.0])
def test_depth_hides_all_wanted_objects_or_none(preset: HouseholdSpec, depth: float) -> None:
    for game in games(replace(preset, depth=depth), 60):
        assert set(behind_doors(game)) == {depth == 1.0}
        opened = [c for c in game.walkthrough or () if c.startswith("open")]
        if depth:
            assert opened, game.walkthrough


def test_depth_is_the_share_of_games_and_makes_plans_longer() -> None:
    half = games(replace(STANDARD, depth=0.5), 240)
    assert 0.38 < share(all(behind_doors(g)) for g in half) < 0.62
    lengths = [
        mean(len(g.walkthrough or ()) for g in games(replace(STANDARD, depth=depth), 60))
        for depth in (0.0, 1.0)
    ]
    assert lengths[1] > lengths[0] + 0.7


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("distractors", [0, 7, 40])
def test_distractors_are_what_the_task_does_not_need(extras: bool, distractors: int) -> None:
    spec = HouseholdSpec(12, extras=extras, distractors=distractors)
    for game in games(spec, 18):
        needed = 2 if game.task_type in (TaskType.TWO, TaskType.LOOK) else 1
        placed = [i for i in range(len(game.objs)) if where(game, i)]
        assert len(placed) == needed + distractors


def test_size_is_the_number_of_receptacles() -> None:
    for size in (6, 14, 30):
        assert {len(g.recs) for g in games(replace(STANDARD, receptacles=size), 18)} == {size}
    few, many = (
        mean(len(admissible(g, g.start)) for g in games(replace(STANDARD, receptacles=n), 18))
        for n in (6, 30)
    )
    assert many == few + 24


def test_a_knob_leaves_the_rooms_alone() -> None:
    made: list[dict[int, tuple[str, ...]]] = []
    for spec in (STANDARD, replace(STANDARD, depth=1.0), replace(STANDARD, distractors=3)):
        made.append({})
        for i in range(60):
            game = generate_game(0, i, "train", spec)
            scene = game.traj_data["scene"]["scene_num"]
            made[-1][scene] = compile_game(game.payload).rec_ids
    common = made[0].keys() & made[1].keys() & made[2].keys()
    assert len(common) > 5
    assert all(made[0][s] == made[1][s] == made[2][s] for s in common)


def test_all_games_load_and_are_won_by_shortest_plans() -> None:
    planner = ALFWorldPlanner()
    count = full_count(90, 3000)
    seen: set[str] = set()
    for number in range(count):
        # The indices of a split run through the task types; seeds and splits turn slowly.
        seed, index = divmod(number, 30)
        game = compile_game(generate_game(seed, index, SPLITS[seed % 3], STANDARD).payload)
        seen.add(game.revision)
        plan = planner.plan(PrivilegedView(game, game.start, None)).actions
        assert len(plan) == len(game.walkthrough or ())
        assert 3 <= len(plan) <= 12
        for commands in (plan, game.walkthrough or ()):
            state = game.start
            for command in commands:
                assert not won(game, state)
                state, _, accepted = step(game, state, command)
                assert accepted
            assert won(game, state)
    assert len(seen) == count


@pytest.mark.reference
@pytest.mark.parametrize("number", range(full_count(6, 60)))
def test_original_engine_agrees_in_lock_step(reference: None, number: int) -> None:
    """One standard game of each type (full count: ten), from all splits, through walk and plan."""
    from agent_envs.alfworld.original.textworld_engine import TextWorldGame

    # A full-size kitchen takes the original engine many seconds to load.
    rooms = tuple(ROOMS) if full_count(0, 1) or number == 4 else ("bathroom", "bedroom", "kitchen")
    size = None if full_count(0, 1) or number in (1, 4) else 8
    spec = replace(STANDARD, rooms=rooms, receptacles=size, objects=size and 10)
    made = generate_game(number // 6, number, SPLITS[number % 3], spec)
    game = compile_game(made.payload)
    walk, steps = MixedWalk(game, number), full_count(12, 40)
    with TextWorldGame(made.payload) as original:
        assert lockstep(made.task_id, game, original, walk, steps).differences == ()
        plan = iter(made.payload["walkthrough"])

        def follow(state: State) -> str:
            assert not won(game, state)
            return str(next(plan))

        length = len(made.payload["walkthrough"])
        result = lockstep(made.task_id, game, original, follow, length)
        assert (result.steps, result.differences) == (length, ())
