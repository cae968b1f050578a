"""A short plain-text prompt for tiny models on a CPU.

Same information as the `field` layout without its sentences: a model with a vocabulary
learnt from environment text needs about 100 to 160 tokens. The reply has the same tags
and the same projection, so format statistics are comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from agent_envs.prompting.history import PromptView
from agent_envs.prompting.parsing import ALFWORLD_TAIL, ParsedReply, parse_tagged
from agent_envs.prompting.templates import (
    FormattedReply,
    recent,
    shown_actions,
    tagged_reply,
    template_hash,
)

# One command a line, so that a command is spelt in the list exactly as in the reply (no
# leading blank): a small model then copies tokens instead of translating them.
_TEXTS = {
    "goal": "task: {goal}\n",
    "exchange": "{observation}\n> {action}\n",
    "now": "{observation}\n",
    "actions": "can:\n{actions}\n",
}
_BANNER = "-= Welcome to TextWorld, ALFRED! =-"
_TASK_LEAD = "Your task is to: "


@dataclass(frozen=True)
class CompactTemplate:
    """Plain text: goal, last steps, observation, possible commands.

    Args:
        history_length: past steps shown.
        hidden: verbs left out of the list; the env still accepts them.
        tail: characters sent when a reply has no action tags.
    """

    history_length: int = 2
    hidden: tuple[str, ...] = ("examine", "help", "inventory", "look")
    tail: int = ALFWORLD_TAIL

    name = "compact"
    version = 1

    @cached_property
    def hash(self) -> str:
        """sha256 of wording, version and options."""
        return template_hash(self.name, self.version, self._texts(), self._options())

    def render(self, view: PromptView) -> str:
        """The text that the reply continues."""
        exchange = _TEXTS["exchange"]
        past = [
            exchange.format(observation=_condense(observation, view.goal), action=action)
            for _, observation, action in recent(view, self.history_length)
        ]
        now = _condense(view.observation, view.goal)
        return compact_text(view.goal, past, now, shown_actions(view, self.hidden))

    def opening(self, view: PromptView) -> str:
        """The first message of a conversation: task, first observation, commands."""
        return replace(self, history_length=0).render(view)

    def following(self, view: PromptView) -> str:
        """Every later message: the same without the task."""
        return self.opening(view).removeprefix(_TEXTS["goal"].format(goal=view.goal))

    def parse(self, reply: str) -> ParsedReply:
        """Project a reply; see `parse_tagged`."""
        return parse_tagged(reply, self.tail)

    def format_command(self, command: str) -> FormattedReply:
        """The reply that sends `command` without a thought."""
        return tagged_reply(command)

    def _texts(self) -> Mapping[str, str]:
        """The wording."""
        return _TEXTS

    def _options(self) -> Mapping[str, Any]:
        """Everything besides the wording that decides the text."""
        return {
            "history_length": self.history_length,
            "hidden": sorted(self.hidden),
            "tail": self.tail,
            "dropped": [_BANNER, _TASK_LEAD],
        }


def compact_text(goal: str, past: Iterable[str], now: str | None, actions: Iterable[str]) -> str:
    """The layout: goal, what was, what is (None: nothing to say of it), what can be done."""
    return "".join(
        (
            _TEXTS["goal"].format(goal=goal),
            *past,
            "" if now is None else _TEXTS["now"].format(observation=now),
            _TEXTS["actions"].format(actions="\n".join(actions)),
        )
    )


def _condense(observation: str, goal: str) -> str:
    """Drop the banner and the task sentence, which the prompt states once at the top."""
    text = observation.replace(_BANNER, "").replace(_TASK_LEAD + goal, "")
    return "\n".join(line for line in (raw.strip() for raw in text.splitlines()) if line)
