"""Speed of every base objective's advantages: writes benchmarks/results/advantages.json.

    make bench-advantages

One batch of 16 groups of 8 trajectories with 50 turns, on one thread. Each objective is timed
beside a plain loop (`reference_*.py`) that must give the same numbers in the same run. Times are
the process's own (CPU), the best of several, so that a busy machine does not decide. Exit code 0:
all numbers agree and no objective takes more than 50 ms. Comparing observations by similarity
grows with the number of different ones; it is measured and has no limit.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import record
from benchmarks.reference_advantages import gigpo_loop, grpo_loop, hgpo_loop
from benchmarks.reference_graph import graphgpo_loop, random_turns
from benchmarks.reference_tokens import (
    ppo_trajectory_loop,
    ppo_turnwise_loop,
    reinforce_pp_baseline_loop,
    reinforce_pp_loop,
    rloo_loop,
    turn_gae_loop,
)
from trainer.cli.common import machine
from trainer.objectives import dense_ids, grpo_advantages
from trainer.objectives.anchors import anchor_ids
from trainer.objectives.gigpo import gigpo_advantages
from trainer.objectives.graphgpo import graphgpo_advantages
from trainer.objectives.hgpo import hgpo_advantages
from trainer.objectives.ppo import ppo_trajectory, ppo_turnwise, turn_gae
from trainer.objectives.reinforce_pp import (
    reinforce_pp_advantages,
    reinforce_pp_baseline_advantages,
)
from trainer.objectives.rloo import rloo_advantages

GROUPS, TRAJECTORIES, TURNS, STATES, TOKENS = 16, 8, 50, 60, 32
LIMIT_MS = 50.0
TOLERANCE = 1e-9
SIMILARITY = 0.95
REPEATS = 9
PLACES = ("cabinet", "drawer", "shelf", "countertop", "fridge", "desk")
THINGS = ("apple", "mug", "plate", "bread", "knife", "book", "lamp", "cloth")


@dataclass(frozen=True, slots=True)
class Case:
    """One objective: the vectorised form, its loop (None: there is none) and whether 50 ms bind."""

    fast: Callable[[], Tensor]
    loop: Callable[[], Any] | None
    bound: bool = True


def batch() -> dict[str, Any]:
    """Seeded turns as the functions want them, and their observations."""
    turns = random_turns(
        0, GROUPS, TRAJECTORIES, TURNS, STATES, shortest=TURNS, win_rate=(0.0, 0.3, 0.6, 0.9, 1.0)
    )
    draw = random.Random(1)
    count = len(turns)
    sizes = [draw.randint(TOKENS // 2, TOKENS) for _ in range(count)]
    mask = torch.arange(TOKENS) < torch.tensor(sizes)[:, None]
    value = torch.randn(count, TOKENS, generator=torch.Generator().manual_seed(2)).double()
    rooms = [_observation(random.Random(1000 + state)) for state in range(STATES)]
    return {
        "turns": turns,
        "rows": (
            torch.tensor([turn.reward for turn in turns], dtype=torch.float64),
            torch.tensor([turn.valid for turn in turns]),
            torch.tensor([turn.uid for turn in turns]),
            torch.tensor([turn.tid for turn in turns]),
            torch.tensor([turn.t for turn in turns]),
        ),
        "success": torch.tensor([turn.success for turn in turns]),
        "before": [rooms[turn.state] for turn in turns],
        "after": [rooms[turn.next_state] for turn in turns],
        "sizes": torch.tensor(sizes),
        "mask": mask,
        "value": value,
        "mask_lists": mask.tolist(),
        "value_lists": value.tolist(),
    }


def _observation(draw: random.Random) -> str:
    """A sentence as long as an environment's."""
    place = draw.choice(PLACES)
    things = ", ".join(f"a {draw.choice(THINGS)} {n}" for n in draw.sample(range(1, 9), 5))
    return f"You arrive at {place} {draw.randint(1, 20)}. On the {place}, you see {things}."


