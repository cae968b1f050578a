"""Continuous batching: the replies of the `hf` backend, by another way."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.generation import models
from trainer.generation.base import (
    GenerationRequest,
    NonFiniteLogitsError,
    SamplerError,
    streaming,
)
from trainer.generation.hf import HFSampler
from trainer.generation.hf_cb import ContinuousSampler
from trainer.models.packed_attention import PACKED_SDPA, implementation, use_packing
from trainer.models.policy import collate, token_logprobs
from trainer.rollouts.data import make_segment

END = models.END


@pytest.fixture(params=["lean", "rotary"])
def model(request: pytest.FixtureRequest) -> Any:
    return models.KINDS[request.param]()


@pytest.fixture
def sampler(model: Any) -> Any:
    found = ContinuousSampler(model, [END], cache_tokens=2048, max_batch_tokens=256, timeout_s=60)
    yield found
    found.close()


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.6}, {"top_p": 0.7}, {"greedy": True}])
def test_o26_replies_are_those_of_hf_and_log_probs_the_trainers(
    model: Any, sampler: Any, settings: dict[str, Any]
) -> None:
    rows = models.prompts(9)
    expected = HFSampler(model, [END]).generate(models.requests(rows, **settings))
    found = sampler.generate(models.requests(rows, **settings))
    assert [r.ids for r in found] == [r.ids for r in expected]
    assert [r.finish_reason for r in found] == [r.finish_reason for r in expected]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
    if "top_p" not in settings:
        again = models.recomputed(model, rows, found, settings.get("temperature", 1.0))
        for reply, logprobs in zip(found, again, strict=True):
            np.testing.assert_allclose(reply.logprobs, logprobs, atol=1e-4)


def test_o31_greedy_prompts_of_3_and_40_tokens_batched_and_alone(model: Any, sampler: Any) -> None:
    draws = np.random.default_rng(2)
    rows = [[int(i) for i in draws.integers(0, models.VOCAB, n)] for n in (3, 40)]
    rows[0][1] = END
    asked = [GenerationRequest(row, None, 20, greedy=True) for row in rows]
    batched = [r.ids for r in sampler.generate(asked)]
    assert batched == [sampler.generate([r])[0].ids for r in asked]


def test_requests_stream_and_new_weights_build_it_anew(model: Any, sampler: Any) -> None:
    assert streaming(sampler) is sampler
    rows = models.prompts(6)
    for _ in range(2):
        expected = HFSampler(model, [END]).generate(models.requests(rows))
        waiting = list(enumerate(models.requests(rows)))
        found = {}
        for pair in waiting[:2]:
            sampler.submit(*pair)
        waiting = waiting[2:]
        while pairs := sampler.collect():
            found |= dict(pairs)
            if waiting:
                sampler.submit(*waiting.pop(0))
        assert [found[i].ids for i in range(6)] == [r.ids for r in expected]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.8)
        sampler.refresh()


def test_what_runs_is_not_refreshed_and_can_be_dropped(model: Any, sampler: Any) -> None:
    model.train()
    one, two = models.requests([[1, 2], [3]])
    sampler.submit(0, one)
    with pytest.raises(ValueError, match="key 0 is pending"):
        sampler.submit(0, two)
    with pytest.raises(SamplerError, match="Collect or drop"):
        sampler.refresh()
    with pytest.raises(SamplerError, match="Collect or drop"):
        sampler.generate([two])
    assert not model.training
    sampler.drop()
    assert model.training
    assert sampler.collect() == []


def test_a_library_that_fails_is_told_of_and_nothing_is_lost(
    model: Any, sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = models.prompts(3)
    expected = HFSampler(model, [END]).generate(models.requests(rows))
    forward = type(model).forward
    fail = threading.Event()
    fail.set()

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        if fail.is_set():
            raise RuntimeError("out of memory")
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", broken)
    for key, request in enumerate(models.requests(rows)):
        sampler.submit(key, request)
    with pytest.raises(SamplerError):
        sampler.collect()
    fail.clear()
    found = models.drained(sampler)
    assert [found[i].ids for i in range(3)] == [r.ids for r in expected]


def test_a_reply_beside_one_that_failed_is_not_lost(model: Any, sampler: Any) -> None:
    rows = models.prompts(4)
    expected = [r.ids for r in HFSampler(model, [END]).generate(models.requests(rows))]
    for key, request in enumerate(models.requests(rows)):
        sampler.submit(key, request)
    manager = sampler._manager
    outputs = []
    while len(outputs) < len(rows):
        outputs.append(manager.get_result(timeout=60))
    outputs[1].error = "out of blocks"
    waiting = iter(outputs)
    manager.get_result = lambda timeout: next(waiting)  # all of them have come by now
    first = sampler.collect()
    assert [f"request {key}" for key, _ in first] == [outputs[0].request_id]
    found = dict(first)
    while len(found) < len(rows):
        found |= dict(sampler.collect())
    assert [found[key].ids for key in range(len(rows))] == expected
    assert sampler.collect() == []


@pytest.mark.parametrize("fails", [False, True])
def test_packing_and_continuous_batching_share_a_model(
    model: Any, sampler: Any, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert use_packing(model, True)  # optim.packing: true
    assert implementation(model) == PACKED_SDPA
    rows = models.prompts(9)
    if fails:
        monkeypatch.setattr(model, "init_continuous_batching", lambda **_: 1 / 0, raising=True)
        with pytest.raises(ZeroDivisionError):
            sampler.generate(models.requests(rows))
        sampler.close()
        assert implementation(model) == PACKED_SDPA
        return
    expected = HFSampler(model, [END]).generate(models.requests(rows))
    replies = sampler.generate(models.requests(rows))
    assert [r.ids for r in replies] == [r.ids for r in expected]
    assert implementation(model) == PACKED_SDPA  # as the trainer had left it
    segments = [
        make_segment(row, r.ids, logprobs=r.logprobs) for row, r in zip(rows, replies, strict=True)
    ]
    for packed in (True, False):
        batch = collate(segments, packed=packed)
        with torch.no_grad():
            found = token_logprobs(model, batch).logprobs
        torch.testing.assert_close(found, batch.old_B_T, atol=1e-4, rtol=0)


def test_logits_that_are_not_finite_are_an_error_of_their_own(model: Any, sampler: Any) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteLogitsError, match=r"request \d, with a prompt of \d+ tokens"):
        sampler.generate(models.requests(models.prompts(3)))
    with torch.no_grad():
        model.model.norm.weight.fill_(1.0)
    sampler.refresh()
    rows = models.prompts(3)
    expected = HFSampler(model, [END]).generate(models.requests(rows))
    found = sampler.generate(models.requests(rows))
    assert [r.ids for r in found] == [r.ids for r in expected]


def test_a_transformers_without_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = types.ModuleType("transformers")
    old.__version__ = "4.0"  # type: ignore[attr-defined]
    model = models.lean()
    monkeypatch.setitem(sys.modules, "transformers", old)
    with pytest.raises(SamplerError, match=r"4\.0 has no continuous batching.*backend=hf"):
        ContinuousSampler(model, [END])
