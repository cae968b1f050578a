"""The short way through a model gives what the model gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.trainer import small
from trainer.generation.base import GenerationRequest
from trainer.generation.hf import HFSampler
from trainer.models.lean import Lean, lean_of
from trainer.models.policy import collate, token_logprobs
from trainer.rollouts.data import make_segment


def _model(**changes: Any) -> Any:
    """Random weights of ordinary size, so that attention and MLP both matter."""
    shape = {
        "vocab_size": 97, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**(shape | changes)))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def _rows(sizes: list[int]) -> list[list[int]]:
    draws = np.random.default_rng(0)
    return [[int(i) for i in draws.integers(0, 97, n)] for n in sizes]


@pytest.mark.parametrize("changes", [{}, {"num_hidden_layers": 1}, {"tie_word_embeddings": True}])
def test_hidden_states_and_gradients_are_the_models_own(changes: dict[str, Any]) -> None:
    model = _model(**changes)
    rows = _rows([20, 13, 7])
    ids = torch.tensor([row + [5] * (20 - len(row)) for row in rows])
    positions = torch.tensor([[19, 3, 0, 3], [12, 0, 5, 6], [6, 5, 4, 0]])
    lean = lean_of(model)
    assert lean is not None
    gradients = []
    for own in (True, False):
        model.zero_grad()
        if own:
            row = torch.arange(3)[:, None]
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[row, positions]
        else:
            hidden = lean.hidden_at(ids, positions)
        (hidden * torch.linspace(-1, 1, hidden.numel()).reshape(hidden.shape)).sum().backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        gradients.append((hidden.detach(), grads))
    (hidden, expected), (short, found) = gradients
    torch.testing.assert_close(short, hidden, rtol=1e-5, atol=1e-5)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4, msg=name)


def test_sampling_is_the_same_reply_by_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    prompts = _rows([3, 17, 40, 17, 9])
    prompts[3] = prompts[1]  # equal prompts share a prefill

    def replies(greedy: bool) -> list[Any]:
        requests = [
            GenerationRequest(prompt, np.random.default_rng(i), 12, 0.8, greedy)
            for i, prompt in enumerate(prompts)
        ]
        return HFSampler(model, [1, 2, 3, 4, 5]).generate(requests)

    short = [replies(False), replies(True)]
    assert len({len(reply.ids) for reply in short[0]}) > 1, "rows must end at different times"
    monkeypatch.setattr("trainer.generation.hf.lean_of", lambda _: None)
    for lean, whole in zip(short, [replies(False), replies(True)], strict=True):
        for a, b in zip(lean, whole, strict=True):
            assert a.ids == b.ids
            assert a.finish_reason == b.finish_reason
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_log_probs_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    segments = [
        make_segment(row[:-4], row[-4:], mask=[i > 0, True, True, i != 1], turn=0)
        for i, row in enumerate(_rows([9, 30, 14]))
    ]
    batch = collate(segments)
    short = token_logprobs(model, batch, entropy=True)
    monkeypatch.setattr("trainer.models.policy.lean_of", lambda _: None)
    whole = token_logprobs(model, batch, entropy=True)
    torch.testing.assert_close(short.logprobs, whole.logprobs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(short.entropy, whole.entropy, rtol=1e-5, atol=1e-5)


def test_what_is_not_known_to_agree_takes_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lean_of(small.model()) is not None
    assert lean_of(_model(attention_dropout=0.1)) is None
    assert lean_of(_model(use_sliding_window=True, sliding_window=4, max_window_layers=1)) is None
    other = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    assert lean_of(_model(rope_parameters=other)) is None
    llama = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    assert lean_of(LlamaForCausalLM(llama)) is None
    hooked = _model()
    assert lean_of(hooked) is not None
    layer = hooked.model.layers[0]
    for module in (hooked, hooked.model, layer, layer.self_attn, layer.mlp):
        handle = module.register_forward_hook(lambda *_: None)
        assert lean_of(hooked) is None, "a hook that came later must be seen"
        handle.remove()
        assert lean_of(hooked) is not None
    own, layer.mlp = layer.mlp, torch.nn.Identity()
    assert lean_of(hooked) is None, "a part that was replaced later must be seen"
    layer.mlp = own
    hooked.model.layers[1].gradient_checkpointing = True
    assert lean_of(hooked) is None
    # A forward pass that means something else is found out by the comparison.
    original = Lean.hidden_at
    monkeypatch.setattr(Lean, "hidden_at", lambda *a: original(*a) * 1.01)
    assert lean_of(_model()) is None
