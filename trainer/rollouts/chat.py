"""A conversation as token ids: what a chat template puts between a reply and the next one.

Promises (tests/trainer/chat/):

1. Where a template only adds at the end, the prompt of a turn is the last prompt, the reply exactly
   as it was sampled, and the ids of what the template puts behind it. Nothing is encoded again, so
   the ids of every turn begin with those of the turn before.
2. The template's end-of-turn token stands behind every reply once: where it was not sampled, as
   after a reply cut by its length, it is part of the next prompt and never trained.
3. A template that changes what was said, as those that drop the thoughts of earlier replies, is
   found out by rendering. Then every prompt is rendered anew from the conversation.
4. A template that can be used neither way is refused before anything is played.
5. The tokenizer of a tiny policy of ours, which has no chat template, speaks `TINY_TEMPLATE`.
6. A conversation that is retold with another first message keeps its replies id for id, and what
   the template puts between them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from agent_envs.prompting import Message
from trainer.errors import ConfigError
from trainer.rollouts.control_tokens import harmless, harmless_messages
from trainer.rollouts.tokens import encode_text

__all__ = ["NOTHING_SAID", "TINY_TEMPLATE", "ChatFormat", "ChatTemplateError", "Conversation"]

TINY_TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<end>{% endif %}"
    "{{ '\n' }}{% endfor %}"
)
"""A message, a line end, the reply, the end token: the first prompt is that of a plain text, which
such a policy may have been taught with, and nothing needs a token of its own."""

# Asked and answered with words that no template has; the second kind of reply has a thought.
_ASKED = ("kupfer eins", "kupfer zwei", "kupfer drei")
_PLAIN = ("zinn eins", "zinn zwei")
_THOUGHT = tuple(f"<think>\nblei {n}\n</think>\n\nzinn {n}" for n in ("eins", "zwei"))


class ChatTemplateError(ConfigError):
    """A chat template that a conversation cannot be made with; says what it does."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said so far. Immutable, so that a branch may go on from any point of it.

    Attributes:
        messages: all of them, the last one a reply; none before the first turn.
        ids: the last prompt and its reply, as they were.
    """

    messages: tuple[Message, ...] = ()
    ids: tuple[int, ...] = ()


NOTHING_SAID = Conversation()


class ChatFormat:
    """How one tokenizer's chat template makes a conversation out of messages.

    Args:
        stop_ids: tokens that end a reply.

    Raises:
        ChatTemplateError: there is no template, or none that works: see the message.
    """

    def __init__(self, tokenizer: Any, stop_ids: Collection[int]) -> None:
        self._template: str | None = None
        """What is used in the place of the tokenizer's own."""
        if not getattr(tokenizer, "chat_template", None) and _is_tiny(tokenizer):
            self._template = TINY_TEMPLATE
        elif not getattr(tokenizer, "chat_template", None):
            raise ChatTemplateError(
                "prompt.context=chat needs a chat template, and the policy's tokenizer has none. "
                "Give model.path the folder of a chat model, or use prompt.context=window."
            )
        self.tokenizer = tokenizer
        self._before, self._after = self._split(_PLAIN)
        ids = encode_text(tokenizer, self._before)
        if not ids or ids[0] not in stop_ids:
            token = tokenizer.decode(ids[:1]) if ids else ""
            stops = ", ".join(repr(tokenizer.decode([i])) for i in stop_ids)
            raise ChatTemplateError(
                f"The chat template puts {token!r} behind a reply, which is not among the tokens "
                f"that end one ({stops}): the policy would never say what it is shown. Set "
                "eos_token of the tokenizer, or eos_token_id of the model's generation config."
            )
        self.end_id = int(ids[0])
        """The token that the template puts behind a reply."""
        self.append_only = self._appends(_PLAIN) and self._appends(_THOUGHT)
        """Whether earlier turns stay as they were; else prompts are rendered anew."""
        if not self.append_only and not self._keeps():
            raise ChatTemplateError(
                "The chat template does not show all that was said, even where a reply has no "
                f"thought: {self._text(_talk(_PLAIN))!r}. It cannot be used with "
                "prompt.context=chat; use prompt.context=window."
            )
        if self.append_only:
            self._check_ids()

    def prompt(self, said: Conversation, message: Message) -> tuple[int, ...]:
        """Ids of the next prompt: all that was said, the message, and the reply's header."""
        if not said.messages or not self.append_only:
            text = self._text([*said.messages, message])
            return tuple(encode_text(self.tokenizer, text))
        content = harmless(self.tokenizer, message["content"])
        more = encode_text(self.tokenizer, self._before + content + self._after)
        sampled = said.ids[-1] == self.end_id
        return (*said.ids, *more[1 if sampled else 0 :])

    def retold(self, said: Conversation, opening: str) -> Conversation:
        """The conversation as if it had begun with another message; the rest stays as it was.

        Raises:
            ValueError: nothing was said, or the ids are not those of its first message.
        """
        if not said.messages:
            raise ValueError("A conversation needs a first message to be retold with another one.")
        first: Message = {"role": said.messages[0]["role"], "content": opening}
        messages = (first, *said.messages[1:])
        if not self.append_only:  # prompts are rendered from the messages
            return Conversation(messages, said.ids)
        before = self.prompt(NOTHING_SAID, said.messages[0])
        if said.ids[: len(before)] != before:
            raise ValueError(
                "The ids of a conversation do not begin with those of its first message: they "
                "were made with another tokenizer or another template. Give the run's own."
            )
        ids = (*self.prompt(NOTHING_SAID, first), *said.ids[len(before) :])
        return Conversation(messages, ids)

    def _check_ids(self) -> None:
        """What is put behind a reply must be what the tokenizer makes of it within the whole."""
        for replies in (_PLAIN, _THOUGHT):
            text = self._before + _ASKED[len(replies)] + self._after
            added = encode_text(self.tokenizer, text)
            whole = encode_text(self.tokenizer, self._text(_talk(replies)))[-len(added) :]
            if added != whole:
                one, other = (repr(self.tokenizer.decode(ids)) for ids in (added, whole))
                raise ChatTemplateError(
                    f"The tokenizer encodes {text!r} to other ids than within a conversation: "
                    f"{one} against {other}. The prompts would be in a form that the model has not "
                    "seen. Use prompt.context=window."
                )

    def _split(self, replies: Sequence[str]) -> tuple[str, str]:
        """The template's text between a reply and the next message, and behind that."""
        text = self._text(_talk(replies[:1]))
        answered = text.rfind(replies[0])
        asked = text.rfind(_ASKED[1])
        if answered < 0 or asked < answered:
            raise ChatTemplateError(
                f"The chat template does not show a reply followed by the next message: {text!r}. "
                "It cannot be used with prompt.context=chat; use prompt.context=window."
            )
        return text[answered + len(replies[0]) : asked], text[asked + len(_ASKED[1]) :]

    def _appends(self, replies: Sequence[str]) -> bool:
        """Whether every rendering is the one before, the reply, and always the same text."""
        made = self._text(_talk(()))
        for count in range(1, len(replies) + 1):
            made += replies[count - 1] + self._before + _ASKED[count] + self._after
            if self._text(_talk(replies[:count])) != made:
                return False
        return True

    def _keeps(self) -> bool:
        """Whether a rendering holds all messages and all replies, in their order."""
        text, place = self._text(_talk(_PLAIN)), 0
        for message in _talk(_PLAIN):
            place = text.find(message["content"], place)
            if place < 0:
                return False
        return True

    def _text(self, messages: Sequence[Message]) -> str:
        from jinja2 import TemplateError

        try:
            return str(
                self.tokenizer.apply_chat_template(
                    harmless_messages(self.tokenizer, messages),
                    chat_template=self._template,
                    add_generation_prompt=True,
                    tokenize=False,
                )
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise ChatTemplateError(
                f"The chat template fails on a conversation of {len(messages)} messages: {error}. "
                "Use prompt.context=window, or a model whose template takes user and assistant "
                "messages in turn."
            ) from error


def _is_tiny(tokenizer: Any) -> bool:
    """Whether it is one of `trainer.models.tiny`: its end token, and a token for each tag."""
    from trainer.models.tiny import END_TOKEN, TAGS

    if getattr(tokenizer, "eos_token", None) != END_TOKEN:
        return False
    return all(len(encode_text(tokenizer, tag)) == 1 for tag in TAGS)


def _talk(replies: Sequence[str]) -> list[Message]:
    """A conversation with these replies that ends with a message."""
    talk: list[Message] = []
    for asked, reply in zip(_ASKED, replies, strict=False):
        talk.append({"role": "user", "content": asked})
        talk.append({"role": "assistant", "content": reply})
    return [*talk, {"role": "user", "content": _ASKED[len(replies)]}]
