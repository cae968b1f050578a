"""O24: a teacher with a hint scores the same tokens; without one it is the student."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.fakes import ByteTokenizer
from tests.trainer import small
from tests.trainer.methods.distilling import (
    LIMITS,
    config_of,
    learned,
    prepared,
    trajectories_of,
    turns_of,
    whole_step,
)
from tests.trainer.short_runs import mixed
from trainer.auxiliary.feedback_context import Section
from trainer.learning.update import score_segments
from trainer.methods.privileged import prompt_view, rescored, with_sections
from trainer.rollouts.data import Turn, segments_from_turns
from trainer.rollouts.rollout import Student

HINT = Section("A hint", "the lamp is on the desk")


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    return turns_of(trajectories_of(config_of()))


def _chat(turn: Turn) -> tuple[Student, Turn]:
    """The same turn as a chat would have shown it."""
    config = small.small_config(prompt__template="field", prompt__max_prompt_tokens=9999)
    student = small.student_for(config, ByteTokenizer())
    return student, replace(turn, prompt_ids=student.prompt(prompt_view(turn)))


def test_o24_an_empty_hint_leaves_every_log_prob_as_it_is() -> None:
    config, model = small.small_config(), small.model()
    student, turns = small.student(config), mixed(config)
    rows = [rescored(t, with_sections(student, t, (), max_tokens=9999)) for t in turns]
    own = score_segments(model, segments_from_turns(turns), LIMITS)
    for teacher, mine in zip(score_segments(model, rows, LIMITS), own, strict=True):
        torch.testing.assert_close(teacher, mine, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chat", [False, True])
def test_o24_a_hint_changes_no_scored_token_and_stands_before_the_reply(
    chat: bool, turns: list[Turn]
) -> None:
    for turn in turns[:6]:
        student = small.student(config_of())
        if chat:
            student, turn = _chat(turn)
        prompt = with_sections(student, turn, [HINT], max_tokens=9999)
        row = rescored(turn, prompt)
        scored = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
        assert scored == list(turn.response_ids)
        assert row.ids == (*prompt.ids, *turn.response_ids)
        text = student.tokenizer.decode(list(prompt.ids))
        assert text.count(HINT.text) == 1
        if chat:
            assert text.endswith("[assistant]"), "the marker of the reply comes last"
            assert text.count("[assistant]") == 1
            assert text.index(HINT.text) > text.index("[user]")


def test_o24_a_trajectory_without_a_hint_trains_nothing_of_it_and_is_counted(
    turns: list[Turn],
) -> None:
    """Of the second group the one that won has no other to be shown."""
    config = config_of(auxiliary__opsd_legacy={"weight": 0.5})
    model = small.model()
    method = prepared(config, model, turns)
    term = method.token_term(whole_step(turns))
    won_alone = {t.tid for t in turns if t.uid == "0.1" and t.success}
    untold = [i for i, t in enumerate(turns) if t.tid in won_alone]
    assert len(won_alone) == 1
    assert [i for i in range(len(turns)) if not term.needs(i)] == untold
    share = method.metrics()["opsd_legacy/context_share"]
    assert share == pytest.approx(1 - len(untold) / len(turns))
    # Nobody won, so nobody is told anything: the step is that of the base, bit for bit.
    lost = [replace(t, success=False, format_valid=t.t > 0 or t.tid[-1] == "0") for t in turns]
    base, hinted = small.twin(model), small.twin(model)
    learned(config.replace(**{"auxiliary.opsd_legacy": None}), base, lost)
    (metrics,) = learned(config, hinted, lost)
    assert metrics["opsd_legacy/context_share"] == 0.0
    assert small.same(small.weights(base), small.weights(hinted))
    assert not small.same(small.weights(base), small.weights(model))
