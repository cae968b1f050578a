"""What is done to logits behind the output layer is found at any weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaForCausalLM,
)

from tests.trainer.generation import models
from trainer.generation.hf import HFSampler
from trainer.models.plain_head import has_plain_head
from trainer.models.policy import body_and_head

SIZES = {
    "vocab_size": models.VOCAB, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": models.END,
}  # fmt: skip


def _gemma(cap: float | None) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Gemma2ForCausalLM(Gemma2Config(head_dim=16, final_logit_softcapping=cap, **SIZES))
    return made.eval()


class _Late(LlamaForCausalLM):
    """Does something to states or logits that no config tells of."""

    late: Any = staticmethod(lambda logits: logits)
    early: Any = staticmethod(lambda hidden: hidden)

    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        kwargs.pop("logits_to_keep", None)
        output = self.model(input_ids=input_ids, **kwargs)
        output["logits"] = self.late(self.lm_head(self.early(output.last_hidden_state)))
        return output


def _late(**what: Any) -> Any:
    made = models.rotary()
    made.__class__ = type("Late", (_Late,), {k: staticmethod(v) for k, v in what.items()})
    return made


def test_a_cap_that_small_logits_do_not_feel_is_found_and_trainer_equals_sampler() -> None:
    model = _gemma(30.0)
    assert body_and_head(model) == (None, None)  # tried while logits are small
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(12)
    rows = models.prompts(6)
    replies = HFSampler(model, [models.END]).generate(models.requests(rows))
    again = models.recomputed(model, rows, replies, 1.0)
    for row, reply, logprobs in zip(rows, replies, again, strict=True):
        assert list(reply.logprobs) == pytest.approx(logprobs, abs=1e-4)
        with torch.no_grad():
            own = model(torch.tensor([[*row, *reply.ids]])).logits[0].log_softmax(-1)
        true = [own[len(row) - 1 + i, token].item() for i, token in enumerate(reply.ids)]
        assert list(reply.logprobs) == pytest.approx(true, abs=1e-4)


def test_what_a_config_tells_is_believed_and_what_is_neutral_is_not() -> None:
    assert body_and_head(_gemma(None))[0] is not None
    assert body_and_head(CohereForCausalLM(CohereConfig(**SIZES)).eval()) == (None, None)
    model = models.rotary()
    for neutral in (None, 0, 1.0):
        model.config.logit_scale = neutral
        assert has_plain_head(model, model.model, model.lm_head)
    model.config.logits_soft_cap = 1e9
    assert not has_plain_head(model, model.model, model.lm_head)
    model = models.rotary()
    model.config.attn_logit_softcapping = 50.0  # of the attention
    assert has_plain_head(model, model.model, model.lm_head)


@pytest.mark.parametrize(
    "what",
    [
        {"late": lambda x: 30 * torch.tanh(x / 30)},
        {"late": lambda x: 3000 * torch.tanh(x / 3000)},
        {"late": lambda x: 1.01 * x},
        {"late": lambda x: x.clamp(max=50)},
        {"early": lambda x: x / 2},
        {"early": lambda x: x.clamp(-20, 20)},
    ],
)
@pytest.mark.parametrize("size", [0.0, 1e-6, 1.0])
def test_what_no_config_tells_is_found_at_any_size_of_the_weights(what: Any, size: float) -> None:
    for model, plain in ((_late(**what), False), (_late(), True)):
        with torch.no_grad():
            model.lm_head.weight.mul_(size)
        assert has_plain_head(model, model.model, model.lm_head) is plain


@pytest.mark.parametrize("kind", sorted(models.KINDS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_models_stay_so_and_keep_no_hook(kind: str, dtype: torch.dtype) -> None:
    model = models.KINDS[kind]().to(dtype)
    body, head = body_and_head(model)
    assert isinstance(body, nn.Module)
    assert isinstance(head, nn.Module)
    assert not any(module._forward_hooks for module in model.modules())
