"""The interface of a prompt template and what the templates share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, TypedDict

from agent_envs.prompting.history import PromptView
from agent_envs.prompting.parsing import ParsedReply, command_verb


class Message(TypedDict):
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class FormattedReply:
    """A full assistant text around one command.

    Attributes:
        text: what the assistant would say, without the end-of-turn token.
        command_span: characters of the command, end exclusive.
        closing_span: characters of the closing tag, end exclusive.
    """

    text: str
    command_span: tuple[int, int]
    closing_span: tuple[int, int]


class PromptTemplate(Protocol):
    """A versioned prompt layout.

    `hash` covers the wording, the version and every option, so two runs with equal
    hashes showed their models the same text for the same view.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def hash(self) -> str: ...

    @property
    def history_length(self) -> int: ...

    @property
    def hidden(self) -> tuple[str, ...]:
        """Verbs left out of the list of possible commands."""
        ...

    def render(self, view: PromptView) -> list[Message] | str:
        """Chat messages, or plain text for a model without a chat template."""
        ...

    def parse(self, reply: str) -> ParsedReply: ...

    def format_command(self, command: str) -> FormattedReply: ...


def tagged_reply(command: str) -> FormattedReply:
    """``<think></think><action>COMMAND</action>`` with its spans.

    The empty thought is context for the command: without it the projection would call
    the reply malformed.
    """
    head, close = "<think></think><action>", "</action>"
    end = len(head) + len(command)
    return FormattedReply(head + command + close, (len(head), end), (end, end + len(close)))


def shown_actions(view: PromptView, hidden: Collection[str]) -> tuple[str, ...]:
    """Admissible commands without the hidden verbs, then the unlistable templates.

    The env names every verb, never a table in the template: ALFWorld renamed `put` to
    `move` between releases, and a constant here would teach a verb the env refuses.
    """
    kept = tuple(command for command in view.admissible if command_verb(command) not in hidden)
    return kept + view.action_templates


def named_verbs(view: PromptView, hidden: Collection[str] = ()) -> frozenset[str]:
    """Verbs a prompt built from `view` offers."""
    return frozenset(command_verb(action) for action in shown_actions(view, hidden))


def recent(view: PromptView, length: int) -> tuple[tuple[int, str, str], ...]:
    """The last `length` steps as (1-based step number, observation, command)."""
    first = max(0, len(view.history) - length)
    offset = view.step - len(view.history)
    return tuple(
        (offset + first + i + 1, observation, command)
        for i, (observation, command) in enumerate(view.history[first:])
    )


def template_hash(
    name: str, version: int, texts: Mapping[str, str], options: Mapping[str, object]
) -> str:
    """sha256 over everything that decides the rendered text."""
    content = {"name": name, "version": version, "texts": dict(texts), "options": dict(options)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
