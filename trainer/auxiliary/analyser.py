"""Asking a model for the hindsight skill of a finished trajectory.

One user message: what is wanted, the form of the answer, then the trajectory. The same policy that
played the episode answers it (SEED), or an external model does (its warm start, and OPID). A model
is any function from chat messages to text, so nothing here knows how it is run.

The outcome label decides what is asked for: a success is turned into the workflow that worked, a
failure into warnings. Both are wanted; neither rewards nor returns are shown.

Source: SEED (arXiv:2607.14777); the wording is our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from trainer.auxiliary.skills import (
    MAX_STEP_SKILLS,
    MIN_WORDS,
    SKILL_FIELD,
    SKILL_MODES,
    STEPS_FIELD,
    SUMMARY_FIELD,
    SkillMode,
    SkillReply,
    parse_skill,
)

TextModel = Callable[[list[dict[str, str]]], str]

_CUT = " [...]"

_INTRODUCTION = (
    "Below is one finished attempt of an agent at a task. Work out what a future attempt at a task "
    "of this kind should know."
)
_FORM = "Answer with a single valid JSON object and nothing else. Its fields:"
_SUMMARY = f'"{SUMMARY_FIELD}": one or two sentences on what happened.'
_SUCCESS = (
    f'"{SKILL_FIELD}": the attempt succeeded, so state the workflow behind it: how to decide what '
    "to do next, and the order of actions that worked."
)
_FAILURE = (
    f'"{SKILL_FIELD}": the attempt failed, so state what to avoid: the decisive mistake, the signs '
    "by which to notice it early, and what to do instead."
)
_STYLE = (
    "The skill speaks to the agent that will act next. Keep it short, concrete and usable while "
    f"acting, at least {MIN_WORDS} words; give instructions, not a review of this attempt."
)
_STEPS = (
    f'"{STEPS_FIELD}": a list of at most {MAX_STEP_SKILLS} objects {{"step": number, "skill": '
    "text}, only for the steps that decided the outcome. The number is the one shown below, "
    "counted from 0; the text tells the agent in one imperative sentence what to do at that step."
)
_RETRY = (
    "An earlier answer of yours could not be used: {error} Answer again, with one valid JSON "
    "object only."
)


@dataclass(frozen=True, slots=True)
class EpisodeStep:
    """One step of a trajectory.

    Attributes:
        observation: what the environment showed before the response.
        response: the policy's full reply.
        valid: whether reply and command were accepted.
    """

    observation: str
    response: str
    valid: bool


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished trajectory: the task's text, whether it was solved, and its steps in order."""

    task: str
    success: bool
    steps: tuple[EpisodeStep, ...]


class Analysis(NamedTuple):
    """What came out of `analyse`.

    Attributes:
        reply: the last reply, read; None if it held no object.
        text: the last reply.
        attempts: model calls made.
        error: why the reply is not usable; "" if it is.
    """

    reply: SkillReply | None
    text: str
    attempts: int
    error: str


def analyser_prompt(
    episode: Episode,
    mode: SkillMode = "episode_only",
    *,
    error: str = "",
    text_limit: int | None = None,
) -> list[dict[str, str]]:
    """The chat that asks for the skill of one trajectory.

    Args:
        episode: the trajectory.
        mode: "episode_only" asks for one skill; "episode_step" also for skills of single steps.
        error: what was wrong with an earlier answer, appended; "" the first time.
        text_limit: characters kept of each observation and response, for pages that would fill
            the context. None: all.

    Returns:
        One user message.

    Raises:
        ValueError: unknown mode, a limit below 1, or a trajectory without steps.
    """
    if mode not in SKILL_MODES:
        raise ValueError(f"Unknown skill mode {mode!r}; choose one of {SKILL_MODES}.")
    if text_limit is not None and text_limit < 1:
        raise ValueError(f"text_limit must be at least 1 (or None), found {text_limit}.")
    if not episode.steps:
        raise ValueError("The trajectory has no steps, so there is nothing to learn from.")
    fields = [_SUMMARY, _SUCCESS if episode.success else _FAILURE]
    if mode == "episode_step":
        fields.append(_STEPS)
    lines = [
        _INTRODUCTION,
        "",
        _FORM,
        *(f"- {text}" for text in fields),
        _STYLE,
        "",
        f"Task: {episode.task}",
        f"Outcome: {'success' if episode.success else 'failure'}",
    ]
    for number, step in enumerate(episode.steps):
        lines += [
            "",
            f"Step {number}",
            f"Observation: {_cut(step.observation, text_limit)}",
            f"Response: {_cut(step.response, text_limit)}",
            f"Accepted: {'yes' if step.valid else 'no'}",
        ]
    if error:
        lines += ["", _RETRY.format(error=error)]
    return [{"role": "user", "content": "\n".join(lines)}]


def reply_error(reply: SkillReply | None) -> str:
    """What is wrong with a reply, in words for the model; "" if it can be used."""
    if reply is None:
        return "It held no JSON object that could be read."
    if not reply.skill:
        return f'Its object had no text under "{SKILL_FIELD}".'
    if not reply.ok:
        return f'The text under "{SKILL_FIELD}" had fewer than {MIN_WORDS} words.'
    return ""


def analyse(
    model: TextModel,
    episode: Episode,
    mode: SkillMode = "episode_only",
    *,
    attempts: int = 2,
    text_limit: int | None = None,
) -> Analysis:
    """Ask for a skill; where the answer cannot be used, ask again and say why.

    Args:
        model: chat messages to text.
        episode, mode, text_limit: see `analyser_prompt`.
        attempts: model calls at most, at least 1. The published runs retry once.

    Returns:
        The last answer. A trajectory whose `error` is not "" takes no part in the loss. Step
        skills are dropped under "episode_only", asked for or not.
    """
    if attempts < 1:
        raise ValueError(f"attempts must be at least 1, found {attempts}.")
    error, made = "", 0
    while True:
        text = model(analyser_prompt(episode, mode, error=error, text_limit=text_limit))
        made += 1
        reply = parse_skill(text, len(episode.steps) if mode == "episode_step" else 0)
        error = reply_error(reply)
        if not error or made == attempts:
            return Analysis(reply, text, made, error)


def _cut(text: str, limit: int | None) -> str:
    return text if limit is None or len(text) <= limit else text[:limit] + _CUT
