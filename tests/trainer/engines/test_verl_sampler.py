"""Replies from verl's servers: a client with the public coroutine, behind our sampler protocol."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.trainer import small
from trainer import rng
from trainer.engines.verl.sampler import ServerSampler
from trainer.generation.base import GenerationRequest, SamplerError, StreamingSampler


@dataclass
class Output:
    """The fields of verl's `TokenOutput` that are read."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None = "completed"


@dataclass
class Client:
    """Answers with the first prompt id, after as many hundredths of a second."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    answer: Any = None

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        self.asked.append({"id": request_id, "prompt": prompt_ids, **sampling_params})
        await asyncio.sleep(prompt_ids[0] / 100)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or Output([prompt_ids[0], 9], [-0.1, -0.2])


def _request(first: int, **named: Any) -> GenerationRequest:
    return GenerationRequest((first, 5), rng.stream(0, first, purpose="t"), 4, **named)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def sampler(client: Client) -> Any:
    made = ServerSampler(client, (9,))
    yield made
    made.close()
    made.close()


def test_replies_come_in_the_order_of_the_requests(sampler: ServerSampler) -> None:
    assert isinstance(sampler, StreamingSampler)
    found = sampler.generate([_request(6), _request(1), _request(3)])
    assert [reply.ids for reply in found] == [(6, 9), (1, 9), (3, 9)]
    assert found[0].logprobs == (-0.1, -0.2)
    assert found[0].finish_reason == "stop"


def test_the_first_that_is_done_is_handed_out_first(sampler: ServerSampler) -> None:
    sampler.submit(0, _request(30))
    sampler.submit(1, _request(1))
    assert [key for key, _ in sampler.collect()] == [1]
    assert [key for key, _ in sampler.collect()] == [0]
    assert sampler.collect() == []


def test_what_is_asked(client: Client, sampler: ServerSampler) -> None:
    sampler.generate([_request(1, temperature=0.7, session="e1"), _request(2, greedy=True)])
    sampled, greedy = sorted(client.asked, key=lambda asked: asked["prompt"])
    assert sampled["id"] == "e1"
    assert (sampled["temperature"], sampled["top_p"], sampled["top_k"]) == (0.7, 1.0, -1)
    assert (sampled["max_tokens"], sampled["logprobs"]) == (4, True)
    assert sampled["seed"] == int(rng.stream(0, 1, purpose="t").integers(1 << 31))
    assert greedy["temperature"] == 0.0
    assert "seed" not in greedy
    assert greedy["id"] != sampled["id"]


def test_a_server_without_seeds(client: Client) -> None:
    sampler = ServerSampler(client, (9,), seeded=False)
    sampler.generate([_request(1)])
    sampler.close()
    assert "seed" not in client.asked[0]


def test_dropped_requests_do_not_come_back(sampler: ServerSampler) -> None:
    sampler.submit(0, _request(5))
    sampler.drop()
    sampler.submit(0, _request(20))
    assert [(key, reply.ids) for key, reply in sampler.collect()] == [(0, (20, 9))]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (RuntimeError("out of room"), "out of room"),
        (Output([1, 2], None), "2 ids and 0 log-probs"),
        (Output([], []), "found 0 ids"),
        (Output([1] * 5, [-1.0] * 5), "expected 1 to 4 ids"),
    ],
)
def test_a_bad_answer_is_an_error_with_its_cause(
    client: Client, sampler: ServerSampler, answer: Any, text: str
) -> None:
    client.answer = answer
    sampler.submit(3, _request(1))
    with pytest.raises(SamplerError, match=text):
        sampler.collect()
    sampler.drop()
    client.answer = Output([4, 4], [-1.0, -1.0])
    assert sampler.generate([_request(1)])[0].finish_reason == "length"


def test_a_request_twice_is_refused(sampler: ServerSampler) -> None:
    sampler.submit(0, _request(1))
    with pytest.raises(ValueError, match="pending already"):
        sampler.submit(0, _request(1))


def test_episodes_are_played_through_it() -> None:
    """The rollouts are those of the sampler that the client asks, whatever the order of replies."""

    @dataclass
    class Asking:
        inner: Any

        async def generate(
            self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
        ) -> Any:
            await asyncio.sleep(len(prompt_ids) % 3 / 1000)
            request = GenerationRequest(
                tuple(prompt_ids), None, sampling_params["max_tokens"], greedy=True
            )
            (reply,) = self.inner.generate([request])
            return Output(list(reply.ids), list(reply.logprobs))

    config = small.small_config()
    inner = small.CommandSampler(lambda request, prompt: "look")
    served = ServerSampler(Asking(inner), small.student(config).stop_ids)
    played = small.rollouts(config, served)
    served.close()
    own = small.rollouts(config, small.CommandSampler(lambda request, prompt: "look"))
    assert [t.turns for t in played] == [t.turns for t in own]
