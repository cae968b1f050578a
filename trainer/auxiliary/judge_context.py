"""Feedback from a judge: a language model that comments on the student's whole trajectory.

The model is injected as a function of chat messages, so the judge may be the policy itself, a
larger model behind a server, or a stub. Nothing here imports torch. All wording is this
project's own.

Source: `specs/aux_objectives.md`, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from trainer.auxiliary.action_spans import remove_thoughts
from trainer.auxiliary.feedback_context import (
    ContextTurn,
    Rendering,
    Section,
    Trajectories,
    render_trajectory,
)

TextModel = Callable[[list[dict[str, str]]], str]
"""A language model: chat messages in, the reply's text out."""

JUDGE_MODES = ("judge_current", "judge_current_success")

JUDGE_TITLE = "A reviewer's assessment of your attempt:"

_NO_ANSWER = frozenset({"", "none", "n/a", "na", "null", "no comment", "no assessment"})
_JUDGE_SYSTEM = (
    "You review how an agent handled a task in a text environment. State first whether the attempt "
    "reached its goal. Then name what decided that, and close with the one piece of advice that "
    "would help most in another attempt. Two to five plain sentences, no headings, no lists."
)


def judge_contexts(
    turns: Sequence[ContextTurn],
    mode: str,
    model: TextModel,
    *,
    rendering: Rendering = "response",
    max_steps: int | None = None,
) -> list[tuple[Section, ...]]:
    """Privileged sections from a judge, who sees each trajectory once and whole.

    - "judge_current": the judge sees the trajectory and its outcome.
    - "judge_current_success": and a successful one of the same task: a sibling's, else the own if
      it succeeded. Without either the judge is not asked and the rows get no context.

    All rows of a trajectory share its assessment.

    Args:
        turns: the rows of the batch, in batch order.
        mode: one of `JUDGE_MODES`.
        model: the judge; called once a trajectory, in batch order.
        rendering, max_steps: see `render_trajectory`.

    Returns:
        Sections of each row; empty where the judge had nothing to say.

    Raises:
        ValueError: unknown mode or rendering, or two rows of one step.
    """
    if mode not in JUDGE_MODES:
        raise ValueError(f"Unknown judge mode {mode!r}; choose one of {JUDGE_MODES}.")
    told = Trajectories(turns, rendering, max_steps)
    sections: dict[Hashable, tuple[Section, ...]] = {}
    for tid, steps in told.steps.items():
        reference = None
        if mode == "judge_current_success":
            sibling = told.successful_sibling(steps[0])
            if sibling is None and not steps[0].success:
                sections[tid] = ()
                continue
            reference = steps if sibling is None else told.steps[sibling]
        messages = judge_messages(steps, reference, rendering=rendering, max_steps=max_steps)
        answer = remove_thoughts(model(messages))
        empty = answer.lower().rstrip(".") in _NO_ANSWER
        sections[tid] = () if empty else (Section(JUDGE_TITLE, answer),)
    return [sections[turn.tid] for turn in turns]


def judge_messages(
    steps: Sequence[ContextTurn],
    reference: Sequence[ContextTurn] | None = None,
    *,
    rendering: Rendering = "response",
    max_steps: int | None = None,
) -> list[dict[str, str]]:
    """What the judge is asked about one trajectory.

    Args:
        steps: the trajectory, in time order, not empty.
        reference: a successful trajectory of the same task, or None.
        rendering, max_steps: see `render_trajectory`.

    Returns:
        A system and a user message.
    """
    parts = [
        f"The task and its first situation:\n{steps[0].observation.strip()}",
        f"The attempt:\n{render_trajectory(steps, rendering, max_steps)}",
        f"Outcome: {'success' if steps[0].success else 'failure'}.",
    ]
    last = (steps[-1].feedback or "").strip()
    if last:
        parts.append(f"The environment's last answer:\n{last}")
    if reference is not None:
        text = render_trajectory(reference, rendering, max_steps)
        parts.append(f"For comparison, an attempt that succeeded:\n{text}")
    return [
        {"role": "system", "content": _JUDGE_SYSTEM},
        {"role": "user", "content": "\n\n".join(parts)},
    ]
