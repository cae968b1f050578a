"""Models whose sampler would draw from another distribution than the trainer's are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from tests.trainer.generation import models
from tests.trainer.generation.models import END, VOCAB
from trainer.generation.base import SamplerError
from trainer.generation.hf import HFSampler
from trainer.generation.hf_cb import ContinuousSampler
from trainer.models.tiny import initialise

SIZES: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {
    "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": END,
}  # fmt: skip


def _made(kind: type, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        model = kind(config)
    initialise(model, seed=3, std=0.35)
    return model.eval()


@pytest.mark.parametrize("kind", ["mamba", "rwkv"])
def test_states_that_padding_gets_into_or_that_are_not_taken_are_refused(kind: str) -> None:
    model = (
        _made(MambaForCausalLM, MambaConfig(**SIZES, state_size=8))
        if kind == "mamba"
        else _made(RwkvForCausalLM, RwkvConfig(**SIZES, attention_hidden_size=32))
    )
    with pytest.raises(SamplerError, match=r"ForCausalLM computes other logits where prompts of"):
        HFSampler(model, [END]).generate(models.requests(models.prompts(4)))


@pytest.mark.parametrize("kind", ["mamba2", "lfm2"])
def test_states_that_keep_padding_out_are_sampled_from(kind: str) -> None:
    model = (
        _made(
            Mamba2ForCausalLM,
            Mamba2Config(**SIZES, state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8),
        )
        if kind == "mamba2"
        else _made(
            Lfm2ForCausalLM, Lfm2Config(**SIZES, **HEADS, layer_types=["conv", "full_attention"])
        )
    )
    rows = models.prompts(6)
    replies = HFSampler(model, [END]).generate(models.requests(rows))
    for reply, trained in zip(replies, models.recomputed(model, rows, replies, 1.0), strict=True):
        torch.testing.assert_close(list(reply.logprobs), trained, atol=1e-4, rtol=0)


def test_continuous_batching_that_leaves_a_cap_out_is_refused() -> None:
    sizes = {**SIZES, **HEADS, "head_dim": 8}
    capped = _made(Gemma2ForCausalLM, Gemma2Config(**sizes))
    with pytest.raises(SamplerError, match=r"attn_logit_softcapping.*sampler\.backend=hf"):
        ContinuousSampler(capped, [END])
    ContinuousSampler(
        _made(Gemma2ForCausalLM, Gemma2Config(**sizes, attn_logit_softcapping=None)), [END]
    ).close()
