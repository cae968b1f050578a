"""Hindsight skills as text: reading them from a reply, and putting them into a prompt.

Pure functions over text; the prompts that ask for a skill are in `trainer.auxiliary.analyser`.

Source: SEED (arXiv:2607.14777); the wording is our own.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

SkillMode = Literal["episode_only", "episode_step"]
Place = Literal["task", "turn", "end"]

SKILL_MODES = ("episode_only", "episode_step")

SUMMARY_FIELD = "episode_summary"
SKILL_FIELD = "episode_skill"
STEPS_FIELD = "step_skills"
MIN_WORDS = 5
MAX_STEP_SKILLS = 5

EPISODE_TITLE = "What earlier experience with this task teaches:"
STEP_TITLE = "Advice for this very step:"

# Sentences that hand the turn to the policy: in the published prompts, and in our `field` layout.
TURN_SENTENCES = ("Now it's your turn", "It is your turn", "Decide on the next command.")

# Limits on hostile or broken replies: no model needs more to write one flat object.
_MAX_DEPTH = 30
_MAX_OBJECTS = 50

_FENCE = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n?(.*?)```", re.DOTALL)
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)


@dataclass(frozen=True, slots=True)
class SkillReply:
    """An analyser's reply, read.

    Attributes:
        skill: the episode's skill, stripped; "" where the object has none.
        ok: `skill_ok(skill)`. The whole trajectory counts as without skill where it is False.
        summary: the episode's summary, "" where missing.
        steps: skills of single steps by zero-based step, at most `MAX_STEP_SKILLS`, all ok.
    """

    skill: str
    ok: bool
    summary: str = ""
    steps: Mapping[int, str] | None = None

    def at(self, step: int) -> tuple[Literal["episode", "step"], str]:
        """Which skill guides a step: its own, or else the episode's ("step priority")."""
        own = (self.steps or {}).get(step)
        return ("episode", self.skill) if own is None else ("step", own)


class Inserted(NamedTuple):
    """A prompt with a section, and where it went: after the task, before the turn, at the end."""

    text: str
    place: Place


def skill_ok(text: str | None) -> bool:
    """Whether a skill says something: >= 5 words, and not punctuation alone.

    >>> skill_ok("Look into closed drawers first."), skill_ok("..."), skill_ok(None)
    (True, False, False)
    """
    if text is None:
        return False
    return len(text.split()) >= MIN_WORDS and any(character.isalnum() for character in text)


def parse_skill(response: str, n_steps: int | None = None) -> SkillReply | None:
    """The skill in a reply that should hold one JSON object.

    Fenced blocks are searched before the whole text. Each object is read as JSON (raw line breaks
    in strings are allowed), then as JSON without trailing commas, then as a Python literal
    (`ast.literal_eval`, which evaluates no code). The first object with the field
    "episode_skill" counts, be it inside another one.

    Args:
        response: the analyser's text.
        n_steps: steps of the trajectory; step skills beyond are dropped. None: no limit.

    Returns:
        The reply; without skill and not ok if there are objects but none has the field; None if
        there is no object at all.

    >>> parse_skill('So: {"episode_skill": "Look into closed drawers first.",}').skill
    'Look into closed drawers first.'
    """
    found = None
    for text in (*_FENCE.findall(response), response):
        for value in _objects(text):
            found = SkillReply("", False) if found is None else found
            holder = _holder(value)
            if holder is not None:
                return _reply(holder, n_steps)
    return found


def insert_episode_skill(
    prompt: str,
    skill: str,
    task: str,
    *,
    title: str = EPISODE_TITLE,
    turn_sentences: Sequence[str] = TURN_SENTENCES,
) -> Inserted:
    """Put a titled section right after the line that states the task.

    Without such a line it goes before the sentence that hands over the turn, without that one to
    the end. Nothing else changes: removing the section gives the prompt back.

    Args:
        prompt: the student's prompt (the user message of a chat).
        skill: the section's text.
        task: the task sentence as the prompt states it; its first occurrence counts, for later
            ones may be pages quoted in the history.
        title: the section's first line.
        turn_sentences: beginnings of the sentence that hands over the turn; the last occurrence
            of any counts, for earlier ones may be quoted.

    Returns:
        The new prompt and the place.
    """
    at = prompt.find(task) if task else -1
    if at < 0:
        return _before_turn(prompt, f"{title}\n{skill}", turn_sentences)
    end = prompt.find("\n", at + len(task))
    end = len(prompt) if end < 0 else end
    return Inserted(f"{prompt[:end]}\n{title}\n{skill}{prompt[end:]}", "task")


def insert_step_skill(
    prompt: str,
    skill: str,
    *,
    title: str = STEP_TITLE,
    turn_sentences: Sequence[str] = TURN_SENTENCES,
) -> Inserted:
    """Put a titled section just before the sentence that hands over the turn, or at the end.

    Args:
        prompt, skill, title, turn_sentences: see `insert_episode_skill`.
    """
    return _before_turn(prompt, f"{title}\n{skill}", turn_sentences)


