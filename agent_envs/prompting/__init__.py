"""Prompts from observations and commands from replies, for any codebase.

Nothing here needs torch or a tokenizer.
"""

from __future__ import annotations

from dataclasses import replace

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
from agent_envs.prompting.webshop import WebShopCompactTemplate, WebShopFieldTemplate

TEMPLATES: tuple[str, ...] = ("field", "compact")
PAGES: tuple[str, ...] = ("plain", "webshop")
"""What observations are: sentences, each episode stating its task, or WebShop's pages."""

_CLASSES: dict[tuple[str, str], type[FieldTemplate | CompactTemplate]] = {
    ("field", "plain"): FieldTemplate,
    ("compact", "plain"): CompactTemplate,
    ("field", "webshop"): WebShopFieldTemplate,
    ("compact", "webshop"): WebShopCompactTemplate,
}


def get_template(
    name: str,
    *,
    history_length: int = 2,
    hidden: tuple[str, ...] | None = None,
    tail: int | None = None,
    pages: str = "plain",
) -> PromptTemplate:
    """Make a template by name; `hidden` and `tail` None keep that template's own.

    Args:
        name: one of `TEMPLATES`.
        history_length: past steps shown.
        hidden: verbs left out of the list of commands.
        tail: characters sent when a reply has no action tags.
        pages: one of `PAGES`, a property of the environment.

    Raises:
        ValueError: unknown name (with the nearest known one), or a negative length.
    """
    if history_length < 0 or (tail is not None and tail < 0):
        raise ValueError(f"history_length={history_length} and tail={tail} must be 0 or more")
    _check("prompt template", name, TEMPLATES)
    _check("kind of pages", pages, PAGES)
    made = _CLASSES[name, pages](history_length=history_length)
    return replace(
        made,
        hidden=made.hidden if hidden is None else hidden,
        tail=made.tail if tail is None else tail,
    )


def _check(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        nearest = process.extractOne(name, known)
        hint = f"; did you mean {nearest[0]!r}?" if nearest is not None else ""
        raise ValueError(f"unknown {what} {name!r}, known: {', '.join(known)}{hint}")


__all__ = [
    "PAGES",
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
    "WebShopCompactTemplate",
    "WebShopFieldTemplate",
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
