"""The format-only control trains what the base may train, at the temperature of the sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.imitation_support import (
    LIMITS,
    config_of,
    learn,
    mixed,
    setup_of,
    turns_of,
    whole,
)
from trainer.learning.batch import trained_turns
from trainer.learning.update import score_segments
from trainer.methods.format_only import FormatOnly
from trainer.methods.protocol import Rollouts
from trainer.rollouts.data import Segment, Turn, make_segment, segments_from_turns


def _made(model: Any, **overrides: Any) -> FormatOnly:
    config = config_of("format_only", **overrides)
    return FormatOnly(setup_of(config, model), config.auxiliary.format_only)


def _nll(model: Any, turns: list[Turn]) -> float:
    """The mean over replies of the mean over their tokens outside the command."""
    student = small.student()
    rows = [
        make_segment(
            turn.prompt_ids,
            turn.response_ids,
            mask=[not inside for inside in student.command_mask(turn.response_ids)],
            temperature=turn.temperature,
        )
        for turn in turns
    ]
    values = [float(row.double().mean()) for row in score_segments(model, rows, LIMITS)]
    return -sum(values) / len(values)


def test_turns_that_are_left_out_of_the_base_are_left_out() -> None:
    """`objective.mask_truncated` leaves out what ran out of steps."""
    masked = {"objective__mask_truncated": True, "objective__name": "none", "optim__steps": 1}
    config = config_of("format_only", **masked)
    trajectories, model = mixed(config), small.model()
    turns = turns_of(trajectories)
    on = trained_turns(turns, config.objective)
    own = [turn for turn, keep in zip(turns, on, strict=True) if keep]
    assert 0 < len(own) < len(turns)
    assert all(turn.format_valid for turn in turns)
    expected = _nll(model, own)
    assert expected != pytest.approx(_nll(model, turns), rel=1e-3)
    metrics = learn(config, model, trajectories)
    assert metrics["loss/format_only"] == pytest.approx(expected, rel=1e-5)


def test_without_a_trained_turn_it_has_no_pass() -> None:
    model = small.model()
    method = _made(model)
    turns = turns_of(mixed(config_of(None)))
    segments: list[Segment] = [
        make_segment(t.prompt_ids, t.response_ids, mask=[False] * len(t.response_ids))
        for t in turns
    ]
    method.prepare(Rollouts(0, turns, segments), model)
    assert not method.has_pass(whole(len(turns)))
    assert method.own(whole(len(turns))) == []
    segments[3] = segments_from_turns(turns)[3]
    method.prepare(Rollouts(0, turns, segments), model)
    assert method.own(whole(len(turns))) == [turns[3]]


def test_replies_are_scored_at_the_temperature_of_their_turns() -> None:
    model = small.model()
    method = _made(model)
    plain = turns_of(mixed(config_of(None)))
    turns = [replace(t, temperature=(0.5, 2.0)[i % 2]) for i, t in enumerate(plain)]
    method.prepare(Rollouts(0, turns, segments_from_turns(turns)), model)
    assert [row.segment.temperature for row in method.rows(turns)] == [t.temperature for t in turns]
    loss = method.backward(model, whole(len(turns)), LIMITS)
    expected = _nll(model, turns)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(_nll(model, plain), rel=1e-3)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert any(bool(torch.any(grad != 0.0)) for grad in grads)
