"""The interface between a rollout and whatever generates tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

FinishReason = Literal["stop", "length"]


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
    """

    prompt_ids: Sequence[int]
    rng: np.random.Generator | None = None
    max_new_tokens: int = 24
    temperature: float = 1.0
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled reply.

    Attributes:
        ids: exactly the tokens that were drawn, the stop token included if it was drawn.
            Nothing is appended.
        logprobs: one for each id: log-probability under the sampling distribution
            (temperature applied), computed in float64 from the model's logits.
        finish_reason: `stop` if the last id is a stop token, else `length`.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


class Sampler(Protocol):
    """Generates replies in batches; results come in the order of the requests."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]: ...


def check_request(request: GenerationRequest) -> None:
    """Refuse what no sampler can serve.

    Raises:
        ValueError: empty prompt, no token allowed, temperature not above 0, or a sampled
            row without a stream.
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
    if request.rng is None and not request.greedy:
        raise ValueError("a sampled row needs its own rng; see trainer.rng.stream")
