"""Retry with a hint: the policy reflects on an attempt that failed, then tries again knowing it.

After LEAFE (Learning Feedback-Grounded Agency from Reflective Experience, arXiv:2603.16843), in our
own words: a text model reads the failed attempt and writes a hint; from the step at which the
attempt is taken up, a text model acts with the hint in its prompt. The hint is in this oracle's
prompts only: what a branch records is what the student would have seen, and decisions carry no
thoughts, since those could tell of the hint. Which step that is, is the branch's affair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agent_envs.prompting import PromptTemplate
from oracles.base import Decision, History, Message, PlanStatus, TextModel
from oracles.text_model import AGAIN, Seen, Sees, ask, longer, prompt, seen_in_view, untold

AttemptOf = Callable[[History, str], History | None]
"""(history, observation) at the point where an attempt is taken up -> all of that attempt."""

VERSION = 1
"""Of the wording below."""
_TEXTS = {
    "task": "An attempt at a task in a text environment failed.\nThe task: {goal}\n",
    "left_out": "({count} earlier step(s) are left out.)",
    "step": "Step {number}. Observation: {observation}\nCommand: {action}{refused}",
    "refused": " (refused)",
    "ask": (
        "The attempt will be taken up again before step {number}. Think about what went wrong. "
        "Then write a hint for the second try, inside <hint> and </hint>: in one to three "
        "sentences, what to do differently from there on."
    ),
    "hint": "An earlier attempt at this task failed. A hint for this one: {hint}\n\n",
}
_HINT = re.compile(r"<hint>(.*?)</hint>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class RetryState:
    """A second try under way."""

    history: History
    hint: str | None = None
    """None: nothing was reflected on yet."""
    problem: str = ""
    """Why there is no hint."""


def among(attempts: Iterable[History]) -> AttemptOf:
    """Finds the first of some failed attempts that began with a history and went on."""
    known = tuple(attempts)

    def attempt_of(history: History, observation: str) -> History | None:
        length = len(history)
        for attempt in known:
            if (
                len(attempt) > length
                and attempt[:length] == history
                and attempt[length].observation == observation
            ):
                return attempt
        return None

    return attempt_of


class RetryOracle:
    """Reflects once, at the first decision of a branch, then acts with the hint.

    Statuses are those of `TextModelOracle`. TIMEOUT also where no reply has a hint in its tags:
    without one it would be another sample of the policy and no retry. UNSUPPORTED also where
    nothing has failed: no attempt is known and the history is empty.

    Args:
        model: acts; the policy itself, in the published form.
        template: makes the student's prompt and parses the reply. The hint stands before it.
        attempt_of: finds the whole attempt that failed, what came after this point included. None,
            or where it finds nothing: the history up to here is reflected on.
        reflector: writes the hint. None: `model`.
        sees: see `TextModelOracle`.
        privileged: see `TextModelOracle`.
        retries: further replies after one that cannot be used, for hint and commands alike.
        shown_steps: of the attempt, the last so many are in the prompt of the reflection.
    """

    def __init__(
        self,
        model: TextModel,
        template: PromptTemplate,
        *,
        attempt_of: AttemptOf | None = None,
        reflector: TextModel | None = None,
        sees: Sees = seen_in_view,
        privileged: bool = True,
        retries: int = 2,
        shown_steps: int = 30,
    ) -> None:
        if retries < 0 or shown_steps < 1:
            raise ValueError(
                f"retries={retries} must be 0 or more, shown_steps={shown_steps} 1 or more"
            )
        self.model = model
        self.template = template
        self.attempt_of = attempt_of
        self.reflector = model if reflector is None else reflector
        self.sees = sees
        self.privileged = privileged
        self.retries = retries
        self.shown_steps = shown_steps

    def start(self, view: Any, history: History) -> RetryState:
        """Nothing is asked yet: which attempt it is shows in the observation."""
        return RetryState(history)

    def act(self, state: RetryState, view: Any, observation: str) -> tuple[Decision, RetryState]:
        """One command, with the hint in the prompt."""
        seen = self.sees(view, state.history, observation)
        if seen is None:
            return Decision(PlanStatus.UNSUPPORTED, None, untold(view)), state
        if state.hint is None and not state.problem:
            attempt = state.history
            if self.attempt_of is not None:
                attempt = self.attempt_of(state.history, observation) or attempt
            if not attempt:
                detail = "nothing has failed: no attempt is known and the history is empty"
                return Decision(PlanStatus.UNSUPPORTED, None, detail), state
            state = self._reflected(state.history, attempt, seen)
        if state.hint is None:
            return Decision(PlanStatus.TIMEOUT, None, state.problem), state
        chat = hinted(prompt(self.template, seen, state.history, observation), state.hint)
        decision = ask(self.model, self.template, chat, seen, self.retries, thoughts=False)
        return decision, RetryState(longer(state.history, observation, decision), state.hint)

    def _reflected(self, history: History, attempt: History, seen: Seen) -> RetryState:
        content = reflection(seen.goal, attempt, len(history), self.shown_steps)
        messages = [Message(role="user", content=content)]
        for _ in range(self.retries + 1):
            reply = self.reflector(
                [Message(role=m["role"], content=m["content"]) for m in messages]
            )
            match = _HINT.search(reply)
            hint = "" if match is None else " ".join(match[1].split())
            if hint:
                return RetryState(history, hint)
            error = "it has no text inside <hint> and </hint>"
            messages += [
                Message(role="assistant", content=reply),
                Message(role="user", content=AGAIN.format(error=error)),
            ]
        return RetryState(history, None, f"none of {self.retries + 1} replies has a hint")


def hinted(chat: list[Message], hint: str) -> list[Message]:
    """The student's prompt with the hint before everything else."""
    first, *rest = chat
    content = _TEXTS["hint"].format(hint=hint) + first["content"]
    return [Message(role=first["role"], content=content), *rest]


def reflection(goal: str, attempt: History, taken_up: int, shown_steps: int) -> str:
    """What the reflector is asked.

    Args:
        goal: the task sentence.
        attempt: that failed.
        taken_up: the number of its steps, from 0 up, before which it is taken up again.
        shown_steps: the last so many are shown.
    """
    first = max(0, len(attempt) - shown_steps)
    lines = [_TEXTS["task"].format(goal=goal)]
    if first:
        lines.append(_TEXTS["left_out"].format(count=first))
    for number, item in enumerate(attempt[first:], first + 1):
        refused = "" if item.command_valid else _TEXTS["refused"]
        lines.append(
            _TEXTS["step"].format(
                number=number, observation=item.observation, action=item.action, refused=refused
            )
        )
    lines += ["", _TEXTS["ask"].format(number=taken_up + 1)]
    return "\n".join(lines)
