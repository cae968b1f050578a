"""The two templates as WebShop needs them: pages instead of sentences, links instead of a list.

`field` has the layout of the published runs (verl-agent; GiGPO, arXiv:2505.10978): the task once,
then the fields of a page in quotes. `compact` shortens pages for tiny models; a link stands where
it is on the page, spelt as the command that follows it, and only the others are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_envs.prompting.compact import CompactTemplate, compact_text
from agent_envs.prompting.field import FieldTemplate
from agent_envs.prompting.history import PromptView
from agent_envs.prompting.parsing import WEBSHOP_TAIL
from agent_envs.prompting.templates import recent, shown_actions
from agent_envs.prompting.webshop_pages import SEPARATOR, after_task, short_page

VERSION = 1
"""Of everything in this module and in `webshop_pages` that decides a text."""

MAX_CHARACTERS = 13_000
"""A longer `field` prompt is made without its history, as in the published runs."""

_FIELD_TEXTS = {"field": "'{text}'", "separator": SEPARATOR, "command": "'{command}',"}
_COMPACT_TEXTS = {"past": "> {action}\n"}
_PLACEHOLDER = ("<query>", "<your query>")


@dataclass(frozen=True)
class WebShopFieldTemplate(FieldTemplate):
    """`field` for shop pages.

    Args:
        history_length: past steps shown (the published runs use 2).
        hidden: verbs left out of the list of possible commands.
        tail: characters sent when a reply has no action tags (20 in the published runs).
        think: whether the prompt asks for a thought.
        max_characters: of the whole prompt; a longer one is made without its history.
    """

    hidden: tuple[str, ...] = ()
    tail: int = WEBSHOP_TAIL
    max_characters: int = MAX_CHARACTERS

    def _content(self, view: PromptView, history_length: int) -> str:
        text = super()._content(view, history_length)
        if len(text) > self.max_characters:
            return super()._content(view, 0)
        return text

    def _texts(self) -> Mapping[str, str]:
        return {**super()._texts(), **_FIELD_TEXTS}

    def _options(self) -> Mapping[str, Any]:
        own = {"pages": "webshop", "pages_version": VERSION, "placeholder": _PLACEHOLDER[1]}
        return {**super()._options(), **own, "max_characters": self.max_characters}

    def _page(self, observation: str, goal: str) -> str:
        rest = after_task(observation, goal)
        if rest == observation:
            return observation
        quoted = [_FIELD_TEXTS["field"].format(text=text) for text in rest.split(SEPARATOR)]
        return SEPARATOR.join(quoted)

    def _actions(self, view: PromptView) -> str:
        free = [template.replace(*_PLACEHOLDER) for template in view.action_templates]
        count = len(view.action_templates)
        listed = shown_actions(view, self.hidden)
        commands = (*free, *listed[: len(listed) - count])
        lines = [_FIELD_TEXTS["command"].format(command=command) for command in commands]
        return "\n".join(("", *lines, ""))


@dataclass(frozen=True)
class WebShopCompactTemplate(CompactTemplate):
    """`compact` for shop pages: past commands without their pages, then the page, shortened.

    Args:
        history_length: past commands shown.
        hidden: verbs left out of the list; the env still accepts them.
        tail: characters sent when a reply has no action tags.
        title_length: of a product's name, in characters; it is cut between words.
        text_length: of a description or a feature, likewise.
    """

    hidden: tuple[str, ...] = ()
    tail: int = WEBSHOP_TAIL
    title_length: int = 60
    text_length: int = 120

    def render(self, view: PromptView) -> str:
        """The text that the reply continues."""
        past = [
            _COMPACT_TEXTS["past"].format(action=action)
            for _, _, action in recent(view, self.history_length)
        ]
        page = short_page(
            view.observation, view.goal, view.admissible, self.title_length, self.text_length
        )
        listed = [
            action for action in shown_actions(view, self.hidden) if action not in page.commands
        ]
        return compact_text(view.goal, past, page.text or None, listed)

    def _texts(self) -> Mapping[str, str]:
        return {**super()._texts(), **_COMPACT_TEXTS}

    def _options(self) -> Mapping[str, Any]:
        own = {"pages": "webshop", "pages_version": VERSION}
        lengths = {"title_length": self.title_length, "text_length": self.text_length}
        return {**super()._options(), **own, **lengths}
