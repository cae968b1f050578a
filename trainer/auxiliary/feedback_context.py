"""What a teacher may know that the student did not: five sources of feedback and their mixtures.

- *immediate feedback*: the environment's raw text after the action;
- *next observation*: the whole next prompt that the student got (history, possible commands).
  Both come from the next state; they differ in being compact or complete;
- *future trajectory*: the own later steps; the last step has none;
- *successful trajectory*: the first rollout of the same task, in batch order, that succeeded,
  the own one excluded;
- *current trajectory*: only through a judge, see `trainer.auxiliary.judge_context`.

Strict rule: a step for which any required source is missing gets no context at all, and its row
mask is 0. "success_or_feedback" is the one alternative: success if there is one, else feedback.

Everything here is text; nothing imports torch. All wording is this project's own.

Source: `specs/aux_objectives.md`, section 3.3.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainer.auxiliary.action_spans import remove_thoughts

Rendering = Literal["response", "observation_action"]

MODES: Mapping[str, tuple[str, ...]] = {
    "immediate_feedback": ("feedback",),
    "next_observation": ("next_obs",),
    "future_trajectory": ("future",),
    "success_or_feedback": ("success", "feedback"),
    "success+feedback": ("success", "feedback"),
    "success+next_observation": ("success", "next_obs"),
    "success+future": ("success", "future"),
    "success+future+feedback": ("success", "future", "feedback"),
    "success+future+next_observation": ("success", "future", "next_obs"),
}
"""Sources of each mode, in the order in which their sections are shown."""

TITLES: Mapping[str, str] = {
    "success": "How another attempt at this task succeeded:",
    "future": "What happened in your attempt after this step:",
    "feedback": "What the environment answered to your action at this step:",
    "next_obs": "The situation right after your action at this step:",
}


@dataclass(frozen=True, slots=True)
class ContextTurn:
    """One row of the batch, as text.

    Attributes:
        uid, tid, t: task group, trajectory and step.
        observation: what the student was shown at this step.
        response: what it answered.
        feedback: raw text of the environment after the action. None or blank: missing.
        next_observation: the next prompt as the student got it. None or blank: missing.
        success: whether the *trajectory* succeeded.
        episode_return: return of the trajectory.
        anchor: raw observation that identifies the state, for anchor contexts.
    """

    uid: Hashable
    tid: Hashable
    t: int
    observation: str
    response: str
    feedback: str | None = None
    next_observation: str | None = None
    success: bool = False
    episode_return: float = 0.0
    anchor: str | None = None


class Section(NamedTuple):
    """A titled part of a teacher's prompt; the title is never shortened."""

    title: str
    text: str


def serl_sections(mode: str, available: Collection[str]) -> tuple[str, ...]:
    """Sources that a step shows, given those it has.

    Args:
        mode: one of `MODES`.
        available: names among "success", "future", "feedback" and "next_obs".

    Returns:
        Names in the order shown; empty if a required one is missing.

    Raises:
        ValueError: unknown mode.

    >>> serl_sections("success+feedback", {"feedback"})
    ()
    """
    if mode not in MODES:
        raise ValueError(f"Unknown feedback mode {mode!r}; choose one of {tuple(MODES)}.")
    required = MODES[mode]
    if mode == "success_or_feedback":
        return next(((name,) for name in required if name in available), ())
    return required if all(name in available for name in required) else ()


def step_contexts(
    turns: Sequence[ContextTurn],
    mode: str,
    *,
    rendering: Rendering = "response",
    max_steps: int | None = None,
) -> list[tuple[Section, ...]]:
    """Privileged sections of every row, from its own step.

    Args:
        turns: the rows of the batch, in batch order.
        mode: one of `MODES`.
        rendering, max_steps: see `render_trajectory`.

    Returns:
        Sections of each row; empty where the strict rule leaves it out.

    Raises:
        ValueError: unknown mode or rendering, or two rows of one step.
    """
    serl_sections(mode, ())
    told = Trajectories(turns, rendering, max_steps)
    contexts = []
    for turn in turns:
        texts = {name: told.source(name, turn) for name in MODES[mode]}
        names = serl_sections(mode, {name for name, text in texts.items() if text})
        contexts.append(tuple(Section(TITLES[name], texts[name]) for name in names))
    return contexts


