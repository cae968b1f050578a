"""Turns made by hand, and the tensors that the pure functions want for them.

Three groups: one of different outcomes, one where all win, one where all lose. The tensors are
written from the same table as the turns, not computed from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.fakes import make_turn
from trainer.rollouts.data import Turn

# Trajectory: group, states of its turns, end, tokens of each reply, malformed replies.
# An end is "win", the state in which the budget of steps ran out, or "over": ended, not won.
TRAJECTORIES: tuple[tuple[str, str, str, str, tuple[int, ...], tuple[int, ...]], ...] = (
    ("g0", "a", "pq", "win", (2, 3), ()),
    ("g0", "b", "pqrq", "r", (1, 2, 4, 2), (2,)),
    ("g0", "c", "ppq", "win", (3, 3, 1), (0,)),
    ("g0", "d", "r", "over", (2,), ()),
    ("g1", "e", "p", "win", (2,), ()),
    ("g1", "f", "pr", "win", (5, 1), ()),
    ("g2", "h", "pq", "q", (2, 2), ()),
    ("g2", "i", "p", "over", (3,), (0,)),
)
OVER = {"d": 3, "i": 4}
"""States that nothing leaves, one for each trajectory that the environment ended."""
STATES = {"p": 0, "q": 1, "r": 2}
REWARD = 10.0


@dataclass(frozen=True)
class Hand:
    """The turns, and (M,) tensors. `success` is the trajectory's, on each of its turns."""

    turns: list[Turn]
    rewards: Tensor
    valid: Tensor
    uid: Tensor
    tid: Tensor
    t: Tensor
    anchor: Tensor
    after: Tensor
    success: Tensor
    tokens: Tensor

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.rewards, self.valid, self.uid, self.tid, self.t

    @property
    def mask(self) -> Tensor:
        """bool (M, T), true on the tokens of each reply."""
        return torch.arange(int(self.tokens.max()))[None] < self.tokens[:, None]


def _admissible(state: str) -> tuple[str, ...]:
    return (f"take {state}", "look")


def hand() -> Hand:
    """All of them, in the order of the table."""
    turns, columns = [], []
    for number, (uid, tid, states, end, tokens, malformed) in enumerate(TRAJECTORIES):
        for t, state in enumerate(states):
            done = t == len(states) - 1
            won = end == "win"
            following = states[t + 1] if not done else end
            cut = done and end in STATES
            turns.append(
                make_turn(
                    uid=uid,
                    tid=tid,
                    t=t,
                    observation=state,
                    anchor=state,
                    admissible=_admissible(state),
                    next_observation=following,
                    next_admissible=_admissible(end) if cut else (),
                    format_valid=t not in malformed,
                    done=done,
                    success=done and won,
                    reward=float(done and won),
                    stop_reason=("success" if won else "step_limit" if cut else "purchase")
                    if done
                    else None,
                    response_ids=tuple(range(4, 4 + tokens[t])),
                    logprobs=tuple(-0.5 - 0.125 * k for k in range(tokens[t])),
                )
            )
            after = STATES.get(following, OVER.get(tid, 99) if done else -1)
            columns.append(
                (
                    REWARD * (done and won), t not in malformed, int(uid[1]), number, t,
                    STATES[state], after, won, tokens[t],
                )
            )  # fmt: skip
    table: list[Any] = list(zip(*columns, strict=True))
    kinds = (torch.float64, torch.bool, *[torch.int64] * 5, torch.bool, torch.int64)
    return Hand(turns, *(torch.tensor(c, dtype=kind) for c, kind in zip(table, kinds, strict=True)))


def token_rows(made: Hand, seed: int, scale: float = 1.0) -> list[Tensor]:
    """A float32 number for each token of each reply, from a generator of its own."""
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(int(n), generator=generator) for n in made.tokens]


def padded(rows: list[Tensor], mask: Tensor) -> Tensor:
    """float64 (M, T), NaN where there is no token: nothing may read it."""
    full = torch.full(mask.shape, math.nan, dtype=torch.float64)
    return full.masked_scatter(mask, torch.cat(rows).double())
