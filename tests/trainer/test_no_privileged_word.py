"""No prompt or target of a branch holds a privileged word, in any template and think mode.

As in test_no_leak.py, where the trainer's own rollouts run in two households; here whole households
are rearranged, shops have twins as well, and what is made of their branches is compared id for id.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import gymnasium
import pytest

from oracles.alfworld_planner import ALFWorldPlanner
from oracles.branch import Branch
from oracles.leak_audit import audit
from tests.fakes import ByteTokenizer
from tests.oracles.twins import (
    ALFWORLD,
    CANARY,
    SHOPPING,
    WEBSHOP,
    Script,
    branch_in,
    households,
    shops,
)
from tests.support import full_count
from tests.trainer import small
from tests.trainer.test_webshop_training import shop_config
from trainer.branches.targets import branch_prompts, branch_target, branch_views
from trainer.config import Config, SeroConfig
from trainer.rollouts.rollout import Student
from trainer.runs.folder import make_student

STUDENT = ("inventory", "go to nowhere 1", "look")
LIMIT = 20_000


@cache
def household_branches() -> tuple[tuple[Branch, Branch, int], ...]:
    """The planner's commands for the first house, in both; and after how many they look unlike."""
    count = full_count(8, 80)
    data = f"generated:small?train={count}&seed=5"
    unwrapped: Any = gymnasium.make(ALFWORLD, data=data).unwrapped
    found = []
    for pair in households(unwrapped.games, unwrapped.games.task_ids("train")):
        plan = branch_in(pair[0], STUDENT, ALFWorldPlanner())
        commands = [step.action for step in plan.steps]
        left, right = (branch_in(twin, STUDENT, Script(commands)) for twin in pair)
        seen = [[step.next_observation for step in branch.steps] for branch in (left, right)]
        alike = 0
        while alike < min(map(len, seen)) and seen[0][alike] == seen[1][alike]:
            alike += 1
        found.append((left, right, alike))
    assert len(found) > count // 2
    return tuple(found)


@cache
def shop_branches() -> tuple[Branch, Branch]:
    left, right = (branch_in(twin, SHOPPING[:1], Script(SHOPPING[1:])) for twin in shops())
    return left, right


SETTINGS = [
    (template, mode) for template in ("field", "compact") for mode in ("empty", "template", "none")
]


def student_of(config: Config) -> tuple[Student, SeroConfig]:
    section = config.auxiliary.sero
    assert section is not None
    return make_student(config, None, ByteTokenizer()), section


def household_student(template: str, mode: str) -> tuple[Student, SeroConfig]:
    return student_of(
        small.small_config(
            prompt__template=template,
            prompt__max_prompt_tokens=LIMIT,
            auxiliary__sero__think_mode=mode,
        )
    )


def shop_student(template: str, mode: str) -> tuple[Student, SeroConfig]:
    return student_of(
        shop_config(
            prompt__template=template,
            prompt__max_prompt_tokens=LIMIT,
            auxiliary__sero__think_mode=mode,
        )
    )


def rows(branch: Branch, student: Student, section: SeroConfig) -> Iterator[tuple[Any, Any]]:
    """Prompt and target at each step."""
    prompts = branch_prompts(branch, student, section)
    for prompt, step in zip(prompts, branch.steps, strict=True):
        target = branch_target(step, prompt, student, section, LIMIT)
        assert not isinstance(target, str), target
        yield prompt, target


@pytest.mark.parametrize(("template", "mode"), SETTINGS)
def test_households_give_the_same_rows_until_they_are_seen_to_differ(
    template: str, mode: str
) -> None:
    student, section = household_student(template, mode)
    parted = 0
    for left, right, alike in household_branches():
        ours, theirs = list(rows(left, student, section)), list(rows(right, student, section))
        # the answer to step `alike` is the first that differs, so that step is asked for alike
        assert ours[: alike + 1] == theirs[: alike + 1]
        if alike + 1 < min(len(ours), len(theirs)):
            assert ours[alike + 1][0] != theirs[alike + 1][0]
            parted += 1
    assert parted > 0, "no prompt shows what was seen, so nothing is tested"


@pytest.mark.parametrize(("template", "mode"), SETTINGS)
def test_shops_give_the_same_rows_and_show_no_hidden_word(template: str, mode: str) -> None:
    student, section = shop_student(template, mode)
    left, right = shop_branches()
    assert left.total_reward != right.total_reward
    ours, theirs = list(rows(left, student, section)), list(rows(right, student, section))
    assert len(ours) == len(SHOPPING) - 1
    assert ours == theirs
    for prompt, target in theirs:
        assert CANARY not in student.tokenizer.decode([*prompt, *target.ids])
    assert CANARY not in repr(branch_views(right))


@pytest.mark.parametrize("template", ["field", "compact"])
def test_what_an_oracle_says_when_it_stops_is_in_no_prompt(template: str) -> None:
    student, section = shop_student(template, "empty")
    stopped = branch_in(shops()[0], SHOPPING[:1], Script(SHOPPING[1:3]))
    assert CANARY in stopped.detail
    prompts = branch_prompts(stopped, student, section)
    assert len(prompts) == 2
    for prompt in prompts:
        assert CANARY not in student.tokenizer.decode(list(prompt))


@pytest.mark.parametrize("template", ["field", "compact"])
def test_what_the_audit_says_is_in_no_prompt(template: str) -> None:
    """Its reasons name places and things that were found; they are for people."""
    student, section = household_student(template, "empty")
    leaked = 0
    for left, _, _ in household_branches():
        before = branch_prompts(left, student, section)
        figures = audit([left], ALFWORLD)
        assert branch_prompts(left, student, section) == before
        texts = [student.tokenizer.decode(list(prompt)) for prompt in before]
        for example in () if figures is None else figures.examples:
            leaked += 1
            assert not any(example.why in text for text in texts)
    assert leaked > 0
    assert audit([shop_branches()[0]], WEBSHOP) is not None
