"""The chat prompt of the published agent runs, in our own words.

Layout of verl-agent (GiGPO, arXiv:2505.10978): one user message with the last steps, the
current observation, the admissible commands and the required form of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agent_envs.prompting.history import PromptView
from agent_envs.prompting.parsing import ALFWORLD_TAIL, ParsedReply, parse_tagged
from agent_envs.prompting.templates import (
    FormattedReply,
    Message,
    recent,
    shown_actions,
    tagged_reply,
    template_hash,
)

_TEXTS = {
    "role": "You are an agent that solves a task in a text environment, one command at a time.",
    "task": "The task: {goal}",
    "progress": (
        "So far you have sent {step} command(s). The latest {shown} observation(s), each with "
        "the command you answered it with:\n{history}"
    ),
    "exchange": "[Observation {number}: '{observation}', Action {number}: '{action}']",
    "first_observation": "What you observe: {observation}",
    "observation": "This is step {number}. What you observe now: {observation}",
    "actions": "Commands that are possible now: [{actions}].",
    "instruction": (
        "Decide on the next command. Think the situation through first, inside <think> and "
        "</think>. Then give exactly one of the possible commands, inside <action> and </action>."
    ),
}
_WITHOUT_THOUGHT = {
    "instruction": (
        "Decide on the next command. Give exactly one of the possible commands, inside <action> "
        "and </action>."
    ),
}


@dataclass(frozen=True)
class FieldTemplate:
    """One user message in the field's layout.

    Args:
        history_length: past steps shown (the published runs use 2).
        hidden: verbs left out of the list of possible commands.
        tail: characters sent when a reply has no action tags (30 in the published
            ALFWorld runs, 20 in WebShop's).
        think: whether the prompt asks for a thought. The projection wants one in any case.
    """

    history_length: int = 2
    hidden: tuple[str, ...] = ("help",)
    tail: int = ALFWORLD_TAIL
    think: bool = True

    name = "field"
    version = 1

    @cached_property
    def hash(self) -> str:
        """sha256 of wording, version and options."""
        return template_hash(self.name, self.version, self._texts(), self._options())

    def render(self, view: PromptView) -> list[Message]:
        """The single user message for the next decision."""
        return [{"role": "user", "content": self._content(view, self.history_length)}]

    def parse(self, reply: str) -> ParsedReply:
        """Project a reply; see `parse_tagged`."""
        return parse_tagged(reply, self.tail)

    def format_command(self, command: str) -> FormattedReply:
        """The reply that sends `command` without a thought."""
        return tagged_reply(command)

    def _content(self, view: PromptView, history_length: int) -> str:
        lines = [_TEXTS["role"]]
        now = self._page(view.observation, view.goal)
        # ALFWorld's first observation already states the task.
        if view.step > 0 or view.goal not in now:
            lines.append(_TEXTS["task"].format(goal=view.goal))
        steps = recent(view, history_length)
        if steps:
            history = "\n".join(
                _TEXTS["exchange"].format(
                    number=number, observation=self._page(observation, view.goal), action=action
                )
                for number, observation, action in steps
            )
            lines.append(
                _TEXTS["progress"].format(step=view.step, shown=len(steps), history=history)
            )
        key = "observation" if view.step > 0 else "first_observation"
        lines.append(_TEXTS[key].format(number=view.step + 1, observation=now))
        lines.append(_TEXTS["actions"].format(actions=self._actions(view)))
        lines.append("")
        lines.append(self._texts()["instruction"])
        return "\n".join(lines)

    def _texts(self) -> Mapping[str, str]:
        """The wording."""
        return _TEXTS if self.think else {**_TEXTS, **_WITHOUT_THOUGHT}

    def _options(self) -> Mapping[str, Any]:
        """Everything besides the wording that decides the text."""
        return {
            "history_length": self.history_length,
            "hidden": sorted(self.hidden),
            "tail": self.tail,
        }

    def _page(self, observation: str, goal: str) -> str:
        """An observation as the prompt shows it."""
        return observation

    def _actions(self, view: PromptView) -> str:
        """What stands between the brackets of the possible commands."""
        return "\n ".join(f"'{action}'" for action in shown_actions(view, self.hidden))
