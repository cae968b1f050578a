"""ReAct (arXiv:2210.03629): a few worked examples, then a transcript that grows.

The examples are our own: episodes of generated households and of the generated shop, with thoughts
of our wording (`exemplars/`). ALFWorld has two for each of its six types of task, and the type is
read off the task's sentence, which is all that the student knows; WebShop has one.

A reply that only thinks uses up a step, as in the original experiments, and is answered `OK.`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from agent_envs.errors import DataError
from agent_envs.prompting import Message, ParsedReply, shown_actions
from agent_envs.prompting.react import is_thought, parse_react
from agent_envs.prompting.templates import template_hash
from trainer.baselines.episodes import Situation
from trainer.baselines.models import Prompt

__all__ = [
    "ReActAgent",
    "check_exemplars",
    "exemplar_text",
    "load_exemplars",
    "transcript",
    "type_of_goal",
]

VERSION = 1
_KEPT = 600
"""Characters of a reply without a command that stay in the transcript."""

_TEXTS = {
    "alfworld": (
        "You act in a household that is described to you in text, to complete a task. Send one "
        "command at a time. Each of your replies may begin with a line of thought, which starts "
        "with `> think:`; then comes one line with the command, which starts with `> `. Use the "
        "commands and the names of things as the examples do."
    ),
    "webshop": (
        "You shop in a web store that is described to you in text, to buy what the instruction "
        "asks for. Send one command at a time: search[words] where the page has a search field, "
        "click[text] for anything that the page offers. Each of your replies may begin with a line "
        "of thought, which starts with `> think:`; then comes one line with the command, which "
        "starts with `> `."
    ),
    "example": "Example {number}:\n{text}",
    "notes": (
        "You have tried the task below before and did not complete it. What you noted then, the "
        "latest last:\n{notes}"
    ),
    "note": "- {note}",
    "begin": "Now it is your turn.\n{observation}",
    "task": "Your task is to: {goal}",
    "thought_only": "OK.",
    "commands": "Commands that are possible now: {commands}",
}


@dataclass(frozen=True)
class ReActAgent:
    """Few-shot thinking and acting.

    Args:
        world: `alfworld` or `webshop`.
        list_commands: also list the possible commands under the current observation (never under
            past ones). The original prompts do not.
        generation: of ALFWorld's wording: `move`, or `put` for games of an older release. The
            examples use its command for putting things down.
    """

    world: str
    list_commands: bool = False
    generation: str = "move"

    name = "react"
    context = "transcript"

    @property
    def history_length(self) -> int | None:
        """None: the transcript holds every step."""
        return None

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of wording, examples and options."""
        options = {
            "world": self.world,
            "list_commands": self.list_commands,
            "generation": self.generation,
            "exemplars": self._exemplars,
            "kept": _KEPT,
        }
        return template_hash(self.name, VERSION, _TEXTS, options)

    @cached_property
    def _exemplars(self) -> list[dict[str, Any]]:
        return load_exemplars(self.world)

    def prompt(self, situation: Situation) -> Prompt:
        """Instruction, examples, notes and the task; then the conversation so far."""
        goal = situation.view.goal
        examples = self._exemplars
        if self.world == "alfworld":
            kind = type_of_goal(goal)
            examples = [e for e in examples if e["task_type"] == kind]
        parts = [_TEXTS[self.world]]
        parts += [
            _TEXTS["example"].format(number=number, text=exemplar_text(example, self.generation))
            for number, example in enumerate(examples, 1)
        ]
        if situation.notes:
            notes = "\n".join(_TEXTS["note"].format(note=note) for note in situation.notes)
            parts.append(_TEXTS["notes"].format(notes=notes))
        begin = _TEXTS["begin"].format(observation=situation.first_observation)
        if goal not in situation.first_observation:
            begin += "\n" + _TEXTS["task"].format(goal=goal)
        parts.append(begin)
        messages: list[Message] = [{"role": "user", "content": "\n\n".join(parts)}]
        for told in situation.told:
            messages.append({"role": "assistant", "content": told.said})
            messages.append({"role": "user", "content": told.shown})
        if self.list_commands:
            commands = ", ".join(shown_actions(situation.view, ("help",)))
            listed = _TEXTS["commands"].format(commands=commands)
            last = messages[-1]
            messages[-1] = {"role": last["role"], "content": f"{last['content']}\n{listed}"}
        return messages

    def parse(self, reply: str) -> ParsedReply:
        """See `agent_envs.prompting.react.parse_react`."""
        return parse_react(reply)

    def said(self, reply: str, parsed: ParsedReply) -> str:
        """The reply up to its command: what a model makes up after it is left out."""
        if parsed.command_span is None:
            return reply.strip()[:_KEPT]
        return reply[: parsed.command_span[1]].strip()

    def shown(self, reply: str, observation: str) -> str:
        """The observation; `OK.` after nothing but a thought."""
        return _TEXTS["thought_only"] if is_thought(reply) else observation


