"""The interface between a rollout and whatever generates tokens.

Two ways in. `Sampler.generate` answers a list of requests, in their order. `StreamingSampler`
takes requests one at a time and hands back whatever is finished, so that who plays many
environments never waits for the longest reply; `streaming` makes the second of the first.

What every backend promises:

1. The log-probs are those of the distribution that was sampled from: logits over `temperature`,
   and with `top_p` below 1 cut to the nucleus and normalised again. The trainer's own log-probs
   (`trainer.models.policy`) know the temperature and no nucleus, so `top_p` below 1 is for
   evaluation: `rollout.top_p` is refused.
2. A reply ends with the first stop token, which belongs to it, or after `max_new_tokens`. Nothing
   is appended or cut off.
3. Draws come from the request's own stream. When an answer arrives changes nothing in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from agent_envs.errors import SeroError

FinishReason = Literal["stop", "length"]

__all__ = [
    "FinishReason",
    "Generation",
    "GenerationRequest",
    "NonFiniteLogitsError",
    "Rounds",
    "Sampler",
    "SamplerError",
    "StreamingSampler",
    "check_request",
    "streaming",
]


class SamplerError(SeroError, RuntimeError):
    """A sampler that cannot go on: names what it was doing and what to change."""


class NonFiniteLogitsError(SamplerError):
    """The model's logits are no numbers to draw from: says at which request."""

    def __init__(self, request: str) -> None:
        super().__init__(
            f"The model's logits are not finite at {request}: its weights are not, or they are so "
            "large that the forward pass overflows. Use other weights, as an earlier checkpoint's."
        )


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One reply to sample.

    Attributes:
        prompt_ids: at least one id.
        rng: the row's own stream; one uniform is drawn from it for each token, so a row's
            reply does not depend on its neighbours. May be None when `greedy`.
        max_new_tokens: upper bound on the reply, the stop token included.
        temperature: divides the logits, also of the log-probs that come back.
        greedy: take the most likely token. `temperature` then only scales the log-probs.
        session: name of a conversation. Keys and values of its last request are used again as
            far as that one's prompt and reply are a prefix of this prompt. Only speed changes.
        top_p: sample from the fewest most likely tokens whose probabilities (after temperature)
            reach `top_p`; 1: from all.
    """

    prompt_ids: Sequence[int]
    rng: np.random.Generator | None = None
    max_new_tokens: int = 24
    temperature: float = 1.0
    greedy: bool = False
    session: str | None = None
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled reply.

    Attributes:
        ids: exactly the tokens that were drawn, the stop token included if it was drawn.
            Nothing is appended.
        logprobs: one for each id: log-probability under the sampling distribution
            (temperature and nucleus applied), from the model's logits.
        finish_reason: `stop` if the last id is a stop token, else `length`.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


class Sampler(Protocol):
    """Generates replies in batches; results come in the order of the requests."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]: ...


@runtime_checkable
class StreamingSampler(Protocol):
    """Generates replies as they are asked for and hands them out as they are done."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]: ...

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Takes a request. `key` names it until it is collected."""

    def collect(self) -> list[tuple[int, Generation]]:
        """Finished replies, in any order: at least one, unless nothing is pending.

        Raises:
            SamplerError: what is pending cannot be answered; it stays pending.
        """

    def drop(self) -> None:
        """Forgets what is pending."""

    def refresh(self) -> None:
        """The weights have changed: forgets what was computed with others, takes the new ones."""

    def close(self) -> None:
        """Ends what the sampler started. Closing twice is no error."""


class Rounds:
    """A plain sampler as a streaming one: answers all that is pending in one batch.

    The batch has the order in which requests came.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._pending: dict[int, GenerationRequest] = {}

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return self.sampler.generate(requests)

    def submit(self, key: int, request: GenerationRequest) -> None:
        if key in self._pending:
            raise ValueError(f"key {key} is pending already; collect it first")
        self._pending[key] = request

    def collect(self) -> list[tuple[int, Generation]]:
        if not self._pending:
            return []
        replies = self.sampler.generate(list(self._pending.values()))
        pairs = list(zip(self._pending, replies, strict=True))
        self._pending.clear()
        return pairs

    def drop(self) -> None:
        self._pending.clear()

    def refresh(self) -> None:
        refresh = getattr(self.sampler, "refresh", None)
        if refresh is not None:
            refresh()

    def close(self) -> None:
        close = getattr(self.sampler, "close", None)
        if close is not None:
            close()


def streaming(sampler: Sampler) -> StreamingSampler:
    """The sampler itself if it streams, else an adapter that works in rounds."""
    return sampler if isinstance(sampler, StreamingSampler) else Rounds(sampler)


def answer_all(
    sampler: StreamingSampler, requests: Sequence[GenerationRequest]
) -> list[Generation]:
    """`generate` of a sampler with nothing pending, by `submit` and `collect`; what fails leaves
    nothing pending."""
    found: dict[int, Generation] = {}
    try:
        for place, request in enumerate(requests):
            sampler.submit(place, request)
        while len(found) < len(requests):
            found |= dict(sampler.collect())
    except BaseException:
        sampler.drop()
        raise
    return [found[place] for place in range(len(requests))]


def check_request(request: GenerationRequest) -> None:
    """Refuse what no sampler can serve.

    Raises:
        ValueError: empty prompt, no token allowed, temperature not above 0, a nucleus that is
            empty or more than everything, or a sampled row without a stream.
    """
    if len(request.prompt_ids) == 0:
        raise ValueError("prompt_ids is empty; a causal model needs at least one token")
    if request.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {request.max_new_tokens}; expected 1 or more")
    if not request.temperature > 0:
        raise ValueError(
            f"temperature is {request.temperature}; expected more than 0. "
            "For the most likely token set greedy=True."
        )
    if not 0 < request.top_p <= 1:
        raise ValueError(f"top_p is {request.top_p}; expected more than 0 and at most 1")
    if request.rng is None and not request.greedy:
        raise ValueError("a sampled row needs its own rng; see trainer.rng.stream")