def render_trajectory(
    steps: Sequence[ContextTurn],
    rendering: Rendering = "response",
    max_steps: int | None = None,
) -> str:
    """Steps as text, thoughts removed: numbered from 1 by their place in the trajectory.

    Args:
        steps: in time order.
        rendering: "response" shows the replies, "observation_action" what they answered as well.
        max_steps: show the first so many and say how many are left out. None: all.

    Returns:
        The text; empty without steps.

    Raises:
        ValueError: unknown rendering, or max_steps below 1.
    """
    _check_rendering(rendering, max_steps)
    return _joined([_step_text(step, rendering) for step in steps], max_steps)


class Trajectories:
    """The trajectories of a batch and their texts; each step is rendered once.

    Args:
        turns: the rows of the batch, in batch order.
        rendering, max_steps: see `render_trajectory`.

    Raises:
        ValueError: see `render_trajectory` and `by_trajectory`.
    """

    def __init__(
        self,
        turns: Sequence[ContextTurn],
        rendering: Rendering = "response",
        max_steps: int | None = None,
    ) -> None:
        _check_rendering(rendering, max_steps)
        self.steps = by_trajectory(turns)
        """Rows of each trajectory in time order; trajectories in batch order."""
        self._rendering: Rendering = rendering
        self._max_steps = max_steps
        self._texts: dict[Hashable, list[str]] = {}
        self._whole: dict[Hashable, str] = {}
        self._place = {
            (tid, step.t): place
            for tid, steps in self.steps.items()
            for place, step in enumerate(steps)
        }
        self._successes: dict[Hashable, list[Hashable]] = {}
        for tid, steps in self.steps.items():
            if steps[0].success:
                self._successes.setdefault(steps[0].uid, []).append(tid)

    def source(self, name: str, turn: ContextTurn) -> str:
        """Text of one source ("success", "future", "feedback", "next_obs"); empty if missing."""
        if name == "success":
            return self.success(turn)
        if name == "future":
            return self.future(turn)
        return ((turn.feedback if name == "feedback" else turn.next_observation) or "").strip()

    def success(self, turn: ContextTurn) -> str:
        """The successful sibling's trajectory; empty without one."""
        tid = self.successful_sibling(turn)
        if tid is None:
            return ""
        if tid not in self._whole:
            self._whole[tid] = _joined(self._texts_of(tid), self._max_steps)
        return self._whole[tid]

    def future(self, turn: ContextTurn) -> str:
        """The own later steps; empty after the last one."""
        place = self._place[turn.tid, turn.t]
        return _joined(self._texts_of(turn.tid)[place + 1 :], self._max_steps)

    def successful_sibling(self, turn: ContextTurn) -> Hashable | None:
        """The first trajectory of the group, in batch order, that succeeded and is another one."""
        siblings = self._successes.get(turn.uid, [])
        return next((tid for tid in siblings if tid != turn.tid), None)

    def _texts_of(self, tid: Hashable) -> list[str]:
        if tid not in self._texts:
            self._texts[tid] = [_step_text(step, self._rendering) for step in self.steps[tid]]
        return self._texts[tid]


def by_trajectory(turns: Sequence[ContextTurn]) -> dict[Hashable, list[ContextTurn]]:
    """Each trajectory's rows in time order; trajectories in batch order.

    Raises:
        ValueError: two rows of one trajectory have the same step, different groups or outcomes.
    """
    trajectories: dict[Hashable, list[ContextTurn]] = {}
    for turn in turns:
        trajectories.setdefault(turn.tid, []).append(turn)
    for tid, steps in trajectories.items():
        steps.sort(key=lambda turn: turn.t)
        if len({step.t for step in steps}) < len(steps):
            raise ValueError(f"Trajectory {tid!r} has two rows of one step; number them by t.")
        if len({step.uid for step in steps}) > 1:
            raise ValueError(f"Trajectory {tid!r} occurs in two groups; make tid unique.")
        if len({step.success for step in steps}) > 1:
            raise ValueError(f"Trajectory {tid!r} succeeds on some rows only; set success on all.")
    return trajectories


def _check_rendering(rendering: str, max_steps: int | None) -> None:
    if rendering not in ("response", "observation_action"):
        raise ValueError(
            f"rendering must be 'response' or 'observation_action', found {rendering!r}."
        )
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1 (or None), found {max_steps}.")


def _step_text(step: ContextTurn, rendering: Rendering) -> str:
    reply = remove_thoughts(step.response)
    if rendering == "response":
        return f"Step {step.t + 1}\nResponse: {reply}"
    return f"Step {step.t + 1}\nObservation: {step.observation.strip()}\nAction: {reply}"


def _joined(texts: Sequence[str], max_steps: int | None) -> str:
    shown = list(texts[:max_steps])
    if len(shown) < len(texts):
        shown.append(f"({len(texts) - len(shown)} more)")
    return "\n\n".join(shown)
