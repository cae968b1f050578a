"""Replies are the same however and whenever they were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.trainer.generation import models
from trainer.generation.base import GenerationRequest, Rounds, SamplerError, streaming
from trainer.generation.hf import HFSampler

END = models.END


@pytest.fixture(scope="module", params=list(models.KINDS))
def model(request: pytest.FixtureRequest) -> Any:
    return models.KINDS[request.param]()


def _sampler(model: Any, **settings: Any) -> HFSampler:
    return HFSampler(model, [END], pad_id=END, **settings)


@pytest.mark.parametrize("share", [0.01, 0.5, None])
def test_requests_that_join_a_running_batch_get_the_replies_of_one_batch(
    model: Any, share: float | None
) -> None:
    rows = models.prompts(11, 40)
    expected = _sampler(model).generate(models.requests(rows))
    assert len({len(r.ids) for r in expected}) > 1, "rows must end at different times"
    sampler = _sampler(model, join_share=share)
    waiting = list(enumerate(models.requests(rows)))
    found = {}
    for key, request in waiting[:4]:
        sampler.submit(key, request)
    waiting = waiting[4:]
    while pairs := sampler.collect():
        found |= dict(pairs)
        for _ in pairs:  # every environment whose reply came sends another prompt
            if waiting:
                sampler.submit(*waiting.pop(0))
    assert sorted(found) == list(range(len(rows)))
    for key, reply in found.items():
        assert reply.ids == expected[key].ids
        assert reply.finish_reason == expected[key].finish_reason
        np.testing.assert_allclose(reply.logprobs, expected[key].logprobs, atol=1e-4)


def test_a_short_reply_does_not_wait_for_a_long_one() -> None:
    model = models.rotary()
    sampler = _sampler(model, join_share=0.01)
    sampler.submit(0, GenerationRequest([1, 2], max_new_tokens=40, greedy=True))
    sampler.stop_ids = frozenset()  # only the bound ends a reply
    for key in range(1, 4):
        sampler.submit(key, GenerationRequest([3, key], max_new_tokens=2, greedy=True))
        assert [k for k, _ in sampler.collect()] == [key]
    assert [k for k, _ in sampler.collect()] == [0]


def test_the_bound_of_a_batch_holds_while_rows_join() -> None:
    model = models.rotary()
    shapes: list[tuple[int, ...]] = []
    handle = model.model.layers[0].self_attn.k_proj.register_forward_hook(
        lambda _m, args, _o: shapes.append(tuple(args[0].shape[:2]))
    )
    rows = [[5] * 8 for _ in range(9)]
    for i, row in enumerate(rows):
        row[0] = i
    sampler = _sampler(model, join_share=0.01, max_batch_tokens=60)  # 3 rows of 8 + 12
    try:
        for key, request in enumerate(models.requests(rows)):
            sampler.submit(key, request)
        found = models.drained(sampler)
    finally:
        handle.remove()
    assert len(found) == 9
    assert max(rows for rows, _ in shapes) == 3


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_o26_streamed_log_probs_are_the_trainers(model: Any, temperature: float) -> None:
    rows = models.prompts(7)
    sampler = _sampler(model, join_share=0.2)
    for key, request in enumerate(models.requests(rows, temperature=temperature)):
        sampler.submit(key, request)
        if key == 3:
            first = dict(sampler.collect())
    found = first | models.drained(sampler)
    replies = [found[i] for i in range(len(rows))]
    again = models.recomputed(model, rows, replies, temperature)
    for reply, expected in zip(replies, again, strict=True):
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4)


def test_o31_greedy_prompts_of_3_and_40_tokens_streamed_and_alone(model: Any) -> None:
    draws = np.random.default_rng(2)
    rows = [[int(i) for i in draws.integers(0, models.VOCAB, n)] for n in (3, 40)]
    rows[0][1] = END
    asked = [GenerationRequest(row, None, 20, greedy=True) for row in rows]
    alone = [_sampler(model).generate([r])[0].ids for r in asked]
    sampler = _sampler(model, join_share=0.01)
    sampler.submit(1, GenerationRequest([7], None, 2, greedy=True))
    sampler.submit(0, asked[1])
    found = dict(sampler.collect())  # the long prompt runs already when the short one joins
    sampler.submit(2, asked[0])
    found |= models.drained(sampler)
    assert [found[2].ids, found[0].ids] == alone


def test_o32_nothing_is_appended_and_the_bound_holds(model: Any) -> None:
    sampler = _sampler(model, join_share=0.3)
    for key, request in enumerate(models.requests(models.prompts(9), max_new_tokens=5)):
        sampler.submit(key, request)
    reasons = set()
    for reply in models.drained(sampler).values():
        assert 1 <= len(reply.ids) == len(reply.logprobs) <= 5
        assert END not in reply.ids[:-1]
        reasons.add(reply.finish_reason)
        assert reply.finish_reason == ("stop" if reply.ids[-1] == END else "length")
    assert "length" in reasons


def test_pending_requests_can_be_dropped_and_keys_are_unique(model: Any) -> None:
    sampler = _sampler(model, join_share=0.01)
    for stream in (sampler, Rounds(_sampler(model))):
        assert stream.collect() == []
        one, two, three = models.requests(models.prompts(3))
        stream.submit(0, one)
        with pytest.raises(ValueError, match="key 0 is pending"):
            stream.submit(0, two)
        stream.drop()
        assert stream.collect() == []
        stream.submit(0, three)
        assert [key for key, _ in stream.collect()] == [0]
        stream.refresh()
        stream.close()
        stream.close()


def test_new_weights_are_refused_while_replies_run() -> None:
    sampler = _sampler(models.rotary(), join_share=0.01)
    sampler.stop_ids = frozenset()
    sampler.submit(0, GenerationRequest([1], None, 2, greedy=True))
    sampler.submit(1, GenerationRequest([2], None, 9, greedy=True))
    assert [key for key, _ in sampler.collect()] == [0]
    with pytest.raises(SamplerError, match="Collect or drop"):
        sampler.refresh()
    sampler.drop()
    sampler.refresh()


def test_a_plain_sampler_works_in_rounds() -> None:
    class Plain:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def generate(self, requests: Any) -> Any:
            self.sizes.append(len(requests))
            return HFSampler(models.lean(), [END]).generate(requests)

    plain = Plain()
    stream = streaming(plain)
    for key, request in enumerate(models.requests(models.prompts(5))):
        stream.submit(10 - key, request)
    assert [key for key, _ in stream.collect()] == [10, 9, 8, 7, 6]
    assert plain.sizes == [5]
    own = _sampler(models.lean())
    assert streaming(own) is own
