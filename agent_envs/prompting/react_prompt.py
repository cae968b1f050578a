"""ReAct's layout (arXiv:2210.03629) as a prompt to train with: a transcript that is continued.

One user message: what to do, the task, then the latest steps as ``Observation 3: ...`` and
``Action 3: ...``, the current observation and the possible commands. A reply is
``Thought: ...`` and ``Action: ...``; the thought may be left out, as in the paper's ALFWorld runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agent_envs.prompting.history import PromptView
from agent_envs.prompting.parsing import ParsedReply
from agent_envs.prompting.react import parse_react
from agent_envs.prompting.templates import (
    FormattedReply,
    Message,
    recent,
    shown_actions,
    template_hash,
)
from agent_envs.prompting.webshop_pages import after_task

__all__ = ["ReActTemplate", "WebShopReActTemplate"]

_TEXTS = {
    "instruction": (
        "Solve a task in a text environment, one command at a time. Answer every observation with "
        "a line 'Thought: ' and what you make of the situation, which you may leave out, and then "
        "with a line 'Action: ' and exactly one command that is possible."
    ),
    "task": "Task: {goal}",
    "observation": "Observation {number}: {observation}",
    "action": "Action {number}: {action}",
    "actions": "Possible commands: {actions}",
    "separator": " | ",
}
_REPLY = "Action: "


@dataclass(frozen=True)
class ReActTemplate:
    """A transcript of thoughts, actions and observations.

    Args:
        history_length: past steps shown.
        hidden: verbs left out of the list of possible commands.
    """

    history_length: int = 2
    hidden: tuple[str, ...] = ("help",)

    name = "react"
    version = 1

    @cached_property
    def hash(self) -> str:
        """sha256 of wording, version and options."""
        return template_hash(self.name, self.version, _TEXTS, self._options())

    def render(self, view: PromptView) -> list[Message]:
        """The single user message for the next decision."""
        lines = self._constant(view)
        for number, observation, action in recent(view, self.history_length):
            page = self._page(observation, view.goal)
            lines.append(_TEXTS["observation"].format(number=number, observation=page))
            lines.append(_TEXTS["action"].format(number=number, action=action))
        return [{"role": "user", "content": "\n".join([*lines, *self._now(view)])}]

    def opening(self, view: PromptView) -> str:
        """The first message of a conversation: instruction, task, first observation, commands."""
        return "\n".join([*self._constant(view), *self._now(view)])

    def following(self, view: PromptView) -> str:
        """Every later message: what is observed now, and the commands."""
        return "\n".join(self._now(view))

    def parse(self, reply: str) -> ParsedReply:
        """The first command behind ``Action:``; see `parse_react`."""
        return parse_react(reply)

    def format_command(self, command: str) -> FormattedReply:
        """``Action: COMMAND``, without a thought; nothing closes it but the end token."""
        end = len(_REPLY) + len(command)
        return FormattedReply(_REPLY + command, (len(_REPLY), end), (end, end))

    def _constant(self, view: PromptView) -> list[str]:
        return [_TEXTS["instruction"], _TEXTS["task"].format(goal=view.goal)]

    def _now(self, view: PromptView) -> list[str]:
        page = self._page(view.observation, view.goal)
        actions = _TEXTS["separator"].join(shown_actions(view, self.hidden))
        return [
            _TEXTS["observation"].format(number=view.step + 1, observation=page),
            _TEXTS["actions"].format(actions=actions),
        ]

    def _page(self, observation: str, goal: str) -> str:
        """An observation as the prompt shows it."""
        return observation

    def _options(self) -> Mapping[str, Any]:
        return {
            "history_length": self.history_length,
            "hidden": sorted(self.hidden),
            "reply": _REPLY,
        }


@dataclass(frozen=True)
class WebShopReActTemplate(ReActTemplate):
    """`react` for shop pages, which state the task once, at the top."""

    hidden: tuple[str, ...] = ()

    def _page(self, observation: str, goal: str) -> str:
        return after_task(observation, goal)

    def _options(self) -> Mapping[str, Any]:
        return {**super()._options(), "pages": "webshop"}
