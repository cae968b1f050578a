"""Advantages on a rank: those that one process would give to the same turns.

Whole groups stay on one rank, so what is computed within groups is computed at home. Objectives
that whiten over the batch need every turn's reward: ranks exchange skeletons of their turns (ids,
rewards, token counts, log-probs, a critic's values; no text), and each computes all advantages and
keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trainer.config import ObjectiveConfig, RolloutConfig
from trainer.config.parallel_rules import WHITENED
from trainer.learning.base_advantages import BaseAdvantages, base_advantages
from trainer.objectives.groups import GroupError
from trainer.parallel.context import Group
from trainer.rollouts.data import Segment, Turn

__all__ = ["shared_advantages"]


def shared_advantages(
    turns: Sequence[Turn],
    segments: Sequence[Segment],
    objective: ObjectiveConfig,
    rollout: RolloutConfig,
    reference: Sequence[Tensor] | None,
    values: Sequence[Tensor] | None,
    group: Group,
) -> BaseAdvantages:
    """`base_advantages` of this rank's turns, as part of all ranks'.

    A rank whose groups have one trajectory each gets zeros, as such groups do beside others.

    Raises:
        GroupError: no rank has a group, and the objective needs groups.
    """
    if objective.name in WHITENED:
        return _of_all(turns, segments, objective, rollout, reference, values, group)
    found, error = None, None
    try:
        found = base_advantages(
            turns, segments, objective, rollout, values=values, reference=reference
        )
    except GroupError as caught:
        error = caught
    held, failed = group.any([found is not None and bool(turns), error is not None])
    if found is None:
        if not held and failed and error is not None:
            raise error
        zeros = [torch.zeros(segment.trained, dtype=torch.float64) for segment in segments]
        return BaseAdvantages(zeros)
    if failed and not held:
        raise GroupError("No process has a group of two trajectories. See the others' messages.")
    return found


def _of_all(
    turns: Sequence[Turn],
    segments: Sequence[Segment],
    objective: ObjectiveConfig,
    rollout: RolloutConfig,
    reference: Sequence[Tensor] | None,
    values: Sequence[Tensor] | None,
    group: Group,
) -> BaseAdvantages:
    given = {"reference": reference, "values": values}
    mine = [
        {
            **_packed(turn, segment),
            **{k: None if rows is None else rows[i].tolist() for k, rows in given.items()},
        }
        for i, (turn, segment) in enumerate(zip(turns, segments, strict=True))
    ]
    parts = group.gather(mine)
    rows = [row for part in parts for row in part]

    def tensors(key: str) -> list[Tensor] | None:
        if given[key] is None:
            return None
        return [torch.tensor(row[key], dtype=torch.float64) for row in rows]

    everything = base_advantages(
        [_turn(row) for row in rows],
        [_segment(row) for row in rows],
        objective,
        rollout,
        values=tensors("values"),
        reference=tensors("reference"),
    )
    first = sum(len(part) for part in parts[: group.rank])
    own = slice(first, first + len(mine))
    return replace(
        everything,
        tokens=everything.tokens[own],
        targets=None if everything.targets is None else everything.targets[own],
        target_mask=None if everything.target_mask is None else everything.target_mask[own],
    )


_FACTS = (
    "uid", "tid", "t", "format_valid", "command_valid", "reward", "task_score", "success", "done",
    "stop_reason",
)  # fmt: skip


def _packed(turn: Turn, segment: Segment) -> dict[str, Any]:
    """What whitened advantages are computed from, as a JSON value."""
    trained = zip(segment.logprobs, segment.loss_mask, strict=True)
    return {
        **{name: getattr(turn, name) for name in _FACTS},
        "replies": len(turn.response_ids),
        "logprobs": [value for value, keep in trained if keep],
    }


def _turn(row: dict[str, Any]) -> Turn:
    size = row["replies"]
    return Turn(
        **{name: row[name] for name in _FACTS},
        task_id="", task_type="", goal="", observation="", next_observation="", anchor="",
        admissible=(), command="", reply="", parse_reason=None, prompt_ids=(),
        response_ids=(0,) * size, logprobs=(0.0,) * size, temperature=1.0, policy_version=0,
        steps_left=None,
    )  # fmt: skip


def _segment(row: dict[str, Any]) -> Segment:
    size = len(row["logprobs"])
    return Segment(
        ids=(0,) * (size + 1),
        loss_mask=(False, *(True,) * size),
        token_turn=(-1, *(0,) * size),
        logprobs=(0.0, *row["logprobs"]),
    )
