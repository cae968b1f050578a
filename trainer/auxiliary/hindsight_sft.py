"""SEED's first stage: teaching the policy to write hindsight skills.

Trajectories of the base policy are analysed by an external model; each answer that has the right
form becomes one training pair, whatever the outcome and whether or not the skill is of use. The
trained checkpoint starts both the policy and the analyser.

    L_sft = mean over response tokens of -log pi(y_i | prompt, y_<i)

Source: SEED (arXiv:2607.14777). Axis letters: B rows, T tokens.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from trainer.auxiliary.analyser import Episode, analyser_prompt, reply_error
from trainer.auxiliary.skills import (
    SKILL_FIELD,
    STEPS_FIELD,
    SUMMARY_FIELD,
    SkillMode,
    parse_skill,
)
from trainer.objectives.aggregate import (
    Aggregation,
    Denominators,
    aggregation_coefficients,
    weighted_nll,
)

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SkillPair:
    """One training example: the analyser's prompt, and the answer to learn as JSON text."""

    prompt: tuple[dict[str, str], ...]
    response: str


def skill_pair(
    episode: Episode,
    answer: str,
    mode: SkillMode = "episode_only",
    *,
    text_limit: int | None = None,
) -> SkillPair | None:
    """The pair of one analysed trajectory, or None where the answer's form is wrong.

    The response is written anew from what was read, so that the policy learns one spelling: no
    fence, no prose around, double quotes, fixed order of fields.

    Args:
        episode: the trajectory.
        answer: the external analyser's text.
        mode, text_limit: see `trainer.auxiliary.analyser.analyser_prompt`; use those of training.

    Returns:
        The pair. Nothing but the form is judged: failures and useless skills stay.
    """
    prompt = tuple(analyser_prompt(episode, mode, text_limit=text_limit))
    reply = parse_skill(answer, len(episode.steps))
    if reply is None or reply_error(reply):
        return None
    values: dict[str, object] = {SUMMARY_FIELD: reply.summary, SKILL_FIELD: reply.skill}
    if mode == "episode_step":
        steps = sorted((reply.steps or {}).items())
        values[STEPS_FIELD] = [{"step": step, "skill": skill} for step, skill in steps]
    return SkillPair(prompt, json.dumps(values, ensure_ascii=False))


def split_pairs(
    items: Sequence[Item],
    generator: np.random.Generator,
    *,
    train_share: float = 0.9,
    keys: Sequence[Hashable] | None = None,
) -> tuple[list[Item], list[Item]]:
    """Random split into training and held-out items, each in the given order.

    Args:
        items: pairs.
        generator: source of the draw.
        train_share: share of the training part, in (0, 1); the count is rounded.
        keys: one per item; items with equal keys stay together, and the share is one of keys.
            The published split is over single trajectories, so that rollouts of one task are on
            both sides; pass task ids to hold out tasks. None: every item by itself.

    Returns:
        `(training, held_out)`.
    """
    if not 0.0 < train_share < 1.0:
        raise ValueError(f"train_share must lie between 0 and 1, found {train_share}.")
    if keys is not None and len(keys) != len(items):
        raise ValueError(f"Expected one key per item, found {len(keys)} for {len(items)} items.")
    owners: Sequence[Hashable] = range(len(items)) if keys is None else keys
    distinct = list(dict.fromkeys(owners))
    order = generator.permutation(len(distinct))
    chosen = {distinct[i] for i in order[: round(len(distinct) * train_share)]}
    placed = [(item, key in chosen) for item, key in zip(items, owners, strict=True)]
    return [item for item, kept in placed if kept], [item for item, kept in placed if not kept]


def sft_nll(
    logp_B_T: Tensor,
    mask_B_T: Tensor,
    *,
    aggregation: Aggregation = "token-mean",
    denominators: Denominators | None = None,
) -> Tensor:
    """L_sft of one (micro-)batch.

    Args:
        logp_B_T: float (B, T), log-probs under the trained policy, with gradient.
        mask_B_T: bool or 0/1 (B, T), 1 on response tokens only.
        aggregation, denominators: see `trainer.objectives.aggregate`. None: this batch is the
            whole step.

    Returns:
        Scalar; the parts of one step add up. Exactly 0 with exactly zero gradient for an empty
        mask. Rows with an impossible token are dropped as `weighted_nll` says.
    """
    counts = Denominators.of(mask_B_T) if denominators is None else denominators
    return weighted_nll(logp_B_T, mask_B_T, aggregation_coefficients(mask_B_T, aggregation, counts))
