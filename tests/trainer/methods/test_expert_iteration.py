"""Expert iteration: the own replies of successful rollouts, in the base's forward pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.imitation_support import (
    LIMITS,
    base_pass,
    config_of,
    learn,
    logprob,
    mixed,
    prepared,
    turns_of,
    whole,
)
from tests.trainer.short_runs import learn as learn_turns
from trainer.config import ConfigError
from trainer.learning.update import AuxiliaryRow, auxiliary_backward, score_segments
from trainer.methods.imitation.expert_iteration import ExpertIteration
from trainer.methods.protocol import Rollouts, Setup, Step
from trainer.rollouts.data import read_turns, segments_from_turns, write_turns


def test_the_gradient_is_that_of_the_mean_nll_of_replies_that_won() -> None:
    config = config_of("expert_iteration", objective__name="none")
    trajectories = mixed(config)
    turns = turns_of(trajectories)
    segments = segments_from_turns(turns)
    model = small.model()
    method = prepared(config, trajectories, model)
    term = method.token_term(whole(len(turns)))
    nothing = [torch.zeros(s.trained, dtype=torch.float64) for s in segments]
    found = base_pass(config, model, segments, nothing, term, tokens=500)
    won = [i for i, t in enumerate(_outcomes(trajectories)) if t]
    assert 0 < len(won) < len(turns)
    assert [term.needs(i) for i in range(len(turns))] == _outcomes(trajectories)
    rows = [AuxiliaryRow(segments[i], 1 / (len(won) * segments[i].trained)) for i in won]
    model.zero_grad()
    auxiliary_backward(model, rows, 0.1, LIMITS)
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    nll = [-float(r.double().mean()) for r in score_segments(model, segments, LIMITS)]
    assert method.metrics()["expert_iteration/nll"] == pytest.approx(
        sum(nll[i] for i in won) / len(won), rel=1e-5
    )
    assert method.metrics()["expert_iteration/rows"] == len(won)


def _outcomes(trajectories: Any) -> list[bool]:
    return [trajectory.success for trajectory in trajectories for _ in trajectory.turns]


def test_each_optimiser_step_counts_its_own_rows() -> None:
    config = config_of("expert_iteration", objective__name="none")
    trajectories = mixed(config)
    turns = turns_of(trajectories)
    segments = segments_from_turns(turns)
    model = small.model()
    method = prepared(config, trajectories, model)
    won = _outcomes(trajectories).index(True)
    lost = _outcomes(trajectories).index(False)
    term = method.token_term(Step(0, 0, 0, 2, (won, lost)))
    (logp,) = score_segments(model, [segments[won]], LIMITS)
    assert not term.needs(lost)
    assert term.needs(won)
    nothing = [torch.zeros(segments[i].trained, dtype=torch.float64) for i in range(len(turns))]
    base_pass(config, model, segments, nothing, term)
    assert method.metrics()["expert_iteration/nll"] == pytest.approx(
        -float(logp.double().mean()), rel=1e-5
    )
    assert method.token_term(Step(0, 0, 1, 2, (lost,))) is None
    assert method.token_term(Step(0, 0, 1, 2, (lost, len(turns) + 3))) is None


def test_turns_that_the_base_leaves_out_are_left_out_here() -> None:
    config = config_of("expert_iteration")
    turns = turns_of(mixed(config))
    model = small.model()
    empty = [replace(s, loss_mask=(False,) * len(s.ids)) for s in segments_from_turns(turns)]
    method = ExpertIteration(
        Setup(config, small.student(config), model), config.auxiliary.expert_iteration
    )
    method.prepare(Rollouts(0, turns, empty), model)
    assert method.token_term(whole(len(turns))) is None
    assert method.metrics() == {"expert_iteration/rows": 0, "expert_iteration/nll": None}


def test_malformed_replies_may_be_left_out() -> None:
    trajectories = mixed(config_of(None))
    turns = [
        replace(turn, format_valid=turn.t != 1)
        for t in trajectories
        if t.success
        for turn in t.turns
    ]
    model, counts = small.model(), []
    for well_formed in (False, True):
        config = config_of("expert_iteration", auxiliary__expert_iteration__well_formed=well_formed)
        method = ExpertIteration(
            Setup(config, small.student(config), model), config.auxiliary.expert_iteration
        )
        method.prepare(Rollouts(0, turns, segments_from_turns(turns)), model)
        counts.append(method.metrics()["expert_iteration/rows"])
    assert counts == [len(turns), sum(turn.t != 1 for turn in turns)]
    assert counts[1] < counts[0]


def test_own_successes_become_likelier_and_failures_do_not_matter() -> None:
    config = config_of(
        "expert_iteration", objective__name="none", auxiliary__expert_iteration__weight=1.0
    )
    trajectories = mixed(config)
    model = small.model()
    won = segments_from_turns(turns_of([t for t in trajectories if t.success]))
    before = logprob(model, won)
    metrics = learn(config, model, trajectories, iterations=2)
    assert logprob(model, won) > before + 1.0
    assert metrics["expert_iteration/nll"] < -before
    assert metrics["loss/auxiliary"] is None, "it has no pass of its own"


def test_turns_from_a_file_give_the_numbers_of_the_run(tmp_path: Path) -> None:
    config = config_of("expert_iteration")
    turns = turns_of(mixed(config))
    write_turns(tmp_path / "turns.parquet", turns)
    left, right = small.model(), small.model()
    from_run = learn_turns(config, turns, left)
    from_file = learn_turns(config, read_turns(tmp_path / "turns.parquet"), right)
    assert small.untimed(from_run) == small.untimed(from_file)
    assert small.same(small.weights(left), small.weights(right))


def test_weights_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"auxiliary\.expert_iteration\.weight=-1"):
        config_of("expert_iteration", auxiliary__expert_iteration__weight=-1.0)
