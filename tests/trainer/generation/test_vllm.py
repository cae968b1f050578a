"""The client of a vLLM server, against a server that runs a tiny model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.generation import models
from tests.trainer.generation.stand_in_vllm import StandIn
from trainer.generation.base import GenerationRequest, SamplerError, streaming
from trainer.generation.hf import HFSampler
from trainer.generation.vllm import ServerError, VLLMSampler
from trainer.rng import stream

END = models.END


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn(models.lean()) as running:
        yield running


@pytest.fixture
def sampler(server: StandIn) -> Iterator[VLLMSampler]:
    found = VLLMSampler([END], url=server.url, timeout_s=60, concurrency=4)
    yield found
    found.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_o26_log_probs_are_the_trainers_and_draws_the_requests_own(
    server: StandIn, sampler: VLLMSampler, temperature: float
) -> None:
    rows = models.prompts(7)
    found = sampler.generate(models.requests(rows, temperature=temperature))
    again = models.recomputed(server.model, rows, found, temperature)
    for reply, expected in zip(found, again, strict=True):
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4)
        assert END not in reply.ids[:-1]
        assert reply.finish_reason == ("stop" if reply.ids[-1] == END else "length")
    backwards = sampler.generate(models.requests(rows, temperature=temperature)[::-1])[::-1]
    # The streams belong to the requests, not to their places.
    assert [r.ids for r in backwards] == [r.ids for r in found]
    asked = [body for body in server.asked if "stop_token_ids" in body]
    assert sorted(body["prompt"] for body in asked[:7]) == sorted(rows)
    assert all(body["ignore_eos"] and body["stop_token_ids"] == [END] for body in asked)
    assert len({body["seed"] for body in asked}) == 7


def test_o31_greedy_prompts_of_3_and_40_tokens_batched_and_alone(
    server: StandIn, sampler: VLLMSampler
) -> None:
    draws = np.random.default_rng(2)
    rows = [[int(i) for i in draws.integers(0, models.VOCAB, n)] for n in (3, 40)]
    rows[0][1] = END
    asked = [GenerationRequest(row, None, 20, greedy=True) for row in rows]
    batched = [r.ids for r in sampler.generate(asked)]
    assert batched == [sampler.generate([r])[0].ids for r in asked]
    assert batched == [r.ids for r in HFSampler(server.model, [END]).generate(asked)]


def test_requests_stream(sampler: VLLMSampler) -> None:
    assert streaming(sampler) is sampler
    expected = sampler.generate(models.requests(models.prompts(6)))
    waiting = list(enumerate(models.requests(models.prompts(6))))
    found = {}
    for pair in waiting[:3]:
        sampler.submit(*pair)
    waiting = waiting[3:]
    while pairs := sampler.collect():
        found |= dict(pairs)
        for _ in pairs:
            if waiting:
                sampler.submit(*waiting.pop(0))
    assert [found[i].ids for i in range(6)] == [r.ids for r in expected]


def test_new_weights_reach_the_server(tmp_path: Path, server: StandIn) -> None:
    model: Any = copy.deepcopy(server.model)
    sampler = VLLMSampler([END], model=model, url=server.url, weights_dir=tmp_path, timeout_s=60)
    ask = GenerationRequest([1, 2, 3], None, 8, greedy=True)
    before = sampler.generate([ask])[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-0.7)
    sampler.refresh()
    after = sampler.generate([ask])[0]
    (expected,) = HFSampler(model, [END]).generate([ask])
    assert after.ids == expected.ids
    assert after.ids != before.ids
    np.testing.assert_allclose(after.logprobs, expected.logprobs, atol=1e-4)
    assert server.resets == 1, "what the old weights computed must go"
    assert list(tmp_path.iterdir()) == []
    server.development = False
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    with pytest.raises(ServerError, match=r"collective_rpc.*404.*VLLM_SERVER_DEV_MODE=1"):
        sampler.refresh()
    assert list(tmp_path.iterdir()) == []
    sampler.close()


def test_a_server_that_dies_is_named_and_nothing_is_lost(
    server: StandIn, sampler: VLLMSampler
) -> None:
    rows = models.prompts(6)
    expected = sampler.generate(models.requests(rows))
    server.dies_after = len(server.asked) + 2
    for key, request in enumerate(models.requests(rows)):
        sampler.submit(key, request)
    found = {}
    with pytest.raises(ServerError) as caught:  # noqa: PT012
        while True:
            found |= dict(sampler.collect())
    assert caught.value.url == server.url + "/v1/completions"
    assert caught.value.status is None
    assert server.url in str(caught.value)
    assert len(found) <= 2
    server.dies_after = None
    failures = 0
    while len(found) < 6:
        try:
            found |= dict(sampler.collect())
        except ServerError:  # others may have been on their way
            failures += 1
            assert failures < 6
    assert [found[i].ids for i in range(6)] == [r.ids for r in expected]
    assert len(server.asked) == 12, "what was answered is not asked again"


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    with StandIn(models.lean()) as gone:
        url = gone.url
    sampler = VLLMSampler([END], url=url, name="tiny", timeout_s=5)
    sampler.submit(0, GenerationRequest([1], stream(0), 4))
    with pytest.raises(ServerError, match="no answer"):
        sampler.collect()
    sampler.drop()
    assert sampler.collect() == []
    sampler.close()


def test_log_probs_of_another_kind_are_refused(server: StandIn, sampler: VLLMSampler) -> None:
    server.processed = False
    sampler.generate([GenerationRequest([1], stream(0), 4)])  # at temperature 1 both are one
    with pytest.raises(ServerError, match="--logprobs-mode processed_logprobs"):
        sampler.generate([GenerationRequest([1], stream(0), 4, 0.5)])
    greedy = GenerationRequest([1], None, 4, 0.5, greedy=True)
    with pytest.raises(ValueError, match="greedy replies at temperature 1"):
        sampler.generate([greedy])


def _cut(choice: dict[str, Any], **changes: Any) -> dict[str, Any]:
    kept = {k: v for k, v in choice.items() if changes.get(k, 0) is not None}
    return {"choices": [kept | {k: v for k, v in changes.items() if v is not None}]}


def _ids(*ids: int) -> dict[str, Any]:
    return {"token_ids": list(ids), "logprobs": {"token_logprobs": [-1.0] * len(ids)}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": None}, "no token ids"),
        ({"logprobs": None}, "no token ids and log-probs"),
        ({"token_ids": [1]}, "1 ids and"),
        ({"token_ids": []}, "0 ids"),
        ({"prompt_token_ids": [9]}, "prompt was changed"),
        (
            {"token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}},
            "ended after 1 tokens without a stop token",
        ),
        ({"token_ids": ["7"]}, "no token ids"),
        ({"token_ids": [7.5]}, "no token ids"),
        ({"prompt_token_ids": 3}, "no token ids"),
        (_ids(-1), "ids that the model has not"),
        (_ids(END, END), "went on after a stop token"),
        ({"token_ids": [END], "logprobs": {"token_logprobs": [float("nan")]}}, "are none"),
        ({"token_ids": [END], "logprobs": {"token_logprobs": [float("-inf")]}}, "are none"),
        ({"token_ids": [END], "logprobs": {"token_logprobs": [0.7]}}, "are none"),
    ],
)
def test_o32_answers_that_do_not_fit_the_request_are_refused(
    server: StandIn, sampler: VLLMSampler, changes: dict[str, Any], message: str
) -> None:
    server.change = lambda answer: _cut(answer["choices"][0], **changes)
    with pytest.raises(ServerError, match=message):
        sampler.generate([GenerationRequest([1, 2], stream(3), 9)])


def test_ids_beyond_the_vocabulary_are_refused(server: StandIn) -> None:
    sampler = VLLMSampler([END], model=models.lean(), url=server.url, timeout_s=60)
    server.change = lambda answer: _cut(answer["choices"][0], **_ids(1 << 20))
    with pytest.raises(ServerError, match="ids that the model has not"):
        sampler.generate([GenerationRequest([1, 2], stream(3), 1)])
    sampler.close()


def test_dropped_requests_answer_no_later_ones(sampler: VLLMSampler) -> None:
    one, two = models.requests([[1, 2, 3], [4, 5]])
    sampler.submit(0, one)
    with pytest.raises(ValueError, match="key 0 is pending"):
        sampler.submit(0, two)
    with pytest.raises(SamplerError, match="Collect or drop"):
        sampler.generate([two])
    sampler.drop()
    two = models.requests([[1], [4, 5]])[1]
    (expected,) = sampler.generate([models.requests([[1], [4, 5]])[1]])
    sampler.submit(0, two)
    assert sampler.collect()[0][1].ids == expected.ids


def test_weights_need_a_folder_and_urls_a_host(server: StandIn, sampler: VLLMSampler) -> None:
    with pytest.raises(SamplerError, match=r"sampler\.weights_dir"):
        sampler.refresh()
    for url in ("127.0.0.1:8000", "ftp://host", "http://host/v1", "http://"):
        with pytest.raises(ValueError, match=r"sampler\.url"):
            VLLMSampler([END], url=url)
    sampler.name = "another"
    with pytest.raises(ServerError, match="status 404"):
        sampler.generate([GenerationRequest([1], stream(0), 4)])
