"""GraphGPO advantages as a plain loop: the yardstick for `trainer.objectives.graphgpo`.

    PYTHONPATH=. python benchmarks/reference_graph.py

Times both on 16 groups of 8 trajectories with 50 turns. The loop keeps a dictionary for each
group, searches it with a heap (Dijkstra) and shares no code with the vectorised form.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

Node = tuple[str, int]
GOAL: Node = ("success", 0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One row: what `graphgpo_advantages` takes as vectors."""

    reward: float
    valid: bool
    uid: int
    tid: int
    t: int
    state: int
    next_state: int
    success: bool
    cost: float = 1.0


def graphgpo_loop(
    turns: Sequence[Turn],
    *,
    flavor: str = "paper",
    omega: float = 0.1,
    success_reward: float = 10.0,
    w_step: float = 1.0,
    w_ep: float = 1.0,
    use_std: bool = True,
    normalize_distance: bool = False,
    ddof: int = 1,
    eps: float = 1e-6,
    penalty: float = 0.1,
) -> list[float]:
    """A = w_step * A^G + w_ep * A^E of each turn; options as `graphgpo_advantages` has them."""
    advantage = [0.0] * len(turns)
    rows_of: dict[int, list[int]] = defaultdict(list)
    for row, turn in enumerate(turns):
        rows_of[turn.uid].append(row)
    for rows in rows_of.values():
        target = _targets(turns, rows)
        distance = _distances(turns, rows, target)
        score: dict[int, float] = {}
        for row in rows:
            exponent = distance[target[row]] + turns[row].cost
            if normalize_distance:
                exponent -= distance["state", turns[row].state]
            elif flavor != "paper":
                exponent -= 1
            score[row] = success_reward * omega**exponent - penalty * (not turns[row].valid)
        pools: dict[Hashable, list[int]] = defaultdict(list)
        for row in rows:
            pools[turns[row].state].append(row)
        episode, pool = _episode(turns, rows, flavor, penalty)
        standard = _standard([episode[row] for row in pool], use_std, ddof, eps)
        for row in rows:
            advantage[row] += w_ep * standard(episode[row])
        for members in pools.values():
            standard = _standard([score[row] for row in members], use_std, ddof, eps)
            for row in members:
                advantage[row] += w_step * standard(score[row])
    return advantage


def _targets(turns: Sequence[Turn], rows: Sequence[int]) -> dict[int, Node]:
    last: dict[int, int] = {}
    for row in rows:
        last[turns[row].tid] = max(last.get(turns[row].tid, -1), turns[row].t)
    return {
        row: GOAL
        if turns[row].success and turns[row].t == last[turns[row].tid]
        else ("state", turns[row].next_state)
        for row in rows
    }


def _distances(
    turns: Sequence[Turn], rows: Sequence[int], target: dict[int, Node]
) -> dict[Node, float]:
    """Dijkstra from the goal against the edges."""
    into: dict[Node, dict[Node, float]] = defaultdict(dict)
    nodes = {GOAL}
    for row in rows:
        source, cost = ("state", turns[row].state), turns[row].cost
        nodes |= {source, target[row]}
        before = into[target[row]]
        before[source] = min(before.get(source, math.inf), cost)
    found: dict[Node, float] = {}
    heap = [(0.0, GOAL)]
    while heap:
        distance, node = heapq.heappop(heap)
        if node in found:
            continue
        found[node] = distance
        for source, cost in into[node].items():
            if source not in found:
                heapq.heappush(heap, (distance + cost, source))
    furthest = max(found.values())
    return {node: found.get(node, furthest + 1) for node in nodes}


def _episode(
    turns: Sequence[Turn], rows: Sequence[int], flavor: str, penalty: float
) -> tuple[dict[int, float], list[int]]:
    """Episode score of each row, and the rows that make the pool."""
    total: dict[int, float] = defaultdict(float)
    broken: dict[int, int] = defaultdict(int)
    first: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: turns[row].t):
        total[turns[row].tid] += turns[row].reward
        broken[turns[row].tid] += not turns[row].valid
        first.setdefault(turns[row].tid, row)
    own = flavor != "paper"
    score = {
        row: total[turns[row].tid]
        - penalty * ((not turns[row].valid) if own else broken[turns[row].tid])
        for row in rows
    }
    return score, list(rows) if flavor == "code" else list(first.values())


def _standard(
    pool: Sequence[float], use_std: bool, ddof: int, eps: float
) -> Callable[[float], float]:
    """x -> (x - mean) / (std + eps) of the pool; 0 for a constant pool."""
    if max(pool) - min(pool) < 1e-8 * max(1.0, *(abs(value) for value in pool)):
        return lambda value: 0.0
    mean = math.fsum(pool) / len(pool)
    squares = math.fsum((value - mean) ** 2 for value in pool)
    divisor = math.sqrt(squares / (len(pool) - ddof)) + eps if use_std else 1.0
    return lambda value: (value - mean) / divisor


def random_turns(
    seed: int,
    groups: int = 4,
    trajectories: int = 6,
    longest: int = 8,
    states: int = 6,
    *,
    shortest: int = 1,
    win_rate: Sequence[float] = (0.5,),
) -> list[Turn]:
    """Seeded walks over a few states, so that loops, cycles and dead ends abound.

    Group i wins with probability `win_rate[i % len(win_rate)]`.
    """
    draw = random.Random(seed)
    turns: list[Turn] = []
    for uid in range(groups):
        chance = win_rate[uid % len(win_rate)]
        for i in range(trajectories):
            success = draw.random() < chance
            n = draw.randint(shortest, longest)
            walk = [draw.randrange(states) for _ in range(n + 1)]
            turns += [
                Turn(
                    reward=10.0 * success * (t == n - 1),
                    valid=draw.random() < 0.8,
                    uid=uid,
                    tid=uid * trajectories + i,
                    t=t,
                    state=walk[t],
                    next_state=walk[t + 1],
                    success=success,
                )
                for t in range(n)
            ]
    return turns


def main() -> None:
    """Print the milliseconds that each form takes on 16 x 8 trajectories of 50 turns."""
    import torch

    from trainer.objectives.graphgpo import graphgpo_advantages

    torch.set_num_threads(1)
    turns = random_turns(0, 16, 8, longest=50, states=120, shortest=50)
    columns = {
        name: torch.tensor([getattr(turn, name) for turn in turns])
        for name in ("reward", "valid", "uid", "tid", "t", "state", "next_state", "success")
    }
    for name, form in (
        ("loop", lambda: graphgpo_loop(turns)),
        ("vectorised", lambda: graphgpo_advantages(*columns.values())),
    ):
        took = []
        for _ in range(7):
            start = time.perf_counter()
            form()
            took.append(1000 * (time.perf_counter() - start))
        print(f"{name}: {sorted(took)[3]:.1f} ms for {len(turns)} turns")


if __name__ == "__main__":
    main()
