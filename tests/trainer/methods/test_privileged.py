"""A teacher's prompt is the student's with something added."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.short_runs import mixed
from trainer.auxiliary.feedback_context import Section
from trainer.learning.update import score_segments
from trainer.methods.privileged import (
    TeacherPrompt,
    edited_prompt,
    prompt_view,
    rescored,
    with_sections,
)
from trainer.methods.protocol import PassLimits
from trainer.methods.teacher import Teacher
from trainer.rollouts.data import segments_from_turns


@pytest.mark.parametrize("template", ["compact"])
def test_a_recorded_turn_gives_its_own_prompt(template: str) -> None:
    config = small.small_config(prompt__template=template)
    student = small.student(config)
    for turn in mixed(config):
        assert student.prompt(prompt_view(turn)) == turn.prompt_ids


def test_without_anything_added_teacher_and_student_agree_bit_for_bit() -> None:
    config = small.small_config()
    student, model = small.student(config), small.model()
    turns = mixed(config)
    for turn in turns:
        for prompt in (
            with_sections(student, turn, (), max_tokens=10),
            edited_prompt(student, turn, lambda text: text),
        ):
            assert (prompt.ids, prompt.on, prompt.truncated) == (turn.prompt_ids, False, False)
    empty = [with_sections(student, turn, (), max_tokens=10) for turn in turns]
    rows = [rescored(turn, prompt) for turn, prompt in zip(turns, empty, strict=True)]
    limits = PassLimits(4096, student.pad_id)
    for a, b in zip(
        score_segments(model, rows, limits),
        score_segments(model, segments_from_turns(turns), limits),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_sections_stand_behind_the_prompt_and_alone_are_shortened() -> None:
    config = small.small_config()
    student, turn = small.student(config), mixed(config)[1]
    own = small.tokenizer().decode(list(turn.prompt_ids))
    section = Section("What happened", "you open the drawer. " * 40)
    whole = with_sections(student, turn, [section], max_tokens=10_000, closing="Go on.")
    text = small.tokenizer().decode(list(whole.ids))
    assert whole.on
    assert not whole.truncated
    assert text.startswith(own.rstrip("\n"))
    assert text.endswith("Go on.\n")
    limit = len(turn.prompt_ids) + 120
    cut = with_sections(student, turn, [section], max_tokens=limit, closing="Go on.")
    shorter = small.tokenizer().decode(list(cut.ids))
    assert cut.on
    assert cut.truncated
    assert len(cut.ids) <= limit
    assert shorter.startswith(own.rstrip("\n"))
    assert shorter.endswith("Go on.\n")
    none = with_sections(student, turn, [section], max_tokens=len(turn.prompt_ids) + 3)
    assert (none.ids, none.on, none.truncated) == (turn.prompt_ids, False, True)


def test_an_edit_changes_the_message_of_the_user() -> None:
    config = small.small_config()
    student, turn = small.student(config), mixed(config)[0]
    prompt = edited_prompt(student, turn, lambda text: "hint: go\n" + text)
    assert prompt.on
    assert small.tokenizer().decode(list(prompt.ids)).startswith("hint: go\n")


def test_an_edit_that_makes_the_prompt_too_long_is_left_out() -> None:
    config = small.small_config()
    student, turn = small.student(config), mixed(config)[0]

    def edit(text: str) -> str:
        return "hint: go\n" + text

    whole = edited_prompt(student, turn, edit)
    size = len(whole.ids)
    assert size > len(turn.prompt_ids)
    narrow = replace(student, max_prompt_tokens=size - 1)
    assert edited_prompt(student, turn, edit, max_tokens=size) == whole
    assert edited_prompt(narrow, turn, edit, max_tokens=size) == whole, "a limit of its own"
    left_out = TeacherPrompt(turn.prompt_ids, False, truncated=True)
    assert edited_prompt(student, turn, edit, max_tokens=size - 1) == left_out
    assert edited_prompt(narrow, turn, edit) == left_out
    assert edited_prompt(replace(student, max_prompt_tokens=size), turn, edit) == whole


def _moved(model: Any) -> Any:
    other = small.twin(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    return other


def test_teachers_follow_as_their_kind_says() -> None:
    model = small.model()
    moved = _moved(model)
    first = next(iter(model.parameters())).detach().clone()

    def weight(teacher: Teacher, trained: Any) -> torch.Tensor:
        return next(iter(teacher.of(trained).parameters())).detach()

    kinds = {kind: Teacher(model, kind, sync_every=2, rate=0.25) for kind in (
        "current", "initial", "synced", "ema",
    )}  # fmt: skip
    for teacher in kinds.values():
        assert torch.equal(weight(teacher, model), first)
        teacher.finished_step(moved)
        teacher.finished_iteration(0, moved)
    assert torch.equal(weight(kinds["current"], moved), first + 1)
    assert torch.equal(weight(kinds["initial"], moved), first)
    assert torch.equal(weight(kinds["synced"], moved), first), "two iterations make a copy"
    torch.testing.assert_close(weight(kinds["ema"], moved), first + 0.25)
    kinds["synced"].finished_iteration(1, moved)
    assert torch.equal(weight(kinds["synced"], moved), first + 1)
    assert not any(p.requires_grad for p in kinds["ema"].of(moved).parameters())


def test_a_teacher_comes_back_from_its_state() -> None:
    model = small.model()
    teacher = Teacher(model, "ema", rate=0.5)
    teacher.finished_step(_moved(model))
    other = Teacher(model, "ema", rate=0.5)
    other.load_state(teacher.state())
    assert small.same(small.weights(teacher.of(model)), small.weights(other.of(model)))
    assert Teacher(model, "current").state() == {}
    with pytest.raises(ValueError, match="another teacher"):
        Teacher(model, "current").load_state(teacher.state())
    with pytest.raises(ValueError, match="Unknown kind of teacher 'old'"):
        Teacher(model, "old")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1, found 0"):
        Teacher(model, "synced", sync_every=0)
