"""Prompts from observations and commands from replies, for any codebase.

Nothing here needs torch or a tokenizer.
"""

from __future__ import annotations

from rapidfuzz import process

from agent_envs.prompting.compact import CompactTemplate
from agent_envs.prompting.field import FieldTemplate
from agent_envs.prompting.history import Exchange, History, PromptView
from agent_envs.prompting.parsing import (
    ParsedReply,
    action_spans,
    command_verb,
    parse_plain,
    parse_tagged,
    project,
)
from agent_envs.prompting.templates import (
    FormattedReply,
    Message,
    PromptTemplate,
    named_verbs,
    shown_actions,
    tagged_reply,
)

TEMPLATES: tuple[str, ...] = ("field", "compact")


def get_template(
    name: str,
    *,
    history_length: int = 2,
    hidden: tuple[str, ...] | None = None,
    tail: int = 30,
) -> PromptTemplate:
    """Make a template by name; `hidden` None keeps that template's own list.

    Raises:
        ValueError: unknown name (with the nearest known one), or a negative length.
    """
    if history_length < 0 or tail < 0:
        raise ValueError(f"history_length={history_length} and tail={tail} must be 0 or more")
    if name == "field":
        field = FieldTemplate(history_length=history_length, tail=tail)
        return field if hidden is None else FieldTemplate(history_length, hidden, tail)
    if name == "compact":
        compact = CompactTemplate(history_length=history_length, tail=tail)
        return compact if hidden is None else CompactTemplate(history_length, hidden, tail)
    nearest = process.extractOne(name, TEMPLATES)
    hint = f"; did you mean {nearest[0]!r}?" if nearest is not None else ""
    raise ValueError(f"unknown prompt template {name!r}, known: {', '.join(TEMPLATES)}{hint}")


__all__ = [
    "TEMPLATES",
    "CompactTemplate",
    "Exchange",
    "FieldTemplate",
    "FormattedReply",
    "History",
    "Message",
    "ParsedReply",
    "PromptTemplate",
    "PromptView",
    "action_spans",
    "command_verb",
    "get_template",
    "named_verbs",
    "parse_plain",
    "parse_tagged",
    "project",
    "shown_actions",
    "tagged_reply",
]
