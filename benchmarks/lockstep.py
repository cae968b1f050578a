"""Both engines side by side on your games: do they say the same, step for step?

    python benchmarks/lockstep.py --games path/to/json_2.1.1 --n 50

Walks through each game with seeded commands (planned, admissible, and ones that do not apply) and
compares observation, admissible commands in their order, and whether the game is won. Needs the
original engine (extra `reference`), which takes two seconds to load a game and a tenth for a step.
Exit code 0: no difference; 1: there is one, and the first of them are shown; 2: nothing compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_envs.alfworld.games import GameSet, load_game_set
from agent_envs.alfworld.games.game_index import NATIVE
from agent_envs.alfworld.model import Game, PrivilegedView, State
from agent_envs.alfworld.original.lockstep import Mismatch, Original, lockstep
from agent_envs.alfworld.original.lockstep_walks import MixedWalk
from agent_envs.alfworld.original.textworld_engine import TextWorldGame
from agent_envs.errors import DataError, MissingExtra, SeroError
from oracles.alfworld_planner import ALFWorldPlanner
from trainer.bench.alfworld import choose_games

SHOWN = 5
_PLANNER = ALFWorldPlanner()


def plan(game: Game, state: State) -> Sequence[str]:
    """The commands of a shortest plan."""
    return _PLANNER.plan(PrivilegedView(game, state, None), budget_s=1.0).actions


def run(
    games: GameSet,
    number: int,
    steps: int,
    seed: int,
    original: Callable[[Any], Any],
    progress: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Compare both engines on `number` games (or all, if there are fewer); the counts.

    `original` makes the original engine from a game file's content.
    """
    done = compared = left = 0
    differences: list[Mismatch] = []
    met: Counter[str] = Counter()
    chosen = choose_games(games, min(number, len(games)), seed)
    for task_id in chosen:
        if games.meta(task_id).engine != NATIVE:  # known, and played by the original alone
            left += 1
            continue
        try:
            game = games.load(task_id)
            real: Original = original(games.payload(task_id))
        except MissingExtra:
            raise
        except DataError as error:  # one engine plays it, the other does not
            differences.append(Mismatch(task_id, 0, None, "game", "a playable game", str(error)))
            continue
        try:
            walk = MixedWalk(game, f"{seed}/{task_id}", plan)
            result = lockstep(task_id, game, real, walk, steps)
        finally:
            real.close()  # type: ignore[attr-defined]
        done, compared = done + 1, compared + result.steps
        met.update(result.situations)
        differences.extend(result.differences)
        progress(f"{'differs' if result.differences else 'equal':8}{task_id}")
    return {
        "source": games.source,
        "manifest_hash": games.manifest_hash,
        "games": done,
        "steps": compared,
        "games_of_other_rules": left,
        "games_that_differ": len({difference.task_id for difference in differences}),
        "differences": [shown(difference) for difference in differences[:SHOWN]],
        "met": dict(sorted(met.items())),
        "seed": seed,
    }


def shown(difference: Mismatch) -> dict[str, Any]:
    """A difference as JSON values; of two lists only what the other one lacks."""
    expected, found = difference.expected, difference.found
    if isinstance(expected, list) and isinstance(found, list) and set(expected) != set(found):
        expected, found = sorted({*expected} - {*found}), sorted({*found} - {*expected})
    return {
        "task_id": difference.task_id,
        "step": difference.step,
        "action": difference.action,
        "what": difference.what,
        "original": expected,
        "ours": found,
    }


def report(figures: Mapping[str, Any]) -> None:
    """Print the counts for people."""
    print(f"\nmet, in steps: {', '.join(f'{k} {v}' for k, v in figures['met'].items())}")
    for difference in figures["differences"]:
        print(f"\n{difference['task_id']}, step {difference['step']}: {difference['action']!r}")
        for key in ("what", "original", "ours"):
            print(f"  {key:10}{difference[key]!r}")
    print(
        f"\n{figures['games']} games, {figures['steps']} steps, "
        f"{figures['games_that_differ']} games that differ, {figures['games_of_other_rules']} left "
        "out because their rules or wording are the original engine's alone"
    )


def main(words: Sequence[str] | None = None) -> int:
    """Parse the command line and compare; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--games", help="a tree, folder, archive or game file (default: the env's)")
    parser.add_argument("--n", type=int, default=10, help="how many games (default: 10)")
    parser.add_argument("--steps", type=int, default=40, help="commands per game (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="of games and walks (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    options = parser.parse_args(words)
    try:
        games = load_game_set(options.games)
        figures = run(games, options.n, options.steps, options.seed, TextWorldGame)
    except SeroError as error:
        print(error, file=sys.stderr)
        return 2
    report(figures)
    if options.json:
        print(json.dumps(figures))
    if figures["games_that_differ"]:
        return 1
    return 0 if figures["steps"] else 2


if __name__ == "__main__":
    sys.exit(main())
