"""Teachers of the matrix: other models, and policies that can read what they are told.

A self-teacher helps only if the policy understands its context. Real models bring that along; the
tiny one is taught it beforehand: a command that a plan, a skill or the feedback names is followed,
right or wrong, and with the one skill that holds for all tasks it does the best it can. Without a
context it is the weak policy that all others start from.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tests.trainer.matrix import harness, switch_world
from tests.trainer.matrix.harness import HINT, advice, best_at, situations, student
from trainer import rng
from trainer.auxiliary.feedback_context import TITLES, Section
from trainer.config import WarmstartConfig
from trainer.methods.distillation.told import PLAN_TITLE
from trainer.methods.privileged import with_sections
from trainer.methods.skills import contexts as skill_contexts
from trainer.models.tiny import save_policy
from trainer.rollouts.chat import NOTHING_SAID
from trainer.rollouts.data import Segment, Turn, make_segment
from trainer.supervised.warmstart import supervised

READ = WarmstartConfig(steps=300, batch=64, lr=3e-3, warmup_steps=10)
SKILL = "Go where the next switch is, then press it."
LIBRARY = [
    {"name": "true", "text": SKILL, "keywords": ["press"]},
    *({"name": c, "text": HINT.format(c), "keywords": ["none"]} for c in switch_world.COMMANDS),
]
"""For a fixed library of skills: keywords find the true one."""


def told_rows(turn: Turn) -> list[Segment]:
    """Each command as the first of a plan, in the feedback and as a skill; and the true skill."""
    s, rows = student(), []
    with_skill = partial(skill_contexts._with_skill, s, turn, NOTHING_SAID)
    draws = rng.stream(0, task="/".join(map(str, turn.prompt_ids)), purpose="plans")
    for command in switch_world.COMMANDS:
        rest = [switch_world.COMMANDS[int(i)] for i in draws.integers(4, size=draws.integers(4))]
        plan = "\n".join(f"{place}. {c}" for place, c in enumerate((command, *rest), 1))
        sections = Section(PLAN_TITLE, plan), Section(TITLES["feedback"], HINT.format(command))
        told = (
            *(with_sections(s, turn, (x,), max_tokens=s.max_prompt_tokens) for x in sections),
            with_skill("step", HINT.format(command)),
            with_skill("episode", f"- {HINT.format(command)}"),
        )
        rows += [make_segment(prompt.ids, s.target(command).ids) for prompt in told]
    prompt = with_skill("episode", f"- {SKILL}")
    best = s.target(best_at(turn.goal, turn.observation))
    return rows + [make_segment(prompt.ids, best.ids)] * 12


@lru_cache(maxsize=1)
def reader() -> Any:
    """The weak policy, once it has learnt to read contexts; do not change it, take a copy."""
    model = copy.deepcopy(harness.start())
    rows = [row for turn, _ in situations() for row in told_rows(turn)]
    plain = harness.weak_rows()
    copies = max(len(rows) // (2 * len(plain)), 1)
    supervised(model, [*rows, *(plain * copies)], READ, pad_id=student().pad_id)
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
    model = harness.fresh(1)
    supervised(model, rows, replace(harness.LEARN, seed=1), pad_id=s.pad_id)
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
            {"step": int(number), "skill": advice(goal, observation)}
            for number, observation in step.findall(text)
        ]
        task = goal.split("\n")[0].removeprefix("Task: ")
        return json.dumps({"episode_skill": f"- {task}", "step_skills": skills})

    return answer
