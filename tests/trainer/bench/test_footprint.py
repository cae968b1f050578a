"""What the benchmark says of memory and of opening a tree: it counts what it says it counts."""

from __future__ import annotations

import json

from agent_envs.alfworld import engine
from agent_envs.alfworld.households.generator import generate_game_set
from agent_envs.alfworld.households.spec import SMALL
from trainer.bench import footprint


def test_running_envs_share_their_games() -> None:
    games = generate_game_set(3, {"train": 4})
    ids = games.task_ids()
    few, many = (footprint.live_episodes_mb(games, ids, number, 5) for number in (20, 60))
    # Three times the envs take about three times the memory, none of it a game's.
    assert 2.0 < many / few < 4.0
    game_kib = footprint.game_memory([json.dumps(dict(games.payload(ids[0]))).encode()], 0)
    assert many * 1024 / 60 < game_kib["game_kib"]


def test_the_memo_of_a_game_is_filled_to_its_limit() -> None:
    games = generate_game_set(3, {"train": 1})
    payload = json.dumps(dict(games.payload(games.task_ids()[0]))).encode()
    figures = footprint.game_memory([payload], 0)
    assert figures["memo_limit"] == engine.MEMO_LIMIT
    # A list of commands holds at least a few dozen references of 8 bytes.
    assert figures["memo_kib"] > engine.MEMO_LIMIT * 100 / 1024


def test_everything_that_is_printed_is_measured() -> None:
    games = generate_game_set(3, {"train": 3}, SMALL)
    figures = footprint.measure(games, seed=0, live=5, index=12)
    assert figures["live_games"] == 3
    assert figures["index_games"] == 12
    assert all(
        isinstance(figures[name], float) and figures[name] > 0.0  # type: ignore[operator]
        for name in ("game_kib", "memo_kib", "live_mb", "index_first_s", "index_s")
    )
    assert "live_mb" not in footprint.measure(games, seed=0, live=0, index=0)
