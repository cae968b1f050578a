"""TCOD: distil only a part of each trajectory, a part that grows during training.

Over many turns the student drifts to states where the teacher's distribution helps little and the
divergence is unstable. TCOD starts with k turns, from the start of the trajectory ("forward") or
from its end ("backward"), and lets k grow linearly.

Forward with t the step inside an oracle branch, the same mask is a hard competitor of SERO's
reachability weights: w_k = 1 below the depth and 0 above.

Source: TCOD (arXiv:2604.24005).

Axis letters: M turns.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from trainer.objectives.groups import check_vectors

DepthDirection = Literal["forward", "backward"]

DEPTH_DIRECTIONS: tuple[DepthDirection, ...] = ("forward", "backward")


def max_depth(update: int, *, growth_updates: int, final: int, start: int = 1) -> int:
    """Number k of turns that an update may train.

        k = start + floor((final - start) * min(update, growth_updates) / growth_updates)

    Args:
        update: updates done, from 0.
        growth_updates: updates until k reaches `final`; 0 gives `final` at once.
        final: turns at the end, usually the longest episode allowed.
        start: turns at the beginning, 1 <= start <= final.

    Returns:
        k in [start, final].

    Raises:
        ValueError: a negative count or start outside [1, final].
    """
    if update < 0 or growth_updates < 0:
        raise ValueError(
            f"update and growth_updates must not be negative, found {update} and {growth_updates}."
        )
    if not 1 <= start <= final:
        raise ValueError(f"Need 1 <= start <= final, found start={start}, final={final}.")
    if update >= growth_updates:
        return final
    return start + (final - start) * update // growth_updates


def depth_mask(
    t_M: Tensor, length_M: Tensor, depth: int, *, direction: DepthDirection = "forward"
) -> Tensor:
    """Turns that a depth of k covers.

    - "forward": t < k, the first k turns.
    - "backward": t >= length - k, the last k turns.

    Args:
        t_M: int64 (M,), step of each turn within its trajectory, from 0.
        length_M: int64 (M,), turns of the trajectory that the turn belongs to.
        depth: k, at least 0.
        direction: which end is kept.

    Returns:
        bool (M,). Trajectories of at most k turns are kept whole.

    Raises:
        ValueError: shapes differ, a step outside its trajectory, a negative depth or an unknown
            direction.
    """
    check_vectors(t_M=t_M, length_M=length_M)
    if direction not in DEPTH_DIRECTIONS:
        raise ValueError(f"direction must be one of {DEPTH_DIRECTIONS}, found {direction!r}.")
    if depth < 0:
        raise ValueError(f"depth must not be negative, found {depth}.")
    outside = torch.logical_or(t_M < 0, t_M >= length_M).nonzero()
    if outside.numel():
        row = int(outside[0, 0])
        raise ValueError(
            f"Step {int(t_M[row])} lies outside its trajectory of {int(length_M[row])} turns; "
            "length_M holds the number of turns, at each of them."
        )
    return t_M < depth if direction == "forward" else t_M >= length_M - depth
