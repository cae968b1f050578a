"""Backward passes of one optimiser step: the base loss, and rows of an auxiliary one.

Both are sums over micro-batches with coefficients made from the counts of the whole step, so how
the rows are cut changes nothing beyond floating point (see `trainer.objectives.aggregate`).

Axis letters: M turns, B segments, T tokens, R trained tokens of one segment.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import ObjectiveConfig
from trainer.methods.protocol import PassLimits, TokenTerm
from trainer.models.lora import frozen_policy
from trainer.models.packed_attention import use_packing, use_sharing
from trainer.models.packing import segment_batches, tree_batches
from trainer.models.policy import SegmentBatch, collate, evaluation_mode, pad_rows, token_logprobs
from trainer.objectives import (
    Denominators,
    PolicyStats,
    kl_loss,
    policy_loss,
    weighted_nll,
)
from trainer.objectives.entropy import entropy_loss
from trainer.objectives.gspo import gspo_loss
from trainer.planning.accounting import Work
from trainer.rollouts.data import Segment

__all__ = [
    "AuxiliaryRow",
    "BaseStep",
    "LossStats",
    "auxiliary_backward",
    "base_backward",
    "contributing",
    "pad_like",
    "passes",
    "precision",
    "score_segments",
    "step_counts",
]


@dataclass(frozen=True, slots=True)
class AuxiliaryRow:
    """A segment whose loss tokens' summed NLL enters the loss times `coefficient`."""

    segment: Segment
    coefficient: float


@dataclass(frozen=True, slots=True)
class BaseStep:
    """What one optimiser step does with the policy's own sampled tokens.

    Attributes:
        segments: the step's segments.
        turns: their turns' indices in the iteration.
        advantages: float64 (R,) for each segment, one number a trained token.
        reference: log-probs of the reference policy for each segment's trained tokens; None where
            KL is off.
        terms: what auxiliary objectives add.
        scale: factor of the base loss (not of the terms).
        length: the constant length of the aggregations that divide by one.
    """

    segments: Sequence[Segment]
    turns: Sequence[int]
    advantages: Sequence[Tensor]
    reference: Sequence[Tensor] | None = None
    terms: Sequence[TokenTerm] = ()
    scale: float = 1.0
    length: int | None = None


@dataclass(slots=True)
class LossStats:
    """Sums over an iteration's base steps; `metrics()` gives what is logged.

    `work` is what their passes have run over (see `trainer.planning.accounting.performance`).
    """

    policy_loss: float = 0.0
    kl_loss: float = 0.0
    entropy: float = 0.0
    steps: int = 0
    policy: PolicyStats | None = None
    work: Work = field(default_factory=Work)

    def add(self, stats: PolicyStats) -> None:
        self.policy = stats if self.policy is None else self.policy + stats

    def metrics(self, config: ObjectiveConfig | None = None) -> dict[str, float | None]:
        """Means over the steps that had a base loss; `None` without one.

        The KL is the trained one (against the reference, before its coefficient). The clip
        shares and `kl_old` (against the behaviour policy) are over tokens with a loss term.

        Args:
            config: of the losses. Terms that they did not have were not measured, and are `None`.
        """
        steps = self.steps or None
        shares = {} if self.policy is None else self.policy.metrics()
        kl = steps if config is None or config.kl_in_loss else None
        entropy = steps if config is None or config.entropy_coef > 0 else None
        return {
            "loss/policy": steps and self.policy_loss / steps,
            "loss/kl": kl and self.kl_loss / kl,
            "loss/entropy": entropy and self.entropy / entropy,
            "clip_fraction": shares.get("clipfrac"),
            "dual_clip_fraction": shares.get("dual_clipfrac"),
            "kl_old": shares.get("kl_old"),
        }


def step_counts(segments: Sequence[Segment], length: int | None) -> Denominators:
    """True counts of one optimiser step, rows with zero advantage included."""
    trained = [segment.trained for segment in segments]
    return Denominators(sum(trained), sum(n > 0 for n in trained), length)


