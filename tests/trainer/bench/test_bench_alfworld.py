"""The benchmark's own arithmetic, its walks, and its verdict. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agent_envs.alfworld import engine
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import SMALL
from agent_envs.errors import DataError
from trainer.bench import alfworld as bench
from trainer.bench.walks import seeded_walk


@pytest.fixture(scope="module")
def games() -> GameSet:
    return generate_game_set(3, {"train": 12}, SMALL)


def test_walks_are_admissible_new_and_never_win() -> None:
    games = generate_game_set(3, {"train": 12})
    unseen = []
    for number, task_id in enumerate(games.task_ids()):
        game = games.load(task_id)
        walk = seeded_walk(game, 40, np.random.default_rng(number))
        state, seen = game.start, {game.start}
        for command in walk.commands:
            assert command in engine.admissible(game, state)
            state = engine.step(game, state, command)[0]
            seen.add(state)
            assert not won(game, state)
        assert len(walk.commands) == 40
        assert walk.unseen == len(seen) - 1
        unseen.append(walk.unseen)
    # A walk can run dry where the hands are full of what no place here takes back.
    assert sum(unseen) >= 0.95 * 40 * len(unseen)
    assert min(unseen) >= 30


def test_walks_depend_on_the_seed_alone(games: GameSet) -> None:
    game = games.load(games.task_ids()[0])
    walks = [seeded_walk(game, 20, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert walks[0] == walks[1]
    assert walks[0] != walks[2]


def test_games_are_chosen_across_task_types(games: GameSet) -> None:
    chosen = bench.choose_games(games, 6, seed=0)
    assert len({games.meta(task_id).task_type for task_id in chosen}) == 6
    assert chosen == bench.choose_games(games, 6, seed=0)
    with pytest.raises(DataError, match="needs 13 games"):
        bench.choose_games(games, 13, seed=0)


def test_figures_by_hand() -> None:
    times = bench.Times(
        compile=[0.002], reset=[0.003, 0.001, 0.002], reset_first=[0.02],
        gym_walk=[0.001, 0.9, 0.001],
        cold_walk=[0.0005], warm_walk=[0.00025], snapshot=[1e-6], restore=[4e-6],
        plan=[0.001, 0.003], real_reset=[2.0, 9.0, 1.0], real_walk=[4.0, 5.0, 3.0],
        real_warm_walk=[2.0], real_replay=[5.0], real_plan=[1.0, 7.0],
    )  # fmt: skip
    figures = bench.figures(times, steps=50)
    assert figures["ratio_gym"] == pytest.approx(4.0 / 0.001)
    assert figures["ratio_engine_cold"] == pytest.approx(4.0 / 0.0005)
    assert figures["ratio_engine_warm"] == pytest.approx(2.0 / 0.00025)
    assert figures["ratio_reset"] == pytest.approx(2.0 / 0.002)
    assert figures["ratio_reset_first"] == pytest.approx(2.0 / 0.02)
    assert figures["ratio_restore"] == pytest.approx(5.0 / 5e-6)
    assert figures["ratio_planner"] == pytest.approx(4.0 / 0.002)
    assert figures["steps_per_s"] == pytest.approx(50_000)
    assert figures["compile_ms"] == pytest.approx(2.0)


def test_verdict() -> None:
    result = {**bench.THRESHOLDS, "mismatches": 0, "plans_longer_than_original": 0}
    assert bench.missed(result) == []
    for name, least in bench.THRESHOLDS.items():
        (reason,) = bench.missed({**result, name: 0.99 * least})
        assert name in reason
        # Not a number is no success.
        assert bench.missed({**result, name: float("nan")})
    assert bench.missed({**result, "mismatches": 1})
    assert bench.missed({**result, "plans_longer_than_original": 1})


def test_both_sides_walk_the_same_way(games: GameSet, reference: None, tmp_path: Path) -> None:
    task_id = games.task_ids()[0]
    payload = json.dumps(dict(games.payload(task_id))).encode()
    walk = seeded_walk(games.load(task_id), 5, np.random.default_rng(0))
    times = bench.Times()
    record = bench.measure_real(payload, walk, times, again=True)
    assert len(record) == 6
    assert bench.mismatches(payload, walk, record) == 0
    record[3] = record[3]._replace(observation=record[3].observation + "!")
    assert bench.mismatches(payload, walk, record) == 1
    bench.lay_out(games, [task_id], tmp_path)
    bench.measure_ours(tmp_path, task_id, walk, times, again=True)
    ours, original = bench.measure_planners(payload, 60.0, times)
    assert original is not None
    assert len(games.walkthrough(task_id) or ()) == ours <= original
    given_up = bench.measure_planners(payload, 0.0, times)
    assert given_up == (ours, None)
    assert times.real_plan[1] == 0.0
    assert all(getattr(times, name) for name in bench.Times.__slots__)
