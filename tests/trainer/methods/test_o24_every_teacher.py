"""O24 for every method whose teacher is told more than the student.

A hint is a skill, feedback, or a solution. Every method is run on the same turns, in which exactly
one trajectory has no hint: the only one of its group that won, or the one that no skill is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.fakes import ByteTokenizer
from tests.trainer import small
from tests.trainer.methods.distilling import LIMITS
from tests.trainer.methods.o24_support import (
    COVERAGE,
    HINTED,
    LIBRARY,
    SKILLS,
    config_for,
    config_with,
    made,
    name_of,
    played,
    rollouts_of,
    trained_rows,
    turns_for,
    untold_places,
)
from trainer.auxiliary.feedback_context import Section
from trainer.config import Config
from trainer.learning.update import score_segments
from trainer.methods.privileged import TeacherPrompt, rescored, with_sections
from trainer.methods.protocol import Rollouts
from trainer.methods.skills.opid import Opid
from trainer.methods.skills.teacher import Distilled
from trainer.rollouts.rollout import Student


def teacher_prompts(method: Any, rollouts: Rollouts, model: Any) -> list[TeacherPrompt]:
    """The teacher's prompt of every turn, as the method makes it."""
    if isinstance(method, Opid):
        method.prepare(rollouts, model)
        return list(method._prompts(of_others=False)["episode"])
    if isinstance(method, Distilled):
        return list(method.prompts(rollouts, model))
    tell: Callable[[Rollouts], Sequence[Any]]
    if hasattr(method, "scored"):
        tell = method.contexts
    else:
        tell = method.sections if hasattr(method, "sections") else method.contexts.sections
    student = method.setup.student
    limit = method.section.max_prompt_tokens or student.max_prompt_tokens
    return [
        with_sections(student, turn, sections, max_tokens=limit)
        for turn, sections in zip(rollouts.turns, tell(rollouts), strict=True)
    ]


def teacher_of(method: Any, model: Any) -> Any:
    return method.teacher.of(model) if hasattr(method, "teacher") else model


# ------------------------------------------------------------------ an empty hint


UNFIT = {**LIBRARY, "entries": [{**SKILLS[0], "keywords": ["xyz"]}]}
EMPTY: dict[str, dict[str, Any]] = {
    **{name: HINTED[name] for name in ("serl", "rlsd", "opsd", "opsd_legacy", "sdpo")},
    **{
        case: {**HINTED[case], "analyser": {"model": f"{__name__}:no_words"}}
        for case in ("seed", "opid", "skill_sd/hindsight")
    },
    "sdar": UNFIT,
    "skill_sd": UNFIT,
    "serl feedback": {"source": "immediate_feedback"},
    "opsd feedback": {"context": "feedback"},
    "sdpo feedback": {"feedback": True},
}


def no_words() -> Callable[[Any], str]:
    """An analyser that writes a skill without words."""
    return lambda chat: json.dumps({"episode_skill": " \n"})


@pytest.mark.parametrize("case", EMPTY)
def test_o24_with_an_empty_hint_the_teacher_is_the_student(case: str) -> None:
    """Nobody won, no skill has words or fits, the environment answered with blanks."""
    name = name_of(case)
    config = config_with(case, EMPTY[case])
    turns = [
        replace(t, success=False, task_score=0.0, reward=0.0, next_observation=" \n")
        for t in played()
    ]
    model = small.model()
    method = made(config, model)
    rollouts = rollouts_of(turns)
    prompts = teacher_prompts(method, rollouts, model)
    assert [p.ids for p in prompts] == [t.prompt_ids for t in turns]
    assert not any(p.on or p.truncated for p in prompts)
    rows = [rescored(turn, prompt) for turn, prompt in zip(turns, prompts, strict=True)]
    teacher = score_segments(teacher_of(method, model), rows, LIMITS)
    for found, turn in zip(teacher, turns, strict=True):
        own = torch.tensor(turn.logprobs, dtype=found.dtype)
        torch.testing.assert_close(found, own, rtol=0, atol=1e-5)
    method.prepare(rollouts, model)
    assert trained_rows(method) == {}
    assert method.metrics()[COVERAGE.get(name, f"{name}/rows_on")] == 0.0


