"""A template's prompt as a conversation that only grows, one message a turn.

The first message holds rules, task and first observation; every later one what is observed then
and the commands that are possible. Nothing is repeated: what was said before is the history. How
messages become token ids is `trainer.rollouts.chat`'s business.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from agent_envs.prompting.history import PromptView
from agent_envs.prompting.parsing import ParsedReply
from agent_envs.prompting.templates import FormattedReply, Message, PromptTemplate, template_hash

__all__ = ["ChatTemplate", "Conversational"]


_PROBE = PromptView("GOAL", "OBSERVATION", ("COMMAND",), (("BEFORE", "SENT"),), 1, ("OPEN[<x>]",))


@runtime_checkable
class Conversational(PromptTemplate, Protocol):
    """A template that can also speak turn by turn."""

    def opening(self, view: PromptView) -> str:
        """The first message."""
        ...

    def following(self, view: PromptView) -> str:
        """A later message."""
        ...


@dataclass(frozen=True)
class ChatTemplate:
    """The messages of a conversation, worded as `inner` words its prompts.

    Messages neither begin nor end with white space: chat templates differ in whether they keep it.
    """

    inner: Conversational

    version = 1

    @property
    def name(self) -> str:
        return self.inner.name

    @cached_property
    def hash(self) -> str:
        """sha256 of the wording and of it being a conversation."""
        texts = {"first": self.inner.opening(_PROBE), "later": self.inner.following(_PROBE)}
        return template_hash("chat", self.version, texts, {"inner": self.inner.hash})

    @property
    def history_length(self) -> int:
        """All that was said."""
        return sys.maxsize

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.inner.hidden

    def message(self, view: PromptView) -> Message:
        """What is said to the policy at this turn, the first or a later one."""
        said = self.inner.following(view) if view.step > 0 else self.inner.opening(view)
        return {"role": "user", "content": said.strip()}

    def render(self, view: PromptView) -> list[Message]:
        """The first prompt, which is its first message.

        Raises:
            ValueError: a later turn, whose prompt holds the replies so far.
        """
        if view.step > 0:
            raise ValueError(
                f"The prompt of turn {view.step} of a conversation holds the replies so far, which "
                "a view does not have. Make it from the conversation."
            )
        return [self.message(view)]

    def parse(self, reply: str) -> ParsedReply:
        """As `inner` does."""
        return self.inner.parse(reply)

    def format_command(self, command: str) -> FormattedReply:
        """As `inner` does."""
        return self.inner.format_command(command)
