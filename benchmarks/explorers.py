"""Our explorer beside ALFWorld's hand-coded expert: writes benchmarks/results/explorers.json.

    python benchmarks/explorers.py    # the games of $SERO_TEST_DATA, or --games PATH

Three players, each with every seed on every game: `explorer` is ours, `repaired` the original's
expert that notes what it puts down, `shipped` the original's as it comes. Both play as ALFWorld's
wrapper lets them: ``look`` first, and ``look`` wherever their command is not admissible. All play
on the native engine, which says the same as the original one. Needs the extra `reference`.

Exit code 0: in each task type ours wins at least as many games within 50 steps as the repaired
original; 1: it does not; 2: nothing to play.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from agent_envs.alfworld import engine
from agent_envs.alfworld.games import GameSet, load_game_set
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, PrivilegedView, TaskType
from agent_envs.alfworld.text import intro
from agent_envs.errors import MissingExtra
from oracles.alfworld_explorer import ALFWorldExplorer
from oracles.alfworld_original import OriginalHandCoded
from oracles.base import Oracle, PlanStatus
from trainer.cli.common import machine

LIMIT = 50
"""Steps of an episode in the field."""
EXPERT_LIMIT = 200
"""Steps after which ALFWorld's wrapper gives its expert up."""
CAP = 1000
OURS, REPAIRED, SHIPPED = "explorer", "repaired", "shipped"
EVERY = "all"
"""As a task type: all of them."""


def players(cap: int = CAP) -> dict[str, Callable[[int], Oracle[Any]]]:
    """Who plays: by name, the player for a seed. `cap`: steps of an episode."""

    def original(repaired: bool) -> Callable[[int], Oracle[Any]]:
        return lambda seed: OriginalHandCoded(
            seed=seed, repaired=repaired, filler=True, max_steps=cap + 1
        )

    return {
        OURS: lambda seed: ALFWorldExplorer(seed=seed),
        REPAIRED: original(True),
        SHIPPED: original(False),
    }


class Episode(NamedTuple):
    """How one player fared in one game."""

    kind: str
    steps: int | None
    """Commands up to the win; None: not won."""
    why: str = ""
    """Why it was not won."""


def play(game: Game, oracle: Oracle[Any], cap: int = CAP) -> Episode:
    """Let `oracle` play from the start until it wins, stops or has given `cap` commands."""
    kind, state, text = game.task_type.value, game.start, intro(game, game.start)

    def view() -> PrivilegedView | None:
        return PrivilegedView(game, state, None) if oracle.privileged else None

    pursuit = oracle.start(view(), ())
    for number in range(1, cap + 1):
        decision, pursuit = oracle.act(pursuit, view(), text)
        if decision.status is not PlanStatus.FOUND or decision.action is None:
            return Episode(kind, None, f"{decision.status}: {decision.detail}")
        state, text, _ = engine.step(game, state, decision.action)
        if won(game, state):
            return Episode(kind, number)
    return Episode(kind, None, f"no win in {cap} steps")


def figures(episodes: Sequence[Episode]) -> dict[str, dict[str, Any]]:
    """Counts by task type, and of `EVERY`; steps are those of won episodes, None without any."""
    found = {}
    for kind in (*map(str, TaskType), EVERY):
        mine = [episode for episode in episodes if kind in (episode.kind, EVERY)]
        steps = [episode.steps for episode in mine if episode.steps is not None]
        found[kind] = {
            "episodes": len(mine),
            "won_within_limit": sum(number <= LIMIT for number in steps),
            "won_within_expert_limit": sum(number <= EXPERT_LIMIT for number in steps),
            "won": len(steps),
            "mean_steps": mean(steps) if steps else None,
            "most_steps": max(steps, default=None),
            "not_won": dict(Counter(e.why for e in mine if e.steps is None)),
        }
    return found


def compare(
    games: GameSet,
    task_ids: Sequence[str],
    seeds: Sequence[int],
    cap: int = CAP,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """All players with all seeds on all of the games: `figures` by player."""
    found = {}
    for name, make in players(cap).items():
        episodes = []
        for seed in seeds:
            for task_id in task_ids:
                episodes.append(play(games.load(task_id), make(seed), cap))
            progress(f"{name}, seed {seed}: {len(task_ids)} games")
        found[name] = figures(episodes)
    return found


def behind(by_player: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, tuple[int, int]]:
    """Task types where ours wins fewer within `LIMIT` than the repaired original: both counts."""
    counts = {
        kind: tuple(by_player[name][kind]["won_within_limit"] for name in (OURS, REPAIRED))
        for kind in by_player[OURS]
    }
    return {kind: (ours, theirs) for kind, (ours, theirs) in counts.items() if ours < theirs}


def table(by_player: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The figures as a Markdown table: wins within 50 steps / within 200 / at all, mean steps."""
    names = list(by_player)
    lines = [
        "| task type | episodes | " + " | ".join(names) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    for kind, row in by_player[names[0]].items():
        cells = []
        for name in names:
            cell = by_player[name][kind]
            steps = "-" if cell["mean_steps"] is None else f"{cell['mean_steps']:.1f}"
            wins = (cell["won_within_limit"], cell["won_within_expert_limit"], cell["won"])
            cells.append(f"{' / '.join(map(str, wins))}, {steps}")
        lines.append(f"| {kind} | {row['episodes']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print the table, keep the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--games", help="game tree or archive; default: $SERO_TEST_DATA")
    parser.add_argument("--split", default="train")
    parser.add_argument("--seeds", type=int, default=3, help="so many, from 0")
    parser.add_argument("--dry", action="store_true", help="print the table, keep nothing")
    args = parser.parse_args(argv)
    data = os.environ.get("SERO_TEST_DATA")
    source = args.games or (data and str(Path(data) / "alfworld_games.tar.xz"))
    if not source:
        print("Nothing to play: give --games, or set SERO_TEST_DATA.", file=sys.stderr)
        return 2
    games = load_game_set(source)
    task_ids = games.task_ids(args.split)
    if not task_ids or args.seeds < 1:
        print(f"Nothing to play: {games.source} has no split {args.split!r}.", file=sys.stderr)
        return 2
    seeds = list(range(args.seeds))
    try:
        by_player = compare(games, task_ids, seeds, progress=lambda line: print(line, flush=True))
    except MissingExtra as error:
        print(error, file=sys.stderr)
        return 2
    print(table(by_player))
    if not args.dry:
        import record  # beside this file; not a module of the package

        record.write(
            "explorers",
            {
                "source": Path(games.source).name,
                "manifest_hash": games.manifest_hash,
                "split": args.split,
                "games": len(task_ids),
                "seeds": seeds,
                "limit": LIMIT,
                "expert_limit": EXPERT_LIMIT,
                "cap": CAP,
                "players": by_player,
                "machine": machine(),
            },
        )
    worse = behind(by_player)
    for kind, (ours, theirs) in worse.items():
        print(f"{kind}: ours wins {ours} within {LIMIT} steps, the repaired original {theirs}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
