"""How far a policy would follow an oracle: z and the weights made of it, branch by branch.

Everything is over open branches (gate above 0), the only ones that are scored, and under the
weights of rule `sero`, whatever the rule of a run. Branches count alike, however far they are open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agent_envs.streams import stream
from trainer.auxiliary.sero_weights import (
    effective_depth,
    effective_sample_size,
    reach_weights,
)
from trainer.branches.records import GrownRoot
from trainer.branches.targets import PROMPT_TOO_LONG, TARGET_TOO_LONG, branch_prompts
from trainer.config import SeroConfig
from trainer.generation.base import GenerationRequest, Sampler
from trainer.metrics import mean_or_none
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Student

__all__ = [
    "DEPTHS",
    "UNDERFLOW",
    "Agreement",
    "DepthQuantiles",
    "Reach",
    "agreement",
    "reach",
    "too_long",
]

DEPTHS = (0, 1, 2, 4, 8, 16)
"""Steps of a branch, counted from its root, at which z is shown."""
UNDERFLOW = 1e-300
"""Weights below are as good as 0: float64 ends a little further down."""
TOO_LONG = frozenset((PROMPT_TOO_LONG, TARGET_TOO_LONG))
_STATES = "bench-agreement"


@dataclass(frozen=True, slots=True)
class DepthQuantiles:
    """z of the `depth`-th step of the `n` branches that have one; quantiles are interpolated."""

    depth: int
    n: int
    p10: float
    p50: float
    p90: float
    mean: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """One branch state: z of the oracle's command, and whether the policy's likeliest reply is it.

    Attributes:
        agrees: the reply of greedy decoding sends the oracle's command.
    """

    z: float
    agrees: bool


@dataclass(frozen=True, slots=True)
class Reach:
    """Figures of scored branches.

    Attributes:
        branches: open ones, over which everything is.
        too_long: branches that are valid and not open for a prompt or target beyond the limits.
        z_by_depth: of `DEPTHS`, those that a branch reaches.
        weights: mean w_k for k = 0, 1, ...; a branch that has ended weighs 0, so that the sum is
            `effective_depth`.
        effective_depth: mean D = sum of w_k, in rows.
        ess: mean (sum w)^2 / sum w^2, in rows.
        beyond_root_share: of the mass of all branches, what lies behind their roots.
        underflow_share: of all rows, those whose weight is below `UNDERFLOW`, 0 included.
        pruned_share: of all rows, those that `w_min` drops; without one, those of weight 0.
        agreement_corr: Pearson correlation of z with agreement; None: no states were asked, or
            either is the same everywhere.
        agreement_share: of the states asked, those where the policy agrees.
    """

    branches: int
    too_long: int
    z_by_depth: tuple[DepthQuantiles, ...]
    weights: tuple[float, ...]
    effective_depth: float
    ess: float
    beyond_root_share: float
    underflow_share: float
    pruned_share: float
    agreement_corr: float | None
    agreement_share: float | None

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        found = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}


def reach(
    roots: Sequence[GrownRoot], w_min: float, asked: Sequence[Agreement] = ()
) -> Reach | None:
    """The figures of roots that `branches.branching.score` has scored; None: no branch is open.

    Args:
        w_min: weight at or below which training drops a row; 0: it drops none but those of 0.
        asked: from `agreement`.
    """
    branches = [root.logz for root in roots if root.gate > 0 and root.logz]
    if not branches:
        return None
    weights = [reach_weights(logz) for logz in branches]
    rows = [w for branch in weights for w in branch]
    depth = max(map(len, weights))
    mass = math.fsum(rows)
    return Reach(
        branches=len(branches),
        too_long=too_long(roots),
        z_by_depth=tuple(
            _quantiles(k, [math.exp(logz[k]) for logz in branches if len(logz) > k])
            for k in DEPTHS
            if k < depth
        ),
        weights=tuple(
            math.fsum(branch[k] for branch in weights if len(branch) > k) / len(branches)
            for k in range(depth)
        ),
        effective_depth=math.fsum(map(effective_depth, weights)) / len(branches),
        ess=math.fsum(map(effective_sample_size, weights)) / len(branches),
        beyond_root_share=math.fsum(w for branch in weights for w in branch[1:]) / mass,
        underflow_share=sum(w < UNDERFLOW for w in rows) / len(rows),
        pruned_share=sum(w <= w_min for w in rows) / len(rows),
        agreement_corr=_correlation([a.z for a in asked], [float(a.agrees) for a in asked]),
        agreement_share=mean_or_none(float(a.agrees) for a in asked),
    )


def too_long(roots: Sequence[GrownRoot]) -> int:
    """Branches that training cannot use although they are valid: they do not fit the policy."""
    return sum(root.branch.valid and TOO_LONG.intersection(root.reasons) != set() for root in roots)


def agreement(
    roots: Sequence[GrownRoot],
    student: Student,
    section: SeroConfig,
    sampler: Sampler,
    max_new_tokens: int,
    *,
    states: int,
    seed: int,
    before: Sequence[Sequence[Turn]] | None = None,
) -> list[Agreement]:
    """Asks the policy for its likeliest reply at branch states, each as likely to be asked.

    Args:
        roots: scored.
        states: at most so many; which ones follows from `seed` alone.
        before: of each root, the policy's turns before it; needed in chat.
    """
    places = [(r, k) for r, root in enumerate(roots) for k in range(len(root.logz))]
    order = stream(seed, purpose=_STATES).permutation(len(places))[:states]
    chosen = [places[i] for i in sorted(order.tolist())]
    prompts = {
        r: branch_prompts(roots[r].branch, student, section, () if before is None else before[r])
        for r in {r for r, _ in chosen}
    }
    requests = [
        GenerationRequest(prompts[r][k], None, max_new_tokens, greedy=True) for r, k in chosen
    ]
    replies = sampler.generate(requests) if requests else []
    found = []
    for (r, k), reply in zip(chosen, replies, strict=True):
        sent = student.template.parse(student.reply_text(reply.ids)).command
        wanted = roots[r].branch.steps[k].action.strip().lower()
        found.append(Agreement(math.exp(roots[r].logz[k]), sent == wanted))
    return found


def _quantiles(depth: int, z: Sequence[float]) -> DepthQuantiles:
    p10, p50, p90 = (float(q) for q in np.quantile(z, (0.1, 0.5, 0.9)))
    return DepthQuantiles(depth, len(z), p10, p50, p90, math.fsum(z) / len(z))


def _correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    dx, dy = [v - mean_x for v in x], [v - mean_y for v in y]
    norm = math.sqrt(math.fsum(v * v for v in dx) * math.fsum(v * v for v in dy))
    product = math.fsum(a * b for a, b in zip(dx, dy, strict=True))
    return min(max(product / norm, -1.0), 1.0) if norm > 0 else None
