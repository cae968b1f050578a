"""Promises of the estimates: they are what torch counts and keeps.

1. Parameters are exact; FLOPs are those that torch counts, but for what is left out by definition.
2. Bytes kept for the backward pass are within 3 % of those measured, in float32 and bfloat16.
3. A GPU that is not known has no peak, and nothing is said of its utilisation.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, LlamaConfig, Qwen2Config, Qwen2ForCausalLM

from trainer.models import policy
from trainer.models.packed_attention import packs
from trainer.models.policy import (
    collate,
    enable_gradient_checkpointing,
    token_hidden,
    token_logprobs,
)
from trainer.planning.accounting import (
    HEAD_CHUNK,
    AccountingError,
    Memory,
    ModelShape,
    Work,
    flops_of,
    largest_micro_batch,
    memory_of,
    mfu,
    peak_flops,
    performance,
    shape_of,
)
from trainer.rollouts.data import make_segment

# Of Qwen2.5-1.5B's config.json.
LARGE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
MARGIN = 0.03


def small_shape(**changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    }  # fmt: skip
    return Qwen2Config(**{**sizes, **changes})


def build(attention: str = "sdpa", **changes: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        model = Qwen2ForCausalLM(small_shape(**changes)).eval()
    model.set_attn_implementation(attention)
    return model


def rows(lengths: list[int], trained: int) -> list[Any]:
    return [
        make_segment([(7 * n + i) % 512 for i in range(n - trained)], range(trained))
        for n in lengths
    ]


# ---------------------------------------------------------------------------------- operations


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_exact(tied: bool) -> None:
    model = build(tie_word_embeddings=tied)
    shape = shape_of(model.config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    linear = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "proj" in n]
    assert shape.matrices == sum(m.weight.numel() for m in linear)
    rank = 3
    assert shape.adapters(rank) == sum(rank * sum(m.weight.shape) for m in linear)


def test_the_published_size_of_a_large_model() -> None:
    """Qwen2.5-1.5B: 1.54 B parameters, 1.31 B without the embedding (its model card)."""
    shape = shape_of(Qwen2Config(**LARGE))
    assert shape.parameters == 1_543_714_304
    assert shape.parameters - shape.vocab * shape.hidden == pytest.approx(1.31e9, rel=0.005)


@pytest.mark.parametrize("backward", [False, True])
def test_flops_are_those_that_torch_counts(backward: bool) -> None:
    """Eager attention multiplies every pair, seen or not: its share is taken as of L x L."""
    model, length, trained = build("eager"), 96, 10
    batch = collate(rows([length], trained))
    policy.body_and_head(model)
    with FlopCounterMode(display=False) as counter:
        logprobs = token_logprobs(model, batch).logprobs
        if backward:
            logprobs.sum().backward()
    shape = shape_of(model.config)
    work = Work(length, length * length, trained)
    assert counter.get_total_flops() == flops_of(shape, work, backward=backward)
    half = Work.of([length], trained)
    assert half == Work(length, length * (length + 1) // 2, trained)
    assert flops_of(shape, half) < flops_of(shape, work)


def test_frozen_weights_need_no_gradient_of_their_own() -> None:
    model, length, trained = build("eager"), 32, 5
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.model.embed_tokens.register_forward_hook(lambda _m, _a, out: out.requires_grad_(True))
    batch = collate(rows([length], trained))
    policy.body_and_head(model)
    with FlopCounterMode(display=False) as counter:
        token_logprobs(model, batch).logprobs.sum().backward()
    work = Work(length, length * length, trained)
    assert counter.get_total_flops() == flops_of(shape_of(model.config), work, frozen=True)


def test_work_adds_up() -> None:
    whole = Work.of([3, 5, 8], 6)
    assert Work.of([3], 1) + Work.of([5, 8], 5) == whole
    assert whole + Work() == whole
    shape = shape_of(small_shape())
    parts = flops_of(shape, Work.of([3], 1)) + flops_of(shape, Work.of([5, 8], 5))
    assert flops_of(shape, whole) == pytest.approx(parts)


def test_other_architectures_are_refused_or_counted() -> None:
    with pytest.raises(AccountingError, match="model type 'gpt2' is not known"):
        shape_of(GPT2Config())
    llama = shape_of(LlamaConfig(num_key_value_heads=8, head_dim=64, hidden_size=1024))
    assert (llama.keys, llama.queries, llama.bias, llama.tied) == (512, 2048, False, False)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H200 NVL", 835.5e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA A1000", None),
        ("AMD Instinct MI250X", 191.5e12),  # a device is one of its two chips
        ("cpu", None),
        ("", None),
    ],
)
def test_peaks_by_name(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


def test_utilisation() -> None:
    assert mfu(4.5e14, 1.0, 9e14) == 0.5
    assert mfu(4.5e14, 1.0, 9e14, devices=2) == 0.25
    assert mfu(4.5e14, 1.0, None) is None
    assert mfu(1.0, 0.0, 9e14) is None
    shape, work = shape_of(small_shape()), Work.of([100, 50], 20)
    found = performance(shape, work, 2.0, "NVIDIA H200")
    assert found["perf/tokens_per_s"] == 75.0
    assert found["perf/model_flops"] == flops_of(shape, work)
    assert found["perf/mfu"] == pytest.approx(flops_of(shape, work) / 2.0 / 989.4e12)
    assert performance(shape, work, 2.0, "cpu")["perf/mfu"] is None
    assert performance(None, work, 2.0, "NVIDIA H200")["perf/model_flops"] is None


# --------------------------------------------------------------------------------------- memory


def kept_bytes(model: Any, batch: Any, bf16: bool) -> int:
    """Bytes of all storages that autograd keeps for the backward pass, but for parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, int] = {}
    alive = []

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)  # or another tensor would get its place
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16),
    ):
        assert token_hidden(model, batch) is not None
    return sum(found.values())