def cases(b: dict[str, Any]) -> dict[str, Case]:
    """Every base objective by its name in the config, and the variants by similarity."""
    rows, mask, value = b["rows"], b["mask"], b["value"]
    rewards, valid, uid, tid, t = rows
    lists = b["value_lists"], b["mask_lists"]

    def anchors(similarity: float | None = None) -> Tensor:
        return anchor_ids(b["before"], uid, similarity=similarity)

    def plain_anchors(similarity: float | None = None) -> Tensor:
        return torch.tensor(_clusters(b["before"], uid.tolist(), similarity))

    def graph(similarity: float | None = None) -> Tensor:
        states = dense_ids([*b["before"], *b["after"]])
        count = len(b["before"])
        texts = list(dict.fromkeys([*b["before"], *b["after"]]))
        return graphgpo_advantages(
            *rows, states[:count], states[count:], b["success"],
            similarity=similarity, texts=texts if similarity else None,
        )  # fmt: skip

    grpo = Case(lambda: grpo_advantages(*rows), lambda: grpo_loop(*rows))
    return {
        **dict.fromkeys(("grpo", "dapo", "gspo"), grpo),
        "dr_grpo": Case(
            lambda: grpo_advantages(*rows, use_std=False), lambda: grpo_loop(*rows, use_std=False)
        ),
        "rloo": Case(lambda: rloo_advantages(*rows), lambda: rloo_loop(*rows)),
        "reinforce_pp": Case(
            lambda: reinforce_pp_advantages(rewards, valid, tid, mask)[0],
            lambda: reinforce_pp_loop(rewards, valid, tid, lists[1]),
        ),
        "reinforce_pp_baseline": Case(
            lambda: reinforce_pp_baseline_advantages(*rows[:4], b["sizes"], t),
            lambda: reinforce_pp_baseline_loop(*rows[:4], b["sizes"], t),
        ),
        "gigpo": Case(
            lambda: gigpo_advantages(*rows, anchors()), lambda: gigpo_loop(*rows, plain_anchors())
        ),
        "hgpo": Case(
            lambda: hgpo_advantages(*rows, anchors()), lambda: hgpo_loop(*rows, plain_anchors())
        ),
        "graphgpo": Case(graph, lambda: graphgpo_loop(b["turns"])),
        "ppo": Case(
            lambda: ppo_turnwise(rewards, valid, tid, value, mask).advantages,
            lambda: ppo_turnwise_loop(rewards, valid, tid, *lists),
        ),
        "ppo_trajectory": Case(
            lambda: ppo_trajectory(rewards, valid, tid, value, mask, t).advantages,
            lambda: ppo_trajectory_loop(rewards, valid, tid, *lists, t),
        ),
        "turn_gae": Case(
            lambda: turn_gae(rewards, valid, tid, value[:, 0], t).advantages,
            lambda: turn_gae_loop(rewards, valid, tid, value[:, 0].tolist(), t),
        ),
        "gigpo, similarity": Case(
            lambda: gigpo_advantages(*rows, anchors(SIMILARITY)),
            lambda: gigpo_loop(*rows, plain_anchors(SIMILARITY)),
            bound=False,
        ),
        "hgpo, similarity": Case(
            lambda: hgpo_advantages(*rows, anchors(SIMILARITY)),
            lambda: hgpo_loop(*rows, plain_anchors(SIMILARITY)),
            bound=False,
        ),
        "graphgpo, similarity": Case(lambda: graph(SIMILARITY), None, bound=False),
    }


def _clusters(texts: Sequence[str], uids: Sequence[int], similarity: float | None) -> list[int]:
    """Anchor ids the plain way: each row joins the first cluster whose first member is alike."""
    founders: dict[int, list[tuple[str, int]]] = {}
    found, ids = [], 0
    known: dict[tuple[int, str], int] = {}
    for text, uid in zip(texts, uids, strict=True):
        if (uid, text) not in known:
            for first, number in founders.setdefault(uid, []) if similarity else ():
                if SequenceMatcher(None, text, first).ratio() >= (similarity or 1.0):
                    known[uid, text] = number
                    break
            else:
                founders.setdefault(uid, []).append((text, ids))
                known[uid, text] = ids
                ids += 1
        found.append(known[uid, text])
    return found


def measure(case: Case) -> dict[str, Any]:
    """Milliseconds of both forms, and the largest difference between their numbers."""
    repeats = REPEATS if case.bound else 1
    got, ms = _timed(case.fast, repeats)
    figures: dict[str, Any] = {"ms": round(ms, 2), "limited": case.bound}
    if case.loop is None:
        return {**figures, "loop_ms": None, "difference": None}
    found, loop_ms = _timed(case.loop, 1)
    want = found if isinstance(found, Tensor) else torch.tensor(found, dtype=torch.float64)
    if not float(want.abs().max()) > 0.01:
        raise SystemExit("The batch teaches nothing: all advantages are 0.")
    difference = float((got - want).abs().max())
    return {**figures, "loop_ms": round(loop_ms, 1), "difference": difference}


def _timed(form: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """What it gives, and the best of its times."""
    best, result = float("inf"), None
    for _ in range(repeats):
        begin = time.process_time()
        result = form()
        best = min(best, 1000 * (time.process_time() - begin))
    return result, best


def main() -> int:
    """Time all, print a table, record it; the exit code."""
    torch.set_num_threads(1)
    results = {}
    slow, wrong = [], []
    for name, case in cases(batch()).items():
        figures = results[name] = measure(case)
        loop = "-" if figures["loop_ms"] is None else f"{figures['loop_ms']:.0f} ms"
        print(f"{name:<24} {figures['ms']:>9.2f} ms   loop {loop:>9}", flush=True)
        if case.bound and figures["ms"] > LIMIT_MS:
            slow.append(name)
        if figures["difference"] is not None and not figures["difference"] <= TOLERANCE:
            wrong.append(name)
    for name in slow:
        print(f"FAILED {name}: {results[name]['ms']} ms, the limit is {LIMIT_MS} ms")
    for name in wrong:
        print(f"FAILED {name}: differs from its loop by {results[name]['difference']}")
    record.write(
        "advantages",
        {
            "batch": {
                "groups": GROUPS, "trajectories": GROUPS * TRAJECTORIES, "turns": TURNS,
                "rows": GROUPS * TRAJECTORIES * TURNS, "tokens_of_a_reply": [TOKENS // 2, TOKENS],
                "distinct_observations": STATES, "similarity": SIMILARITY,
            },
            "methods": results,
            "limit_ms": LIMIT_MS,
            "tolerance": TOLERANCE,
            "slow": slow,
            "wrong": wrong,
            "machine": {**machine(), "torch": torch.__version__, "threads": 1},
        },
    )  # fmt: skip
    return 1 if slow or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