def contributing(step: BaseStep, config: ObjectiveConfig) -> list[int]:
    """Rows that can move a parameter.

    Without KL and entropy terms a row whose advantages are all exactly 0 has exactly zero
    gradient; it counts in the denominators and needs no forward pass, unless a term wants one.
    """
    regularised = config.kl_in_loss or config.entropy_coef > 0
    everything = regularised and config.name != "none" and step.scale != 0.0
    return [
        index
        for index, segment in enumerate(step.segments)
        if segment.trained
        and (
            everything
            or (step.scale != 0.0 and bool((step.advantages[index] != 0.0).any()))
            or any(term.needs(step.turns[index]) for term in step.terms)
        )
    ]


def base_backward(
    model: nn.Module,
    step: BaseStep,
    config: ObjectiveConfig,
    limits: PassLimits,
    stats: LossStats,
) -> None:
    """Accumulates the gradient of the base loss of one optimiser step, and of the terms in it.

        L = scale * (L_policy + kl_coef * KL - entropy_coef * H) + sum of terms

    With scale 0 there are the terms alone. `stats` is updated in place, by a base loss only.
    """
    stats.steps += step.scale != 0.0
    rows = contributing(step, config)
    counts = step_counts(step.segments, step.length)
    device = next(model.parameters()).device
    for micro, batch in passes(model, [step.segments[i] for i in rows], limits):
        chosen = [rows[i] for i in micro]
        stats.work += Work.of(batch.run_lengths, batch.trained, batch.shared_lengths)
        turns_B = [step.turns[i] for i in chosen]
        with precision(device, limits.bf16):
            new_B_T, entropy_B_T = token_logprobs(model, batch, entropy=config.entropy_coef > 0)
        adv_B_T = pad_like([step.advantages[i] for i in chosen], new_B_T)
        for term in step.terms:
            adv_B_T = term.advantages(adv_B_T, new_B_T.detach(), batch, turns_B)
        losses = [term.loss(new_B_T, batch, turns_B) for term in step.terms]
        if step.scale != 0.0:
            base = _base_loss(
                step, config, counts, batch, chosen, new_B_T, entropy_B_T, adv_B_T, stats
            )
            losses.insert(0, base)
        present = [loss for loss in losses if loss is not None]
        if present:
            functools.reduce(operator.add, present).backward()  # type: ignore[no-untyped-call]


def _base_loss(
    step: BaseStep,
    config: ObjectiveConfig,
    counts: Denominators,
    batch: SegmentBatch,
    chosen: Sequence[int],
    new_B_T: Tensor,
    entropy_B_T: Tensor | None,
    adv_B_T: Tensor,
    stats: LossStats,
) -> Tensor:
    clip: Any = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    tokens = new_B_T, batch.old_B_T, adv_B_T, batch.mask_B_T
    if config.ratio == "sequence":
        loss, policy = gspo_loss(*tokens, denominators=counts, **clip)
    else:
        loss, policy = policy_loss(
            *tokens,
            dual_clip=config.dual_clip,
            aggregation=config.aggregation,
            denominators=counts,
            **clip,
        )
    stats.add(policy)
    stats.policy_loss += float(loss.detach())
    if config.kl_in_loss:
        assert step.reference is not None
        kl = kl_loss(
            new_B_T,
            pad_like([step.reference[i] for i in chosen], new_B_T),
            batch.mask_B_T,
            kind=config.kl_kind,
            aggregation=config.aggregation,
            denominators=counts,
        )
        stats.kl_loss += float(kl.detach())
        loss = loss + config.kl_coef * kl
    if entropy_B_T is not None:
        bonus = entropy_loss(
            entropy_B_T, batch.mask_B_T, aggregation=config.aggregation, denominators=counts
        )
        stats.entropy -= float(bonus.detach())
        loss = loss + config.entropy_coef * bonus
    return loss if step.scale == 1.0 else step.scale * loss