def test_o24_a_title_without_words_is_no_hint() -> None:
    student = small.student(config_for("serl"))
    turn = turns_for("serl")[0]
    for sections in ((), (Section("A hint", ""),), (Section("A", " "), Section("B", "\n"))):
        prompt = with_sections(student, turn, sections, max_tokens=4096)
        assert prompt == TeacherPrompt(turn.prompt_ids, False)


# ------------------------------------------------------------------ a hint


def chat_student(config: Config) -> Student:
    chat = config.replace(**{"prompt.template": "field", "prompt.max_prompt_tokens": 20_000})
    return small.student_for(chat, ByteTokenizer())


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("case", HINTED)
def test_o24_with_a_hint_the_scored_tokens_are_the_same(case: str, chat: bool) -> None:
    """The sampled ids, all of them, behind the whole prompt; in a chat behind its last marker."""
    config, model = config_for(case), small.model()
    student = chat_student(config) if chat else small.student(config)
    turns = turns_for(case, student)
    section = (
        {"max_prompt_tokens": 20_000} if hasattr(_section(config), "max_prompt_tokens") else {}
    )
    method = made(config_for(case, **section), model, student)
    rollouts = rollouts_of(turns)
    if not chat:
        prompts = teacher_prompts(method, rollouts, model)
    else:  # the small policy cannot read bytes, so nothing is scored
        prompts = _unscored(method, rollouts, model)
    on = [i for i, prompt in enumerate(prompts) if prompt.on]
    assert on == [i for i in range(len(turns)) if i not in untold_places(turns)]
    for i in on:
        row = rescored(turns[i], prompts[i], i)
        scored = [id_ for id_, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
        assert scored == list(turns[i].response_ids)
        assert row.ids == (*prompts[i].ids, *turns[i].response_ids)
        assert row.temperature == turns[i].temperature == 0.8
        assert len(prompts[i].ids) > len(turns[i].prompt_ids)
        if chat:
            text = student.tokenizer.decode(list(prompts[i].ids))
            assert text.endswith("[assistant]")
            assert text.count("[assistant]") == 1


def _section(config: Config) -> Any:
    ((_, section),) = config.auxiliary.active()
    return section


def _unscored(method: Any, rollouts: Rollouts, model: Any) -> list[TeacherPrompt]:
    if isinstance(method, Opid):
        method.hindsight.read(rollouts, model)
        return list(method.hindsight.prompts("episode"))
    return teacher_prompts(method, rollouts, model)


@pytest.mark.parametrize("case", HINTED)
def test_o24_what_is_scored_is_the_hinted_prompt_and_the_hint_matters(case: str) -> None:
    config, model = config_for(case), small.model()
    turns = turns_for(case)
    method, rollouts = made(config, model), rollouts_of(turns)
    prompts = teacher_prompts(method, rollouts, model)
    method.prepare(rollouts, model)
    rows = trained_rows(method)
    told = [i for i in range(len(turns)) if i not in untold_places(turns)]
    assert sorted(rows) == told
    for i, row in rows.items():
        expected = rescored(turns[i], prompts[i], i)
        if row is not None:
            assert (row.ids, row.temperature) == (expected.ids, expected.temperature)
    hinted = [rescored(turns[i], prompts[i]) for i in told]
    values = score_segments(model, hinted, LIMITS)
    gaps = [
        float((value - torch.tensor(turns[i].logprobs)).abs().max())
        for i, value in zip(told, values, strict=True)
    ]
    assert min(gaps) > 1e-4, "a hint that changes nothing tests nothing"
    kept = method._teachers["episode"] if isinstance(method, Opid) else None
    for i, value in zip(told, values, strict=True):
        if kept is not None:
            torch.testing.assert_close(kept[i], value, rtol=0, atol=1e-5)
