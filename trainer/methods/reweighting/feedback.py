"""From recorded turns to what a teacher may know: the glue between `Turn` and context builders.

The texts are those of `trainer.auxiliary.feedback_context`, `anchor_context` and `judge_context`.
All of them are made from turns alone, so turns read from a file give the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_envs.prompting import ChatTemplate, PromptView
from trainer.auxiliary.anchor_context import anchor_contexts
from trainer.auxiliary.feedback_context import (
    TITLES,
    ContextTurn,
    Rendering,
    Section,
    Trajectories,
    step_contexts,
)
from trainer.auxiliary.judge_context import JUDGE_MODES, TextModel, judge_contexts
from trainer.config.auxiliary.serl import SerlConfig
from trainer.methods.privileged import prompt_view
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Student

__all__ = ["Sections", "context_turns", "feedback_sections", "success_sections"]

Sections = tuple[Section, ...]


def context_turns(student: Student, turns: Sequence[Turn]) -> list[ContextTurn]:
    """Turns as the context builders want them.

    - feedback: what the environment answered, as it came;
    - next observation: the last user message of the next prompt, with history (in `window`) and
      commands; after a last turn, of the prompt that would have come;
    - a trajectory succeeded if its last turn did; its return is the sum of the env's rewards.

    The goal stands before a first observation that does not state it.
    """
    won: set[tuple[str, str]] = set()
    returns: dict[tuple[str, str], float] = {}
    shown: dict[tuple[str, str, int], Turn] = {}
    for turn in turns:
        key = turn.uid, turn.tid
        if turn.done and turn.success:
            won.add(key)
        returns[key] = returns.get(key, 0.0) + turn.reward
        shown[*key, turn.t] = turn
    found = []
    for turn in turns:
        key = turn.uid, turn.tid
        found.append(
            ContextTurn(
                uid=turn.uid,
                tid=key,  # ids of trajectories need not differ between groups
                t=turn.t,
                observation=_with_goal(turn),
                response=turn.reply,
                feedback=turn.next_observation,
                next_observation=_next_prompt(student, turn, shown.get((*key, turn.t + 1))),
                success=key in won,
                episode_return=returns[key],
                anchor=turn.anchor,
            )
        )
    return found


def feedback_sections(
    turns: Sequence[ContextTurn], section: SerlConfig, judge: TextModel | None = None
) -> list[Sections]:
    """What the config's source tells a teacher about every turn; empty: nothing.

    Raises:
        ValueError: the source is a judge and there is none.
    """
    rendering: Rendering = section.rendering
    if section.source in JUDGE_MODES:
        if judge is None:
            raise ValueError(f"The source {section.source!r} needs a judge, found none.")
        return judge_contexts(
            turns, section.source, judge, rendering=rendering, max_steps=section.context_steps
        )
    if section.placement == "anchor":
        return anchor_contexts(
            turns,
            section.source,
            similarity=section.similarity,
            anchor_min_size=section.anchor_min_size,
            anchor_first_only=section.anchor_first_only,
            rendering=rendering,
            max_steps=section.context_steps,
        )
    return step_contexts(
        turns, section.source, rendering=rendering, max_steps=section.context_steps
    )


def success_sections(
    turns: Sequence[ContextTurn], rendering: Rendering, max_steps: int | None
) -> list[Sections]:
    """For every turn the first other trajectory of its group that succeeded; empty without one."""
    told = Trajectories(turns, rendering, max_steps)
    texts = [told.success(turn) for turn in turns]
    return [(Section(TITLES["success"], text),) if text else () for text in texts]


def _with_goal(turn: Turn) -> str:
    if turn.t > 0 or turn.goal in turn.observation:
        return turn.observation
    return f"Task: {turn.goal}\n{turn.observation}"


def _next_prompt(student: Student, turn: Turn, following: Turn | None) -> str | None:
    """What the student was asked after this turn, without the chat's markup."""
    if following is None and not turn.done:
        return None
    view = _after(turn) if following is None else prompt_view(following)
    if isinstance(student.template, ChatTemplate):
        return student.template.message(view)["content"]
    rendered = student.template.render(view)
    return rendered if isinstance(rendered, str) else rendered[-1]["content"]


def _after(turn: Turn) -> PromptView:
    """What a prompt after a last turn would be built from."""
    before = prompt_view(turn)
    return PromptView(
        goal=turn.goal,
        observation=turn.next_observation,
        admissible=turn.next_admissible,
        history=(*before.history, (turn.observation, turn.command)),
        step=turn.t + 1,
    )
