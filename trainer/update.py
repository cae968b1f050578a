"""Backward passes of one optimiser step: the base loss and the auxiliary rows.

Both are sums over micro-batches with coefficients made from the counts of the whole step, so how
the rows are cut changes nothing beyond floating point (see `trainer.objectives.aggregate`).

Axis letters: M turns, B segments, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.auxiliary.sero import weighted_nll
from trainer.config import ObjectiveConfig
from trainer.data import Segment
from trainer.objectives import Denominators, PolicyStats, aggregate, kl_loss, policy_loss
from trainer.policy import collate, evaluation_mode, micro_batches, per_token, token_logprobs

__all__ = [
    "AuxiliaryRow",
    "BaseStep",
    "LossStats",
    "auxiliary_backward",
    "base_backward",
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
    """The base loss of one optimiser step.

    Attributes:
        segments: the step's segments; `token_turn` indexes `advantages_M`.
        advantages_M: float64 (M,), all turns of the iteration.
        reference: log-probs of the reference policy for each segment's trained tokens, in the
            order of `segments`; None where KL is off.
    """

    segments: Sequence[Segment]
    advantages_M: Tensor
    reference: Sequence[Tensor] | None = None


@dataclass(slots=True)
class LossStats:
    """Sums over an iteration's base steps; `metrics()` gives what is logged."""

    policy_loss: float = 0.0
    kl_loss: float = 0.0
    entropy: float = 0.0
    steps: int = 0
    policy: PolicyStats | None = None

    def add(self, stats: PolicyStats) -> None:
        self.policy = stats if self.policy is None else self.policy + stats

    def metrics(self) -> dict[str, float | None]:
        """Means over the steps that had a base loss; `None` without one.

        The KL is the trained one (against the reference, before its coefficient). The clip
        shares and `kl_old` (against the behaviour policy) are over tokens with a loss term.
        """
        steps = self.steps or None
        shares = {} if self.policy is None else self.policy.metrics()
        return {
            "loss/policy": steps and self.policy_loss / steps,
            "loss/kl": steps and self.kl_loss / steps,
            "loss/entropy": steps and self.entropy / steps,
            "clip_fraction": shares.get("clipfrac"),
            "dual_clip_fraction": shares.get("dual_clipfrac"),
            "kl_old": shares.get("kl_old"),
        }


def step_counts(segments: Sequence[Segment], length: int) -> Denominators:
    """True counts of one optimiser step, rows with zero advantage included."""
    trained = [segment.trained for segment in segments]
    return Denominators(sum(trained), sum(n > 0 for n in trained), length)


def contributing(step: BaseStep, config: ObjectiveConfig) -> list[int]:
    """Rows that can move a parameter.

    Without KL and entropy terms a row whose advantages are all exactly 0 has exactly zero
    gradient; it counts in the denominators and needs no forward pass.
    """
    everything = config.kl_coef > 0 or config.entropy_coef > 0
    advantages = step.advantages_M.tolist()
    return [
        index
        for index, segment in enumerate(step.segments)
        if segment.trained
        and (
            everything
            or any(
                advantages[turn] != 0.0
                for turn, keep in zip(segment.token_turn, segment.loss_mask, strict=True)
                if keep
            )
        )
    ]


def base_backward(
    model: nn.Module,
    step: BaseStep,
    config: ObjectiveConfig,
    *,
    length: int,
    micro_batch_tokens: int,
    pad_id: int,
    stats: LossStats,
    bf16: bool = False,
) -> None:
    """Accumulates the gradient of the base loss of one optimiser step.

        L = L_policy + kl_coef * KL - entropy_coef * H

    Args:
        length: the constant length of the aggregations that divide by one.
        stats: updated in place.
        bf16: compute the forward pass in bfloat16; weights, log-probs and loss are float32.
    """
    stats.steps += 1
    rows = contributing(step, config)
    counts = step_counts(step.segments, length)
    device = next(model.parameters()).device
    lengths = [len(step.segments[i].ids) for i in rows]
    for micro in micro_batches(lengths, micro_batch_tokens):
        chosen = [rows[i] for i in micro]
        batch = collate([step.segments[i] for i in chosen], pad_id=pad_id, device=device)
        with _precision(device, bf16):
            new_B_T, entropy_B_T = token_logprobs(model, batch, entropy=config.entropy_coef > 0)
        loss, policy = policy_loss(
            new_B_T,
            batch.old_B_T,
            per_token(step.advantages_M, batch).to(new_B_T.dtype),
            batch.mask_B_T,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            aggregation=config.aggregation,
            denominators=counts,
        )
        stats.add(policy)
        stats.policy_loss += float(loss.detach())
        if config.kl_coef > 0:
            assert step.reference is not None
            reference_B_T = torch.zeros_like(new_B_T)
            for row, index in enumerate(chosen):
                values = step.reference[index]
                reference_B_T[row, : len(values)] = values.to(device)
            kl = kl_loss(
                new_B_T,
                reference_B_T,
                batch.mask_B_T,
                kind=config.kl_kind,
                aggregation=config.aggregation,
                denominators=counts,
            )
            stats.kl_loss += float(kl.detach())
            loss = loss + config.kl_coef * kl
        if entropy_B_T is not None:
            entropy = aggregate(entropy_B_T, batch.mask_B_T, config.aggregation, counts)
            stats.entropy += float(entropy.detach())
            loss = loss - config.entropy_coef * entropy
        loss.backward()  # type: ignore[no-untyped-call]


def auxiliary_backward(
    model: nn.Module,
    rows: Sequence[AuxiliaryRow],
    weight: float,
    *,
    micro_batch_tokens: int,
    pad_id: int,
    bf16: bool = False,
) -> float:
    """Accumulates the gradient of weight * sum of coefficient * NLL; returns the unweighted sum."""
    device = next(model.parameters()).device
    total = 0.0
    for micro in micro_batches([len(row.segment.ids) for row in rows], micro_batch_tokens):
        chosen = [rows[i] for i in micro]
        batch = collate([row.segment for row in chosen], pad_id=pad_id, device=device)
        coefficients = torch.tensor(
            [row.coefficient for row in chosen], dtype=torch.float64, device=device
        )
        with _precision(device, bf16):
            logprobs = token_logprobs(model, batch).logprobs
        loss = weighted_nll(logprobs, batch.mask_B_T, coefficients)
        total += float(loss.detach())
        (weight * loss).backward()  # type: ignore[no-untyped-call]
    return total


def score_segments(
    model: nn.Module,
    segments: Sequence[Segment],
    micro_batch_tokens: int,
    pad_id: int,
    bf16: bool = False,
) -> list[Tensor]:
    """Log-probs of each segment's trained tokens under frozen weights, float32 on the CPU.

    In eval mode and without gradient, at each segment's own temperature.
    """
    device = next(model.parameters()).device
    result: list[Tensor] = [torch.empty(0)] * len(segments)
    with evaluation_mode(model), torch.no_grad():
        for micro in micro_batches([len(s.ids) for s in segments], micro_batch_tokens):
            batch = collate([segments[i] for i in micro], pad_id=pad_id, device=device)
            with _precision(device, bf16):
                logprobs = token_logprobs(model, batch).logprobs.cpu()
            for row, index in enumerate(micro):
                result[index] = logprobs[row, : segments[index].trained].clone()
    return result


def _precision(device: torch.device, bf16: bool) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16)