def pad_like(rows: Sequence[Tensor], like_B_T: Tensor) -> Tensor:
    """Ragged rows as (B, T) in the dtype and on the device of `like_B_T`, padded with 0."""
    return pad_rows(
        [row.tolist() for row in rows],
        like_B_T.dtype,
        width=like_B_T.shape[1],
        device=like_B_T.device,
    )


def auxiliary_backward(
    model: nn.Module,
    rows: Sequence[AuxiliaryRow],
    weight: float,
    limits: PassLimits,
    weigh: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> float:
    """Accumulates the gradient of weight * sum of coefficient * NLL; returns the unweighted sum.

    `weigh` turns log-probs and their mask into weighted log-probs; None: no token weights.
    """
    device = next(model.parameters()).device
    total = 0.0
    for micro, batch in passes(model, [row.segment for row in rows], limits):
        coefficients = torch.tensor(
            [rows[i].coefficient for i in micro], dtype=torch.float64, device=device
        )
        with precision(device, limits.bf16):
            logprobs = token_logprobs(model, batch).logprobs
        if weigh is not None:
            logprobs = weigh(logprobs, batch.mask_B_T)
        loss = weighted_nll(logprobs, batch.mask_B_T, coefficients)
        total += float(loss.detach())
        (weight * loss).backward()  # type: ignore[no-untyped-call]
    return total


def score_segments(
    model: nn.Module, segments: Sequence[Segment], limits: PassLimits
) -> list[Tensor]:
    """Log-probs of each segment's trained tokens under frozen weights, float32 on the CPU.

    In eval mode and without gradient, at each segment's own temperature. For the policy, a
    reference and a teacher alike; `trainer.models.lora.AdaptersOff` is the policy without its
    adapters.
    """
    model, scope = frozen_policy(model)
    device = next(model.parameters()).device
    result: list[Tensor] = [torch.empty(0)] * len(segments)
    with scope, evaluation_mode(model), torch.no_grad():
        for micro, batch in passes(model, segments, limits):
            with precision(device, limits.bf16):
                logprobs = token_logprobs(model, batch).logprobs.cpu()
            for row, index in enumerate(micro):
                result[index] = logprobs[row, : segments[index].trained].clone()
    return result


def passes(
    model: nn.Module, segments: Sequence[Segment], limits: PassLimits
) -> Iterator[tuple[list[int], SegmentBatch]]:
    """Micro-batches of the segments, each with the indices of its rows."""
    device = next(model.parameters()).device
    if not segments:
        return
    packed = use_packing(model, limits.packing)
    ids = [segment.ids for segment in segments]
    batches = None
    if use_sharing(model, limits.packing, packed):
        batches = tree_batches(ids, limits.micro_batch_tokens, packed=packed)
    shared = batches is not None
    if batches is None:
        batches = segment_batches(ids, limits.micro_batch_tokens, packed=packed)
    for micro in batches:
        chosen = [segments[i] for i in micro]
        yield (
            micro,
            collate(chosen, pad_id=limits.pad_id, device=device, packed=packed, shared=shared),
        )


def precision(device: torch.device, bf16: bool) -> torch.autocast:
    """Forward passes in bfloat16 if asked for; weights, log-probs and loss are float32.

    Passes with and without a gradient may be in one block.
    """
    return torch.autocast(
        device.type, dtype=torch.bfloat16, enabled=bf16, cache_enabled=_cache_keeps_gradients()
    )


@functools.cache
def _cache_keeps_gradients() -> bool:
    """Whether a weight that was rounded in a pass without a gradient gets one in the next pass.

    torch keeps rounded weights to the end of an autocast block; before pytorch/pytorch#165068 those
    of a pass without a gradient stayed cut off from their parameters in a pass with one.
    """
    weight = torch.zeros(1, 1, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True), torch.enable_grad():
        with torch.no_grad():
            torch.nn.functional.linear(weight.detach(), weight)
        return torch.nn.functional.linear(weight.detach(), weight).requires_grad
