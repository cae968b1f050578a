"""The chat prompt of the published agent runs, in our own words.

Layout of verl-agent (GiGPO, arXiv:2505.10978): one user message with the last steps, the
current observation, the admissible commands and the required form of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

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
# Wording of the layout in which whatever changes comes last.
_INSTRUCTION_FIRST = {
    "past": "What came before, each observation with the command you answered it with:",
    "progress_last": "So far you have sent {step} command(s).",
    "each_turn": "At every turn you are shown what you observe and which commands are possible.",
}
_WITHOUT_THOUGHT = {
    "instruction": (
        "Decide on the next command. Give exactly one of the possible commands, inside <action> "
        "and </action>."
    ),
}


Layout = Literal["standard", "instruction_first"]
LAYOUTS: tuple[Layout, ...] = ("standard", "instruction_first")


@dataclass(frozen=True)
class FieldTemplate:
    """One user message in the field's layout.

    Args:
        history_length: past steps shown (the published runs use 2).
        hidden: verbs left out of the list of possible commands.
        tail: characters sent when a reply has no action tags (30 in the published
            ALFWorld runs, 20 in WebShop's).
        think: whether the prompt asks for a thought. The projection wants one in any case.
        layout: `standard` is the published order. `instruction_first` begins with what never
            changes (role, instruction, task), then the history, oldest first, then the rest: the
            prompts of successive turns begin with the same text for as long as possible.
    """

    history_length: int = 2
    hidden: tuple[str, ...] = ("help",)
    tail: int = ALFWORLD_TAIL
    think: bool = True
    layout: Layout = "standard"

    name = "field"
    version = 1

    @cached_property
    def hash(self) -> str:
        """sha256 of wording, version and options."""
        return template_hash(self.name, self.version, self._texts(), self._options())

    def render(self, view: PromptView) -> list[Message]:
        """The single user message for the next decision."""
        return [{"role": "user", "content": self._content(view, self.history_length)}]

    def opening(self, view: PromptView) -> str:
        """The first message of a conversation: rules, task, first observation, commands."""
        return "\n".join([*self._constant(view), *self._now(view)])

    def following(self, view: PromptView) -> str:
        """Every later message: what is observed now, and the commands."""
        return "\n".join(self._now(view))

    def parse(self, reply: str) -> ParsedReply:
        """Project a reply; see `parse_tagged`."""
        return parse_tagged(reply, self.tail)

    def format_command(self, command: str) -> FormattedReply:
        """The reply that sends `command` without a thought."""
        return tagged_reply(command)

    def _constant(self, view: PromptView) -> list[str]:
        """What is the same at every turn of an episode."""
        texts = {**self._texts(), **_INSTRUCTION_FIRST}
        task = texts["task"].format(goal=view.goal)
        return [texts["role"], texts["each_turn"], texts["instruction"], "", task]

    def _now(self, view: PromptView) -> list[str]:
        key = "observation" if view.step > 0 else "first_observation"
        now = self._page(view.observation, view.goal)
        return [
            _TEXTS[key].format(number=view.step + 1, observation=now),
            _TEXTS["actions"].format(actions=self._actions(view)),
        ]

    def _instruction_first(self, view: PromptView, history_length: int) -> str:
        lines = self._constant(view)
        steps = recent(view, history_length)
        if steps:
            # The number of steps comes after the history, which only grows at first.
            lines.append(_INSTRUCTION_FIRST["past"])
            lines += [self._exchange(view, *step) for step in steps]
            lines.append(_INSTRUCTION_FIRST["progress_last"].format(step=view.step))
        return "\n".join([*lines, *self._now(view)])

    def _exchange(self, view: PromptView, number: int, observation: str, action: str) -> str:
        page = self._page(observation, view.goal)
        return _TEXTS["exchange"].format(number=number, observation=page, action=action)

    def _content(self, view: PromptView, history_length: int) -> str:
        if self.layout == "instruction_first":
            return self._instruction_first(view, history_length)
        lines = [_TEXTS["role"]]
        now = self._page(view.observation, view.goal)
        # ALFWorld's first observation already states the task.
        if view.step > 0 or view.goal not in now:
            lines.append(_TEXTS["task"].format(goal=view.goal))
        steps = recent(view, history_length)
        if steps:
            history = "\n".join(self._exchange(view, *step) for step in steps)
            lines.append(
                _TEXTS["progress"].format(step=view.step, shown=len(steps), history=history)
            )
        lines += [*self._now(view), ""]
        lines.append(self._texts()["instruction"])
        return "\n".join(lines)

    def _texts(self) -> Mapping[str, str]:
        """The wording."""
        texts = _TEXTS if self.think else {**_TEXTS, **_WITHOUT_THOUGHT}
        return texts if self.layout == "standard" else {**texts, **_INSTRUCTION_FIRST}

    def _options(self) -> Mapping[str, Any]:
        """Everything besides the wording that decides the text."""
        return {
            "history_length": self.history_length,
            "hidden": sorted(self.hidden),
            "tail": self.tail,
            **({} if self.layout == "standard" else {"layout": self.layout}),
        }

    def _page(self, observation: str, goal: str) -> str:
        """An observation as the prompt shows it."""
        return observation

    def _actions(self, view: PromptView) -> str:
        """What stands between the brackets of the possible commands."""
        return "\n ".join(f"'{action}'" for action in shown_actions(view, self.hidden))
