"""What a replay of a bank is told by: how a rule spreads its loss, and what a copy ended with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainer.branches.records import GrownRoot, weighting
from trainer.config import SeroConfig
from trainer.metrics import mean_or_none

__all__ = ["DEPTHS", "figures_of", "parameters_digest", "spread_of", "summary"]

DEPTHS = (0, 1, 2, 4, 8, 16)
"""Steps of a branch whose z is recorded."""
_FIGURES = ("n", "wins", "success", "interval_95", "score", "mean_steps")


def spread_of(
    roots: Sequence[GrownRoot], section: SeroConfig, depth: int | None = None
) -> dict[str, Any]:
    """How a rule spreads its loss over the open branches.

    - replay/weights: mean w_k of the branches that reach step k, for every k.
    - replay/z: depth, number of branches that reach it, and their mean z, at a few depths.
    - replay/beyond_root_share: share of gate times weight that is not at a root; rows that
      `w_min` drops count as 0. `None` where no branch is open.
    """
    active = [root for root in roots if root.gate > 0]
    scheme = weighting(roots, section, depth)
    weights = [scheme.weights(root.logz) for root in active]
    longest = max(map(len, weights), default=0)
    mass = beyond = 0.0
    for root, row in zip(active, weights, strict=True):
        scale = root.gate / (math.fsum(row) or 1.0 if section.branch_norm == "mass" else 1.0)
        kept = [scale * w if w > section.w_min else 0.0 for w in row]
        mass += math.fsum(kept)
        beyond += math.fsum(kept[1:])
    z = {k: [math.exp(r.logz[k]) for r in active if len(r.logz) > k] for k in DEPTHS}
    return {
        "replay/weights": [
            mean_or_none(row[k] for row in weights if len(row) > k) for k in range(longest)
        ],
        "replay/z": [
            {"depth": k, "n": len(found), "mean": mean_or_none(found)}
            for k, found in z.items()
            if found
        ],
        "replay/beyond_root_share": beyond / mass if mass else None,
    }


def parameters_digest(model: nn.Module) -> str:
    """SHA-256 (hex) over names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def figures_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Success of an evaluation with its interval, without the tasks."""
    return {name: result[name] for name in _FIGURES}


def summary(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one copy: ends and means over its iterations; `None` where nothing was trained."""

    def ends(name: str) -> dict[str, float | None]:
        found = [line[name] for line in metrics if line.get(name) is not None]
        return {"first": found[0], "last": found[-1]} if found else {"first": None, "last": None}

    def mean(name: str) -> float | None:
        return mean_or_none(line[name] for line in metrics if line.get(name) is not None)

    return {
        "iterations": len(metrics),
        "loss": ends("loss/sero"),
        "z": ends("sero/z"),
        "z_root": ends("sero/z_root"),
        "effective_depth": ends("sero/effective_depth") | {"mean": mean("sero/effective_depth")},
        "beyond_root_share": mean("replay/beyond_root_share"),
        "delta": ends("sero/delta"),
        "grad_norm": mean("grad/aux_norm"),
        "clipped_share": mean("grad/clipped_share"),
    }
