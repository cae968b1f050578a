"""How fast an iteration was: tokens a second and model FLOP utilisation, from what it ran over.

Counted are the policy's own passes: sampling, scoring (where log-probs are recomputed, where there
is a reference) and the base update. What auxiliary objectives and a critic run is in the seconds
and not in the operations, equal prompts are counted once in sampling, and scoring is counted as if
all that turns have in common were run once in it, so the utilisation is a lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trainer.config import Config
from trainer.metrics import perf_metrics
from trainer.models.packing import chains
from trainer.models.prefix_tree import prefix_tree
from trainer.planning.accounting import (
    AccountingError,
    ModelShape,
    Work,
    flops_of,
    peak_flops,
    shape_of,
)
from trainer.rollouts.data import Turn

__all__ = ["iteration_performance", "peak_of", "policy_shape", "sampling_work", "work_of"]


def iteration_performance(
    config: Config,
    shape: ModelShape | None,
    peak: float | None,
    *,
    sampled: Sequence[Turn],
    learnt: Sequence[Turn],
    update: Work,
    seconds: Mapping[str, float],
    iteration_s: float,
) -> dict[str, float | None]:
    """Metrics `perf/...` of one iteration (see `trainer.metrics.perf_metrics`).

    Args:
        shape: of the policy; None: not known, so there are no FLOPs.
        peak: FLOP/s of the devices together; None: not known, as on a CPU.
        sampled: all turns that were played.
        learnt: those that were scored.
        update: what the base update's passes have run over, all epochs.
        seconds: wall seconds by phase.
    """
    flops = None
    if shape is not None:
        o = config.objective
        passes = (config.optim.old_logprobs == "recompute") + (o.kl_coef > 0 and config.base_active)
        chat = str(config.prompt.context) == "chat"
        # Only `hf` in window context computes again what different prompts begin with.
        again = config.sampler.backend == "hf" and not chat
        flops = flops_of(shape, sampling_work(sampled, shared=not again), backward=False)
        if passes:
            scored = work_of(learnt, chat=chat, shared=config.optim.packing is not False)
            flops += passes * flops_of(shape, scored, backward=False)
        flops += flops_of(shape, update, frozen=config.lora.rank > 0)
    prompts = sum(len(turn.prompt_ids) for turn in sampled)
    replies = sum(len(turn.response_ids) for turn in sampled)
    return perf_metrics(
        played_tokens=prompts + replies,
        sampled_tokens=replies,
        learnt_tokens=update.tokens,
        seconds=seconds,
        iteration_s=iteration_s,
        flops=flops,
        peak_flops=peak,
    )


def work_of(turns: Sequence[Turn], *, chat: bool = False, shared: bool = False) -> Work:
    """One pass over these turns.

    In `chat` context a turn that is a prefix of another one is not run. With `shared` nothing that
    turns have in common at their beginning is run twice: no pass, in however many batches, is less.
    """
    trained = sum(len(turn.response_ids) for turn in turns)
    ids = [(*turn.prompt_ids, *turn.response_ids) for turn in turns]
    if shared:
        tree = prefix_tree(ids, least=1)
        return Work.of(tree.run_lengths, trained, tree.shared)
    if not chat:
        return Work.of(map(len, ids), trained)
    return Work.of((len(ids[group[-1]]) for group in chains(ids)), trained)


def sampling_work(turns: Sequence[Turn], *, shared: bool = False) -> Work:
    """What sampling these turns runs: a prompt that several of them have is run once.

    Rollouts of one task begin with the same prompt. With `shared` nothing that turns have in common
    at their beginning is run twice: conversations, and servers that keep what was computed.
    """
    if shared:
        return work_of(turns, shared=True)
    prompts = {turn.prompt_ids for turn in turns}
    before = [0] * len(prompts) + [len(turn.prompt_ids) for turn in turns]
    replies = [len(turn.response_ids) for turn in turns]
    return Work.of([*map(len, prompts), *replies], sum(replies), before)


def policy_shape(model: Any) -> ModelShape | None:
    """Sizes of a policy; None where its cost is not known."""
    try:
        return shape_of(getattr(model, "config", None))
    except AccountingError:
        return None


def peak_of(device: torch.device | str) -> float | None:
    """Dense bfloat16 FLOP/s of a device of this machine; None: not known, as of a CPU."""
    place = torch.device(device)
    return peak_flops(torch.cuda.get_device_name(place)) if place.type == "cuda" else None
