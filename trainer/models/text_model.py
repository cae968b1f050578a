"""Text in, text out: the policy as a model that answers questions, or somebody else's.

Skills are written and feedback is judged by language models. `PolicyTextModel` asks the policy
itself, all chats in one call of the run's sampler; `ExternalTextModel` wraps any function from chat
messages to text. Prompts of rollouts are not made here (see `trainer.rollouts.rollout.Student`).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from oracles.base import Message
from trainer import rng
from trainer.errors import ConfigError
from trainer.generation.base import GenerationRequest, Sampler
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import encode_rendered

__all__ = [
    "Chat",
    "ExternalTextModel",
    "PolicyTextModel",
    "TextModel",
    "as_function",
    "encode_chat",
    "load_text_model",
]

Chat = list[dict[str, str]]


class TextModel(Protocol):
    """Answers chats, all at once."""

    def answers(
        self, chats: Sequence[Chat], streams: Sequence[np.random.Generator]
    ) -> list[str | None]:
        """One answer a chat, in their order; None where a chat is too long to be asked.

        Args:
            streams: one a chat, the only source of randomness, so that an answer depends on
                neither its neighbours nor on how often others were asked.
        """


class PolicyTextModel:
    """The policy answers.

    Args:
        sampler: with the policy's weights of the moment.
        student: tokenizer and end tokens.
        max_new_tokens: of an answer, the end token included.
        max_prompt_tokens: a longer chat gets no answer.
        temperature: 0 takes the most likely token.
    """

    def __init__(
        self,
        sampler: Sampler,
        student: Student,
        *,
        max_new_tokens: int,
        max_prompt_tokens: int,
        temperature: float = 1.0,
    ) -> None:
        self.sampler = sampler
        self.student = student
        self.max_new_tokens = max_new_tokens
        self.max_prompt_tokens = max_prompt_tokens
        self.temperature = temperature

    def answers(
        self, chats: Sequence[Chat], streams: Sequence[np.random.Generator]
    ) -> list[str | None]:
        """See `TextModel`; one call of the sampler."""
        greedy = self.temperature == 0.0
        result: list[str | None] = [None] * len(chats)
        places, requests = [], []
        for place, (chat, stream) in enumerate(zip(chats, streams, strict=True)):
            ids = encode_chat(self.student.tokenizer, chat)
            if len(ids) > self.max_prompt_tokens:
                continue
            places.append(place)
            requests.append(
                GenerationRequest(
                    ids, stream, self.max_new_tokens, 1.0 if greedy else self.temperature, greedy
                )
            )
        if requests:
            replies = self.sampler.generate(requests)
            for place, reply in zip(places, replies, strict=True):
                result[place] = self.student.reply_text(reply.ids)
        return result


class ExternalTextModel:
    """Any function from chat messages to text.

    It is asked chat by chat, unless it has a method `batch` that takes a list of chats and gives a
    list of texts. Its randomness is its own affair: streams are not passed on.
    """

    def __init__(self, function: Callable[[Chat], str]) -> None:
        self.function = function

    def answers(
        self, chats: Sequence[Chat], streams: Sequence[np.random.Generator]
    ) -> list[str | None]:
        """See `TextModel`.

        Raises:
            ValueError: `batch` gives another number of answers than it was asked for.
        """
        batch: Callable[[list[Chat]], list[str]] | None = getattr(self.function, "batch", None)
        if batch is None:
            return [self.function(chat) for chat in chats]
        found: list[str | None] = list(batch(list(chats)))
        if len(found) != len(chats):
            raise ValueError(
                f"The text model was asked {len(chats)} chats in one batch and gave {len(found)} "
                "answers. `batch` must give one answer a chat, in their order."
            )
        return found


def load_text_model(name: str, place: str) -> ExternalTextModel:
    """A text model by `module:factory`; the factory is called without arguments.

    Args:
        place: the config's field, for the error.

    Raises:
        ConfigError: there is no such module or factory, or what it makes cannot be called.
    """
    module, _, attribute = name.partition(":")
    try:
        made: Any = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{place}={name!r}: there is no such text model: {error}") from error
    if not callable(made):
        raise ConfigError(
            f"{place}={name!r} made a {type(made).__name__}; expected a function from chat "
            "messages to text."
        )
    return ExternalTextModel(made)


def as_function(model: TextModel, seed: int, purpose: str) -> Callable[[list[Message]], str]:
    """A text model as oracles take it (`oracles.base.TextModel`): one chat in, one text out.

    An answer draws from a stream of the chat itself, so it does not depend on what was asked
    before, and the same chat gets the same answer as long as the model is the same. A chat that is
    too long gets an empty text: an unusable reply, as an oracle says with the status TIMEOUT.

    Args:
        purpose: names the streams; see `trainer.rng`.
    """

    def answer(messages: list[Message]) -> str:
        chat: Chat = [{"role": m["role"], "content": m["content"]} for m in messages]
        key = json.dumps([[m["role"], m["content"]] for m in chat])
        (text,) = model.answers([chat], [rng.stream(seed, task=key, purpose=purpose)])
        return text or ""

    return answer


def encode_chat(tokenizer: Any, chat: Chat) -> list[int]:
    """Token ids of a chat, up to where the answer begins.

    Through the tokenizer's chat template; a tokenizer without one gets the contents as plain text,
    separated by empty lines, and the answer begins on a new line.
    """
    if getattr(tokenizer, "chat_template", None):
        return encode_rendered(chat, tokenizer, "chat")
    text = "\n\n".join(message["content"] for message in chat) + "\n"
    return encode_rendered(text, tokenizer, "text")
