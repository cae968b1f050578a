"""Promises of low-rank adapters:

1. Fresh adapters change no bit; what they start from is a function of their seed alone.
2. Only adapters are trained, and only they have moments.
3. With the adapters off the policy is the one before training: the reference of a KL term.
4. The sampler sees the adapters, packed rows and recomputed layers work with them.
5. Merged weights give the adapters' numbers; adapters and moments go on from what was saved.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.trainer import small
from tests.trainer.generation.stand_in_vllm import StandIn
from tests.trainer.short_runs import mixed
from trainer.config import ConfigError
from trainer.config.sections import LoraConfig
from trainer.generation.base import GenerationRequest
from trainer.generation.hf import HFSampler
from trainer.generation.vllm import VLLMSampler
from trainer.learning.learner import Learner
from trainer.learning.optim import build_optimizer, optimizer_tensors, put_optimizer_tensors
from trainer.learning.update import score_segments
from trainer.metrics import Phases
from trainer.models import lora
from trainer.models.packed_attention import use_packing
from trainer.models.policy import collate, enable_gradient_checkpointing, token_logprobs
from trainer.models.tiny import load_policy, save_policy
from trainer.rollouts.data import make_segment

LORA = LoraConfig(rank=2, alpha=8.0)


def adapted(seed: int = 0, section: LoraConfig = LORA) -> Any:
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    return lora.add_adapters(small.model(seed), section)


def learn(policy: Any, **overrides: Any) -> tuple[Learner, dict[str, Any]]:
    """One iteration with a KL term against the policy without its adapters."""
    config = small.small_config(**{"objective__kl_coef": 0.1, **overrides})
    learner = Learner(config, policy, small.student(config), lora.AdaptersOff(policy))
    return learner, learner.learn(0, mixed(config), Phases())


def test_a_section_that_cannot_work_is_refused() -> None:
    small.small_config(lora__rank=4)
    with pytest.raises(ConfigError, match=r"lora\.dropout=0\.1 must be 0: .* random state"):
        small.small_config(lora__rank=4, lora__dropout=0.1)
    with pytest.raises(ConfigError, match=r"lora\.rank=-1"):
        small.small_config(lora__rank=-1)
    with pytest.raises(ConfigError, match=r"names a layer twice"):
        small.small_config(lora__targets=["q_proj", "q_proj"])


def test_without_peft_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "peft":
            raise ImportError(name)
        return original(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'sero-rl\[lora\]'"):
        lora.add_adapters(small.model(), LORA)


def test_unknown_layers_are_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no linear layer nowhere; it has .*q_proj"):
        adapted(section=LoraConfig(rank=2, targets=("q_proj", "nowhere")))
    one = adapted(section=LoraConfig(rank=2, targets=("q_proj",)))
    assert {n.split(".")[-4] for n in lora.adapter_state(one)} == {"q_proj"}


def test_fresh_adapters_change_nothing_and_follow_from_their_seed() -> None:
    state = torch.get_rng_state()
    policy = adapted()
    assert torch.equal(state, torch.get_rng_state())
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(policy(input_ids=ids).logits, small.model()(input_ids=ids).logits)
    again, other = adapted(), adapted(section=LoraConfig(rank=2, alpha=8.0, seed=1))
    assert small.same(lora.adapter_state(policy), lora.adapter_state(again))
    assert not small.same(lora.adapter_state(policy), lora.adapter_state(other))
    assert lora.has_adapters(policy)
    assert not lora.has_adapters(small.model())
    layers = {n.split(".")[-4] for n in lora.adapter_state(policy)}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_only_adapters_move_and_the_reference_stays() -> None:
    policy = adapted()
    start = small.weights(policy)
    segments = Learner(
        small.small_config(), small.model(), small.student()
    ).segments(mixed(small.small_config()))[:6]  # fmt: skip
    limits = Learner(small.small_config(), policy, small.student()).limits
    before = score_segments(policy, segments, limits)
    learner, metrics = learn(policy)
    assert metrics["optimizer_steps"] > 0
    assert metrics["loss/kl"] is not None
    moved = {name for name, value in small.weights(policy).items() if not value.equal(start[name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert all("lora_" in name for name in optimizer_tensors(policy, learner.optimizer))
    reference = score_segments(lora.AdaptersOff(policy), segments, limits)
    after = score_segments(policy, segments, limits)
    for left, right in zip(reference, before, strict=True):
        assert torch.equal(left, right), "with the adapters off it is the policy before training"
    assert any(not torch.equal(left, right) for left, right in zip(after, before, strict=True))
    # And they are on again, trainable.
    assert all(p.requires_grad == ("lora_" in n) for n, p in policy.named_parameters())
    assert not list(lora.AdaptersOff(policy).parameters())


def test_the_kl_is_that_of_a_second_copy() -> None:
    """With plain gradient steps: Adam would make a sign of what rounds to 0."""
    settings = {"objective__kl_coef": 0.1, "optim__optimizer": "sgd", "optim__lr": 1.0}
    config = small.small_config(**settings)
    one, two = adapted(), adapted()
    _, shared = learn(one, **settings)
    turns = mixed(config)
    apart = Learner(config, two, small.student(config), small.model()).learn(0, turns, Phases())
    assert shared["loss/kl"] == pytest.approx(apart["loss/kl"], rel=1e-3, abs=1e-9)
    assert shared["loss/kl"] > 0
    for name, value in lora.adapter_state(two).items():
        assert_close(lora.adapter_state(one)[name], value, atol=1e-5, rtol=1e-4)


def test_the_sampler_sees_the_adapters() -> None:
    policy = adapted()
    learn(policy, optim__lr=0.05)
    stop = [small.tokenizer().eos_token_id]
    prompt = tuple(small.tokenizer().encode("Look at the"))

    def replies(model: Any) -> Any:
        request = GenerationRequest(prompt, np.random.default_rng(0), 8, 1.0, False)
        return HFSampler(model, stop).generate([request])[0]

    trained, plain = replies(policy), replies(lora.merged(policy))
    assert trained.ids == plain.ids
    assert trained.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    with policy.disable_adapter():
        untrained = replies(policy)
    assert untrained.logprobs != pytest.approx(trained.logprobs, abs=1e-3)


def test_weights_are_merged_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = adapted()
    brought: set[int] = set()
    cpu = torch.Tensor.cpu

    def recorded(tensor: torch.Tensor) -> torch.Tensor:
        brought.add(tensor.data_ptr())
        return cpu(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", recorded)
    plain = lora.merged(policy)
    # All of them, before anything is copied where they are; and none is the policy's own.
    assert brought >= {p.data_ptr() for p in policy.parameters()}
    own = {p.data_ptr() for p in policy.parameters()}
    assert own.isdisjoint({p.data_ptr() for p in plain.parameters()})


@pytest.mark.parametrize("sessions", [False, True])
def test_prompts_of_several_lengths_get_the_log_probs_that_are_trained(sessions: bool) -> None:
    policy = adapted()
    learn(policy, optim__lr=0.05)
    sampler = HFSampler(policy, [small.tokenizer().eos_token_id])
    prompts: list[list[int]] = [list(range(5, 5 + n)) for n in (3, 17, 9, 1)]
    for turn in range(2):
        requests = [
            GenerationRequest(
                row, np.random.default_rng(i), 8, session=f"s{i}" if sessions else None
            )
            for i, row in enumerate(prompts)
        ]
        replies = sampler.generate(requests)
        segments = [make_segment(row, r.ids) for row, r in zip(prompts, replies, strict=True)]
        with torch.no_grad():
            trained = token_logprobs(policy, collate(segments)).logprobs
        for row, reply in zip(trained, replies, strict=True):
            own = torch.tensor(reply.logprobs)
            assert_close(row[: len(own)], own, atol=1e-4, rtol=0, msg=f"turn {turn}")
        prompts = [[*row, *r.ids, 7, 8] for row, r in zip(prompts, replies, strict=True)]


def test_a_server_is_given_whole_weights(tmp_path: Any) -> None:
    policy = adapted()
    learn(policy, optim__lr=0.05)
    with StandIn(small.model()) as server:
        end = [small.tokenizer().eos_token_id]
        sampler = VLLMSampler(end, model=policy, url=server.url, weights_dir=tmp_path)
        sampler.refresh()
        ask = GenerationRequest([5, 6, 7], None, 8, greedy=True)
        found, expected = sampler.generate([ask])[0], HFSampler(policy, end).generate([ask])[0]
        sampler.close()
    assert found.ids == expected.ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.parametrize("recomputed", [False, True])
def test_packed_rows_and_recomputed_layers_give_the_same_gradients(recomputed: bool) -> None:
    plain, packing = adapted(), adapted()
    for policy in (plain, packing):  # past the start, where half of the gradients are 0
        learn(policy, optim__lr=0.05)
    lora.load_adapter_state(packing, lora.adapter_state(plain))
    segments = Learner(
        small.small_config(), small.model(), small.student()
    ).segments(mixed(small.small_config()))[:5]  # fmt: skip
    assert use_packing(packing, None)
    if recomputed:
        enable_gradient_checkpointing(packing)
    found = []
    for policy, packed in ((plain, False), (packing, True)):
        policy.zero_grad()
        token_logprobs(policy, collate(segments, packed=packed)).logprobs.sum().backward()
        found.append({n: p.grad for n, p in policy.named_parameters() if p.requires_grad})
    assert found[0].keys() == found[1].keys()
    for name, grad in found[0].items():
        assert_close(found[1][name], grad, atol=1e-4, rtol=1e-4, msg=name)


def test_merged_weights_and_saved_adapters_are_the_policy(tmp_path: Any) -> None:
    policy = adapted()
    learner, _ = learn(policy, optim__lr=0.05)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    logits = policy(input_ids=ids).logits
    save_policy(tmp_path / "merged", lora.merged(policy), small.tokenizer())
    loaded, _ = load_policy(tmp_path / "merged")
    assert_close(loaded(input_ids=ids).logits, logits, atol=1e-4, rtol=1e-4)
    assert torch.equal(policy(input_ids=ids).logits, logits), "merging works on a copy"

    again = adapted(section=LoraConfig(rank=2, alpha=8.0, seed=9))
    lora.load_adapter_state(again, lora.adapter_state(policy))
    assert torch.equal(again(input_ids=ids).logits, logits)
    fresh = build_optimizer(again, learner.config.optim)
    moments = optimizer_tensors(policy, learner.optimizer)
    assert put_optimizer_tensors(moments, again, fresh)
    assert small.same(optimizer_tensors(again, fresh), moments)

    with pytest.raises(ValueError, match=r"has shape \(2, 32\), the policy's is \(3, 32\)"):
        lora.load_adapter_state(adapted(section=LoraConfig(rank=3)), lora.adapter_state(policy))
    with pytest.raises(ValueError, match="adapters of other layers"):
        lora.load_adapter_state(
            adapted(section=LoraConfig(rank=2, targets=("q_proj",))), lora.adapter_state(policy)
        )
