"""What keeping many games and episodes alive costs in memory, and how fast a large set opens."""

from __future__ import annotations

import gc
import json
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium
import numpy as np

from agent_envs.alfworld import engine
from agent_envs.alfworld.compile import compile_game
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.households.generator import write_tree
from agent_envs.alfworld.households.spec import SMALL
from trainer.bench.alfworld import cache_at

LIVE_GAMES = 100
LIVE_STEPS = 10
SAMPLED_GAMES = 10


def measure(games: GameSet, seed: int, live: int, index: int) -> dict[str, object]:
    """Memory of games, of their caches and of running environments; opening of a large tree.

    Args:
        games: where the games come from.
        seed: of the walks that fill the caches.
        live: environments that run at once; 0 leaves that out.
        index: games of the tree; 0 leaves that out.
    """
    ids = games.task_ids()[:LIVE_GAMES]
    payloads = [json.dumps(dict(games.payload(i))).encode() for i in ids[:SAMPLED_GAMES]]
    figures: dict[str, object] = dict(game_memory(payloads, seed))
    if live:
        figures |= {
            "live_envs": live,
            "live_games": len(ids),
            "live_mb": live_episodes_mb(games, ids, live, LIVE_STEPS),
        }
    if index:
        first, again = index_seconds(index)
        figures |= {"index_games": index, "index_first_s": first, "index_s": again}
    return figures


def live_episodes_mb(games: GameSet, task_ids: Sequence[str], episodes: int, steps: int) -> float:
    """MiB that `episodes` running episodes take beyond the compiled games that they share.

    Every episode is an environment of its own as `gymnasium.make` returns it, `steps` commands
    into its game. What the allocator of Python hands out is counted.
    """
    for task_id in task_ids:
        _remember(games, task_id, steps)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        envs = []
        for number in range(episodes):
            env = gymnasium.make("SeroALFWorld-v0", data=games, split=None)
            _play(env, task_ids[number % len(task_ids)], steps)
            envs.append(env)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    for env in envs:
        env.close()
    return taken / 2**20


def _play(env: gymnasium.Env[str, str], task_id: str, steps: int) -> None:
    _, info = env.reset(seed=0, options={"task_id": task_id})
    for turn in range(steps):
        commands = info["admissible_actions"]
        _, _, terminated, truncated, info = env.step(commands[turn % len(commands)])
        if terminated or truncated:
            return


def _remember(games: GameSet, task_id: str, steps: int) -> None:
    """Compile a game and fill its memo with the walk that the episodes will take."""
    env = gymnasium.make("SeroALFWorld-v0", data=games, split=None)
    _play(env, task_id, steps)
    env.close()


def game_memory(payloads: Sequence[bytes], seed: int) -> dict[str, float]:
    """KiB of a compiled game, and of its full memo of command lists (mean over `payloads`).

    The memo is the engine's only cache: `engine.MEMO_LIMIT` lists a game, then it starts anew.
    """
    tables: list[int] = []
    memos: list[int] = []
    for number, payload in enumerate(payloads):
        rng = np.random.default_rng([seed, number])
        compile_game(payload)  # what a first compilation leaves behind belongs to no game
        gc.collect()
        tracemalloc.start()
        try:
            game = compile_game(payload)
            gc.collect()
            tables.append(tracemalloc.get_traced_memory()[0])
            state = game.start
            for _ in range(50 * engine.MEMO_LIMIT):
                commands = engine.admissible(game, state)
                if len(game.words.memo) == engine.MEMO_LIMIT:
                    break
                state = engine.step(game, state, commands[int(rng.integers(len(commands)))])[0]
            gc.collect()
            memos.append(tracemalloc.get_traced_memory()[0] - tables[-1])
        finally:
            tracemalloc.stop()
    return {
        "game_kib": sum(tables) / len(tables) / 1024,
        "memo_kib": sum(memos) / len(memos) / 1024,
        "memo_limit": engine.MEMO_LIMIT,
    }


def index_seconds(number: int) -> tuple[float, float]:
    """Seconds to open a generated tree of `number` games: the first time, and from the cache.

    The second opening looks at every file again, and reads none.
    """
    with TemporaryDirectory() as folder, cache_at(str(Path(folder) / "cache")):
        write_tree(Path(folder) / "games", counts={"train": number}, spec=SMALL)
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            found = len(GameSet.from_path(Path(folder) / "games"))
            seconds.append(time.perf_counter() - begin)
            assert found == number
    return seconds[0], seconds[1]