def transcript(situation: Situation) -> str:
    """A whole episode as plain text."""
    lines = [situation.first_observation]
    if situation.view.goal not in situation.first_observation:
        lines.append(_TEXTS["task"].format(goal=situation.view.goal))
    for told in situation.told:
        lines += [told.said, told.shown]
    return "\n".join(lines)


def exemplar_text(example: Mapping[str, Any], generation: str = "move") -> str:
    """An example as the prompt shows it, with the commands of a generation of ALFWorld."""
    lines = [example["observation"]]
    if example["goal"] not in example["observation"]:
        lines.append(_TEXTS["task"].format(goal=example["goal"]))
    for step in example["steps"]:
        if step["thought"]:
            lines.append(f"> think: {step['thought']}")
        lines += [f"> {step['command']}", step["observation"]]
    text = "\n".join(lines)
    return _MOVE.sub(r"\1put \2 in/on \3", text) if generation == "put" else text


def load_exemplars(world: str) -> list[dict[str, Any]]:
    """The examples of `alfworld` or `webshop`, as `make_exemplars` wrote them.

    Raises:
        DataError: there is no such file, or it is of another format.
    """
    found: list[dict[str, Any]] = _read(world)["exemplars"]
    return found


def check_exemplars(world: str, task_ids: Sequence[str], manifest_hash: str) -> None:
    """Refuses an evaluation on tasks that the examples show.

    Raises:
        DataError: names one.
    """
    data = _read(world)
    shown = {example["task_id"] for example in data["exemplars"]}
    # Ids of a shop's goals are numbers, which say nothing without the shop.
    both = shown.intersection(task_ids)
    if both and (world == "alfworld" or data["manifest_hash"] == manifest_hash):
        raise DataError(
            f"The task {min(both)} is one of the worked examples in the prompt. Evaluate on others."
        )


def _read(world: str) -> dict[str, Any]:
    file = resources.files("trainer.baselines") / "exemplars" / f"{world}.json"
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"There are no ReAct examples for {world!r}: {file}.") from error
    if data.get("format") != 1:
        raise DataError(f"{file}: expected format 1, found {data.get('format')!r}.")
    return data


_MOVE = re.compile(r"^(> |You )move ((?:the )?[a-z]+ \d+) to ((?:the )?[a-z]+ \d+)", re.MULTILINE)
_TWO = re.compile(r"\b(?:two|both|pair)\b")
_LOOK = re.compile(r"\b(?:desk ?lamp|lamp|examine|look at|light)\b")
_HEAT = re.compile(r"\b(?:heat\w*|hot|warm\w*|microwaved|cook\w*)\b")
_COOL = re.compile(r"\b(?:cool\w*|cold|chill\w*)\b")
_CLEAN = re.compile(r"\b(?:clean\w*|wash\w*|rins\w*)\b")
_KINDS = (
    (_TWO, "pick_two_obj_and_place"),
    (_LOOK, "look_at_obj_in_light"),
    (_HEAT, "pick_heat_then_place_in_recep"),
    (_COOL, "pick_cool_then_place_in_recep"),
    (_CLEAN, "pick_clean_then_place_in_recep"),
)


def type_of_goal(goal: str) -> str:
    """The type of an ALFWorld task, from the words of its sentence.

    >>> type_of_goal("put a hot apple in fridge.")
    'pick_heat_then_place_in_recep'
    """
    text = goal.lower()
    for pattern, kind in _KINDS:
        if pattern.search(text):
            return kind
    return "pick_and_place_simple"