def without_head(estimate: Memory, model: Any) -> int:
    """Rounded copies of the layers' weights: `kept_bytes` does not run the head."""
    return estimate.rounded and estimate.rounded - 2 * model.lm_head.weight.numel()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "intermediate_size": 100,
        },
    ],
)
@pytest.mark.parametrize("lengths", [[200], [90, 110, 40]])
def test_kept_bytes_are_as_estimated(bf16: bool, shape: dict[str, Any], lengths: list[int]) -> None:
    model, trained = build(**shape), 12
    assert packs(model)
    segments = rows(lengths, trained)
    policy.body_and_head(model)
    batch = collate(segments, packed=True)
    assert batch.run_lengths == tuple(lengths)
    estimate = memory_of(
        shape_of(model.config), sum(lengths), trained * len(lengths), bf16=bf16
    )  # fmt: skip
    measured = kept_bytes(model, batch, bf16)
    expected = estimate.activations + without_head(estimate, model)
    assert measured == pytest.approx(expected, rel=MARGIN)


@pytest.mark.parametrize("bf16", [False, True])
def test_kept_bytes_of_recomputed_layers_are_as_estimated(bf16: bool) -> None:
    """What is kept of all layers; the one that is made again comes in the backward pass."""
    model, plain = build(num_hidden_layers=6), build(num_hidden_layers=6)
    enable_gradient_checkpointing(model)
    batch = collate(rows([300], 12), packed=True)
    for one in (model, plain):
        assert packs(one)
        policy.body_and_head(one)
    shape = shape_of(model.config)
    estimate = memory_of(shape, 300, 12, bf16=bf16, checkpointing=True)
    measured = kept_bytes(model, batch, bf16)
    assert measured == pytest.approx(estimate.activations, rel=MARGIN)
    whole = memory_of(shape, 300, 12, bf16=bf16)
    expected = whole.activations + without_head(whole, plain)
    assert kept_bytes(plain, batch, bf16) == pytest.approx(expected, rel=MARGIN)
    assert measured < whole.activations / 5
    rest = memory_of(ModelShape(**{**_fields(shape), "layers": 0}), 300, 12, bf16=bf16)
    assert 6 * estimate.one_layer == whole.activations - rest.activations


def _fields(shape: ModelShape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def test_the_parts_of_an_update() -> None:
    shape = shape_of(Qwen2Config(**LARGE))
    plain = memory_of(shape, 16_384, 2_048)
    assert plain.weights == 4 * shape.parameters
    assert plain.gradients == 4 * shape.parameters
    assert plain.moments == 8 * shape.parameters
    assert plain.copies == 2 * shape.parameters
    assert plain.total == sum(getattr(plain, name) for name in plain.__slots__)
    assert HEAD_CHUNK == policy._CHUNK_LOGITS
    assert plain.logits == 20 * HEAD_CHUNK < 20 * 2_048 * shape.vocab

    less = memory_of(shape, 16_384, 2_048, checkpointing=True)
    assert less.activations < plain.activations / 10
    thin = memory_of(shape, 16_384, 2_048, lora_rank=16, reference=True)
    assert thin.gradients + thin.moments < plain.moments / 50
    assert thin.copies < memory_of(shape, 16_384, 2_048, reference=True).copies
    sizes = [memory_of(shape, 1, 1, optimizer=kind).moments
             for kind in ("adamw", "adamw_8bit", "adafactor", "sgd")]  # fmt: skip
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 0
    masks = memory_of(shape, 4_096, 1, kernel_attention=False, longest=4_096)
    assert masks.activations > 2 * memory_of(shape, 4_096, 1).activations


def test_the_largest_micro_batch_is_the_last_that_fits() -> None:
    shape = shape_of(Qwen2Config(**LARGE))
    budget = 100 * 10**9
    for how in ({}, {"checkpointing": True}, {"lora_rank": 8}, {"bf16": False}):
        found = largest_micro_batch(shape, budget, trained_share=0.125, **how)
        assert found > 1_000
        assert memory_of(shape, found, round(found / 8), **how).total <= budget
        assert memory_of(shape, found + 1, round((found + 1) / 8), **how).total > budget
    assert largest_micro_batch(shape, 10**9, trained_share=0.1) == 0