def insert_skill(
    prompt: str,
    reply: SkillReply,
    step: int,
    task: str,
    *,
    turn_sentences: Sequence[str] = TURN_SENTENCES,
) -> Inserted:
    """The teacher's prompt for one step: with its own skill, or else with the episode's.

    Args:
        prompt, task, turn_sentences: see `insert_episode_skill`.
        reply: a reply that is ok.
        step: zero-based step of the trajectory.

    Raises:
        ValueError: the reply is not ok; such a trajectory takes no part (no substitute skill).
    """
    if not reply.ok:
        raise ValueError("This reply has no valid skill; leave its trajectory out (mask 0).")
    kind, skill = reply.at(step)
    if kind == "step":
        return insert_step_skill(prompt, skill, turn_sentences=turn_sentences)
    return insert_episode_skill(prompt, skill, task, turn_sentences=turn_sentences)


def other_skill(valid_N: Sequence[bool], generator: np.random.Generator) -> list[int | None]:
    """Whose skill each trajectory gets in the shuffled control: never its own.

    Args:
        valid_N: whether each trajectory has a valid skill.
        generator: source of the draw.

    Returns:
        Index of another trajectory with a valid skill, each used once; None for trajectories
        without one, and for a lone valid one.
    """
    valid = [i for i, ok in enumerate(valid_N) if ok]
    partner: list[int | None] = [None] * len(valid_N)
    if len(valid) < 2:
        return partner
    # Neighbours on a random circle: a plain permutation leaves about one skill at its place.
    circle = [valid[i] for i in generator.permutation(len(valid))]
    for here, there in zip(circle, circle[1:] + circle[:1], strict=True):
        partner[here] = there
    return partner


def skill_report(
    replies_N: Sequence[SkillReply | None], success_N: Sequence[bool]
) -> dict[str, float]:
    """Share of valid skills by outcome, and their length.

    Returns:
        skill_valid, skill_valid_success, skill_valid_failure (0.0 without such trajectories) and
        skill_words, the mean over valid skills.
    """
    if len(replies_N) != len(success_N):
        raise ValueError(f"{len(replies_N)} replies for {len(success_N)} outcomes; give one each.")
    ok_N = [reply is not None and reply.ok for reply in replies_N]
    outcomes = list(zip(ok_N, success_N, strict=True))
    won = [ok for ok, success in outcomes if success]
    lost = [ok for ok, success in outcomes if not success]
    words = [len(reply.skill.split()) for reply in replies_N if reply is not None and reply.ok]
    return {
        "skill_valid": sum(ok_N) / max(len(ok_N), 1),
        "skill_valid_success": sum(won) / max(len(won), 1),
        "skill_valid_failure": sum(lost) / max(len(lost), 1),
        "skill_words": sum(words) / max(len(words), 1),
    }


def _before_turn(prompt: str, section: str, turn_sentences: Sequence[str]) -> Inserted:
    at = max((prompt.rfind(sentence) for sentence in turn_sentences if sentence), default=-1)
    if at < 0:
        return Inserted(f"{prompt}\n\n{section}", "end")
    return Inserted(f"{prompt[:at]}{section}\n\n{prompt[at:]}", "turn")


def _reply(values: Mapping[Any, Any], n_steps: int | None) -> SkillReply:
    skill = _text(values[SKILL_FIELD])
    steps: dict[int, str] = {}
    entries = values.get(STEPS_FIELD)
    for entry in entries if isinstance(entries, list) else []:
        if len(steps) == MAX_STEP_SKILLS:
            break
        if not isinstance(entry, dict):
            continue
        step, text = entry.get("step"), _text(entry.get("skill"))
        # True is an int to Python, but no step.
        if type(step) is not int or step < 0 or (n_steps is not None and step >= n_steps):
            continue
        if skill_ok(text):
            steps.setdefault(step, text)
    return SkillReply(skill, skill_ok(skill), _text(values.get(SUMMARY_FIELD)), steps)


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _holder(value: Any) -> Mapping[Any, Any] | None:
    """The first object with the skill's field: `value` itself, or one inside it."""
    if isinstance(value, dict):
        if SKILL_FIELD in value:
            return value
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((h for item in value if (h := _holder(item)) is not None), None)
    return None


def _objects(text: str) -> Iterator[dict[Any, Any]]:
    """Objects in a text, in order; the inside of one that could be read is not searched again."""
    start = text.find("{")
    for _ in range(_MAX_OBJECTS):
        if start < 0:
            return
        end = _object_end(text, start)
        value = None if end is None else _read(text[start:end])
        if value is not None:
            yield value
        start = text.find("{", start + 1 if value is None or end is None else end)


def _object_end(text: str, start: int) -> int | None:
    """End (exclusive) of the object that opens at `start`; None if it never closes."""
    depth, quote, at = 0, "", start
    while at < len(text):
        character = text[at]
        if quote:
            if character == "\\":
                at += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "{[":
            depth += 1
            if depth > _MAX_DEPTH:
                return None
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return None


def _read(text: str) -> dict[Any, Any] | None:
    repaired = _STRING_OR_COMMA.sub(lambda m: "" if m.group() == "," else m.group(), text)
    for source in (text, repaired):
        try:
            value = json.loads(source, strict=False)
        except ValueError:
            continue
        return value if isinstance(value, dict) else None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
