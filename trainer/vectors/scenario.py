"""Scenarios of the base vectors as turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.objectives import dense_ids
from trainer.vectors.params import Json


class Rows(NamedTuple):
    """Turns of a scenario, ordered by group, then trajectory, then step; all of shape (M,)."""

    rewards: Tensor
    format_valid: Tensor
    uid: Tensor
    tid: Tensor
    t: Tensor


def rows(scenario: Mapping[str, Json] | None) -> Rows:
    """The turns of a scenario. Raises ValueError where the method needs one and there is none."""
    if scenario is None:
        raise ValueError("this method needs a scenario")
    uid_of = [trajectory["uid"] for trajectory in scenario["trajectories"]]
    groups = dense_ids(uid_of).tolist()
    order = sorted(range(len(groups)), key=lambda i: groups[i])
    uids: list[int] = []
    tids: list[int] = []
    rewards: list[float] = []
    valid: list[bool] = []
    steps: list[int] = []
    for tid, i in enumerate(order):
        for t, step in enumerate(scenario["trajectories"][i]["steps"]):
            uids.append(groups[i])
            tids.append(tid)
            rewards.append(step["reward"])
            valid.append(bool(step["valid"]))
            steps.append(t)
    return Rows(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(valid, dtype=torch.bool),
        torch.tensor(uids, dtype=torch.int64),
        torch.tensor(tids, dtype=torch.int64),
        torch.tensor(steps, dtype=torch.int64),
    )
