"""Sampling backends by the name that a config gives them."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainer.config import Config
from trainer.generation.base import StreamingSampler

__all__ = ["make_sampler"]


def make_sampler(config: Config, model: nn.Module, student: Any) -> StreamingSampler:
    """The sampler of `config.sampler` for the replies of `model`.

    Args:
        model: whose weights are sampled with, now and after every `refresh`. A server has them
            from the first `refresh` on.
        student: gives the stop tokens and the padding (`trainer.rollouts.rollout.Student`).

    Raises:
        SamplerError: the backend cannot be used here; says why.
    """
    section = config.sampler
    if section.backend == "vllm":
        from trainer.generation.vllm import VLLMSampler

        return VLLMSampler(
            student.stop_ids,
            model=model,
            url=section.url,
            name=section.served_model,
            weights_dir=section.weights_dir,
            timeout_s=section.timeout_s,
            concurrency=section.concurrency,
        )
    if section.backend == "hf-cb":
        from trainer.generation.hf_cb import ContinuousSampler

        return ContinuousSampler(
            model,
            student.stop_ids,
            pad_id=student.pad_id,
            max_batch_tokens=section.max_batch_tokens,
            cache_tokens=section.cache_tokens,
            timeout_s=section.timeout_s,
        )
    from trainer.generation.hf import HFSampler

    return HFSampler(
        model,
        student.stop_ids,
        pad_id=student.pad_id,
        max_batch_tokens=section.max_batch_tokens,
        session_tokens=section.cache_tokens,
        join_share=section.join_share,
    )
