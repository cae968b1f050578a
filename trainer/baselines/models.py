"""Models that answer prompts with text: what a prompting baseline talks to.

`PolicyModel` encodes, samples and decodes with a local policy; `trainer.baselines.endpoint` asks a
server. Requests are submitted and collected one by one, as in `trainer.generation.base`, so that no
episode waits for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from agent_envs.prompting import Message
from trainer.generation.base import GenerationRequest, Sampler, streaming
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import encode_rendered

__all__ = ["PolicyModel", "ReplyModel", "TextReply", "TextRequest"]

Prompt = list[Message] | str


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One reply to ask for.

    Attributes:
        prompt: chat messages, or plain text that the reply continues.
        max_new_tokens: of the reply.
        temperature: 0 takes the most likely token.
        top_p: nucleus to sample from.
        stream: the reply's own source of randomness; may be None where nothing is sampled.
        seed: the same as a number, for a server that takes one.
    """

    prompt: Prompt
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stream: np.random.Generator | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class TextReply:
    """A reply.

    Attributes:
        text: without an end token; None: the prompt was too long to be asked.
        finish_reason: `stop`, `length`, or what a server said.
        overflow_tokens: length of a prompt that was too long to be asked, where it is known.
    """

    text: str | None
    finish_reason: str = "stop"
    overflow_tokens: int = 0


class ReplyModel(Protocol):
    """Answers prompts as they are asked for and hands replies out as they are done."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What is known of the model, for a result file."""
        ...

    def submit(self, key: int, request: TextRequest) -> None:
        """Takes a request. `key` names it until it is collected."""
        ...

    def collect(self) -> list[tuple[int, TextReply]]:
        """Finished replies: at least one, unless nothing is pending."""
        ...

    def drop(self) -> None:
        """Forgets what is pending."""
        ...

    def close(self) -> None:
        """Ends what the model started."""
        ...


class PolicyModel:
    """A local policy as a model of text.

    Args:
        student: its tokenizer, end tokens and prompt limit; the template is not used.
        sampler: with its weights.
        identity: for a result file.
    """

    def __init__(
        self, student: Student, sampler: Sampler, identity: Mapping[str, Any] | None = None
    ) -> None:
        self.student = student
        self.identity: Mapping[str, Any] = dict(identity or {})
        self._sampler = streaming(sampler)
        self._refused: list[tuple[int, int]] = []

    def submit(self, key: int, request: TextRequest) -> None:
        """See `ReplyModel`; a prompt above the limit is answered with None."""
        ids = self._encode(request.prompt)
        if not self.student.fits(ids):
            self._refused.append((key, len(ids)))
            return
        greedy = request.temperature == 0.0
        self._sampler.submit(
            key,
            GenerationRequest(
                ids,
                None if greedy else request.stream,
                request.max_new_tokens,
                1.0 if greedy else request.temperature,
                greedy,
                top_p=1.0 if greedy else request.top_p,
            ),
        )

    def collect(self) -> list[tuple[int, TextReply]]:
        """See `ReplyModel`."""
        if self._refused:
            refused, self._refused = self._refused, []
            return [(key, TextReply(None, "prompt_too_long", n)) for key, n in refused]
        return [
            (key, TextReply(self.student.reply_text(reply.ids), reply.finish_reason))
            for key, reply in self._sampler.collect()
        ]

    def drop(self) -> None:
        """See `ReplyModel`."""
        self._refused.clear()
        self._sampler.drop()

    def close(self) -> None:
        """See `ReplyModel`."""
        self._sampler.close()

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        tokenizer = self.student.tokenizer
        if not isinstance(prompt, str):
            if getattr(tokenizer, "chat_template", None):
                return tuple(encode_rendered(prompt, tokenizer, "chat"))
            # A model that knows no chat continues the text of it.
            prompt = "".join(f"{message['content']}\n" for message in prompt)
        return tuple(encode_rendered(prompt, tokenizer, "text"))
