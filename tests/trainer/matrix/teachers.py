"""Teachers of the matrix: other models, and policies that can read what they are told.

A self-teacher helps only if the policy understands its context. Real models bring that along; a
tiny one is taught it beforehand, for contexts of two sorts:

- "hint": a command that is named, right or wrong, is followed (plans, skills of a step);
- "goal": where a task is described that is the policy's own, it does the best it can, and anything
  where it is another one (skills of an episode, other attempts).

Without a context it is the weak policy that all others start from.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.trainer.matrix import harness, switch_world
from tests.trainer.matrix.harness import best_at, played, situations, student
from trainer import rng
from trainer.auxiliary.feedback_context import TITLES, Section, render_trajectory
from trainer.config import WarmstartConfig
from trainer.data import Segment, Turn, make_segment
from trainer.methods import skill_contexts
from trainer.methods.feedback import context_turns
from trainer.methods.privileged import with_sections
from trainer.methods.told import PLAN_TITLE
from trainer.models.tiny import save_policy
from trainer.warmstart import supervised

READ = WarmstartConfig(steps=240, batch=48, lr=3e-3, warmup_steps=10)
TITLED = (*TITLES.values(), PLAN_TITLE)
HINT = "At this step the command to send is: {}"

Rows = list[Segment]


def hint_rows(turn: Turn) -> Rows:
    """Each command as the first of a plan, and as advice for the step."""
    s, rows = student(), []
    draws = rng.stream(0, task="/".join(map(str, turn.prompt_ids)), purpose="plans")
    for command in switch_world.COMMANDS:
        rest = [switch_world.COMMANDS[int(i)] for i in draws.integers(4, size=draws.integers(4))]
        plan = "\n".join(f"{place}. {c}" for place, c in enumerate((command, *rest), 1))
        told = (
            with_sections(s, turn, (Section(PLAN_TITLE, plan),), max_tokens=s.max_prompt_tokens),
            skill_contexts._with_skill(s, turn, "step", HINT.format(command)),
        )
        rows += [make_segment(prompt.ids, s.target(command).ids) for prompt in told]
    return rows


def goal_rows(turn: Turn) -> Rows:
    """Each task as a skill, and as the beginning of another attempt at it."""
    s, rows = student(), []
    best = best_at(turn.goal, turn.observation)
    for goal, attempt in attempts().items():
        told = (
            with_sections(
                s, turn, (Section(TITLES["success"], attempt),), max_tokens=s.max_prompt_tokens
            ),
            skill_contexts._with_skill(s, turn, "episode", f"- {goal}"),
        )
        for prompt in told:
            commands = (best,) * 3 if goal == turn.goal else switch_world.COMMANDS
            rows += [make_segment(prompt.ids, s.target(command).ids) for command in commands]
    return rows


@lru_cache(maxsize=1)
def attempts() -> dict[str, str]:
    """Goal to the text of an attempt at it, cut after its first step."""
    turns = played(student(), 1, "attempts")
    found: dict[str, list[Any]] = {}
    for turn, told in zip(turns, context_turns(student(), turns), strict=True):
        found.setdefault(turn.goal, []).append(told)
    return {
        goal: render_trajectory(steps, "observation_action", 1) for goal, steps in found.items()
    }


READERS: dict[str, Callable[[Turn], Rows]] = {"hint": hint_rows, "goal": goal_rows}


@lru_cache(maxsize=2)
def reader(kind: str) -> Any:
    """The weak policy, once it has learnt to read contexts; do not change it, take a copy."""
    model = copy.deepcopy(harness.start())
    rows = [row for turn, _ in situations() for row in READERS[kind](turn)]
    plain = harness.weak_rows()
    share = max(len(rows) // (2 * len(plain)), 1)
    supervised(model, [*rows, *(plain * share)], READ, pad_id=student().pad_id)
    return model


# ------------------------------------------------------------------------------ other models


@lru_cache(maxsize=1)
def confused() -> Any:
    """Knows for every situation the best command of another one."""
    s = student()
    bests = [best for _, best in situations()]
    order = rng.stream(0, purpose="confused").permutation(len(bests))
    rows = [
        make_segment(turn.prompt_ids, s.target(bests[int(i)]).ids)
        for (turn, _), i in zip(situations(), order, strict=True)
    ]
    model = harness.fresh(0)
    supervised(model, rows, replace(harness.LEARN, seed=0), pad_id=s.pad_id)
    return model


def saved(model: Any, folder: Path) -> str:
    """The path of a folder that `model` is in."""
    if not folder.exists():
        save_policy(folder, model, harness.tokenizer())
    return str(folder)


def analyser() -> Callable[[list[dict[str, str]]], str]:
    """Names the best command of every step that a trajectory is shown with."""
    step = re.compile(r"Step (\d+)\nObservation: (.*)")

    def answer(chat: list[dict[str, str]]) -> str:
        text = chat[-1]["content"]
        goal = text[text.index("Task: ") :]
        skills = [
            {"step": int(number), "skill": HINT.format(best_at(goal, observation))}
            for number, observation in step.findall(text)
        ]
        task = goal.split("\n")[0].removeprefix("Task: ")
        return json.dumps({"episode_skill": f"- {task}", "step_skills": skills})

    return answer
