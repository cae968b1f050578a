"""Prompts from observations and commands from replies, for any codebase.

Nothing here needs torch or a tokenizer.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rapidfuzz import process

from agent_envs.prompting.chat import ChatTemplate, Conversational
from agent_envs.prompting.compact import CompactTemplate
from agent_envs.prompting.field import LAYOUTS, FieldTemplate
from agent_envs.prompting.history import Exchange, History, PromptView
from agent_envs.prompting.parsing import (
    ParsedReply,
    action_spans,
    command_verb,
    parse_plain,
    parse_tagged,
    project,
)
from agent_envs.prompting.react_prompt import ReActTemplate, WebShopReActTemplate
from agent_envs.prompting.templates import (
    FormattedReply,
    Message,
    PromptTemplate,
    named_verbs,
    shown_actions,
    tagged_reply,
)
from agent_envs.prompting.webshop import WebShopCompactTemplate, WebShopFieldTemplate

TEMPLATES: tuple[str, ...] = ("field", "compact", "react")
CONTEXTS: tuple[str, ...] = ("window", "chat")
"""Every prompt made anew from the latest steps, or one conversation that grows."""
PAGES: tuple[str, ...] = ("plain", "webshop")
"""What observations are: sentences, each episode stating its task, or WebShop's pages."""

_CLASSES: dict[tuple[str, str], type[FieldTemplate | CompactTemplate | ReActTemplate]] = {
    ("field", "plain"): FieldTemplate,
    ("compact", "plain"): CompactTemplate,
    ("react", "plain"): ReActTemplate,
    ("field", "webshop"): WebShopFieldTemplate,
    ("compact", "webshop"): WebShopCompactTemplate,
    ("react", "webshop"): WebShopReActTemplate,
}


def get_template(
    name: str,
    *,
    history_length: int = 2,
    hidden: tuple[str, ...] | None = None,
    tail: int | None = None,
    pages: str = "plain",
    layout: str = "standard",
    context: str = "window",
) -> PromptTemplate:
    """Make a template by name; `hidden` and `tail` None keep that template's own.

    Args:
        name: one of `TEMPLATES`.
        history_length: past steps shown.
        hidden: verbs left out of the list of commands.
        tail: characters sent when a reply has no action tags; `react` has no tags.
        pages: one of `PAGES`, a property of the environment.
        layout: one of `LAYOUTS`; of `field` only.
        context: one of `CONTEXTS`.

    Raises:
        ValueError: unknown name (with the nearest known one), a negative length, or an option that
            the template does not have.
    """
    if history_length < 0 or (tail is not None and tail < 0):
        raise ValueError(f"history_length={history_length} and tail={tail} must be 0 or more")
    _check("prompt template", name, TEMPLATES)
    _check("kind of pages", pages, PAGES)
    _check("prompt layout", layout, LAYOUTS)
    _check("prompt context", context, CONTEXTS)
    options: dict[str, Any] = {"history_length": history_length}
    if hidden is not None:
        options["hidden"] = hidden
    if tail is not None:
        options["tail"] = tail
    if layout != LAYOUTS[0]:
        options["layout"] = layout
    made = _CLASSES[name, pages]
    unknown = options.keys() - {field.name for field in fields(made)}
    if unknown:
        raise ValueError(f"the prompt template {name!r} has no option {min(unknown)}")
    template = made(**options)
    return ChatTemplate(template) if context == "chat" else template


def _check(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        nearest = process.extractOne(name, known)
        hint = f"; did you mean {nearest[0]!r}?" if nearest is not None else ""
        raise ValueError(f"unknown {what} {name!r}, known: {', '.join(known)}{hint}")


__all__ = [
    "CONTEXTS",
    "LAYOUTS",
    "PAGES",
    "TEMPLATES",
    "ChatTemplate",
    "CompactTemplate",
    "Conversational",
    "Exchange",
    "FieldTemplate",
    "FormattedReply",
    "History",
    "Message",
    "ParsedReply",
    "PromptTemplate",
    "PromptView",
    "ReActTemplate",
    "WebShopCompactTemplate",
    "WebShopFieldTemplate",
    "WebShopReActTemplate",
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
