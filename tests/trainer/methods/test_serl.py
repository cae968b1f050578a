"""SERL weighs the executed command by what the informed teacher thinks of it, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.methods.serl_support import (
    LIMITS,
    command_of,
    learn,
    moved_copy,
    prepared_serl,
    serl_config,
    serl_of,
    serl_turns,
    step_of,
    told_row,
)
from trainer.config import ConfigError
from trainer.learning.update import score_segments
from trainer.methods.protocol import PassLimits
from trainer.methods.reweighting.serl import Serl
from trainer.models.policy import collate, pad_rows
from trainer.rollouts.data import Segment, read_turns, segments_from_turns, write_turns


def _adjusted(method: Serl, adv: Sequence[float], new_B_T: Tensor, chosen: Sequence[int]) -> Tensor:
    """What the term makes of constant advantages."""
    term = method.token_term(step_of(chosen))
    assert term is not None
    batch = collate(segments_from_turns([serl_turns()[i] for i in chosen]))
    adv_B_T = torch.tensor(adv)[:, None] * batch.mask_B_T
    return term.advantages(adv_B_T, new_B_T, batch, chosen)


# -------------------------------------------------------------------------- the reweighting


def test_the_command_alone_is_reweighted_by_teacher_against_the_current_policy() -> None:
    """A~ = A * (1 + alpha * (clip(exp(sgn(A) * (T - S))) - 1)), token by token, by hand."""
    model = small.model()
    method = prepared_serl(serl_of(alpha=0.4, clip=0.3), model)
    chosen = [0, 3, 7]
    turns = [serl_turns()[i] for i in chosen]
    current = score_segments(moved_copy(model), segments_from_turns(turns), LIMITS)
    teacher = score_segments(model, [told_row(turn) for turn in turns], LIMITS)
    adv = [1.5, -0.5, 0.0]
    found = _adjusted(method, adv, pad_rows([v.tolist() for v in current], torch.float32), chosen)
    changed = 0
    for b, turn in enumerate(turns):
        for j, inside in enumerate(command_of(turn)):
            delta = float(teacher[b][j]) - float(current[b][j])
            u = math.exp(delta) if adv[b] > 0 else math.exp(-delta)
            factor = 1 + 0.4 * (min(max(u, 0.7), 1.3) - 1) if inside else 1.0
            assert float(found[b, j]) == pytest.approx(adv[b] * factor, rel=1e-4), (b, j)
            changed += factor != 1.0
    assert changed >= 4
    assert not any(found[2]), "nothing comes of an advantage of 0"
    metrics = method.metrics()
    assert metrics["serl/alpha"] == 0.4
    assert metrics["serl/row_coverage"] == 1.0
    assert 0.7 <= metrics["serl/u_mean"] <= 1.3


def test_delta_follows_the_policy_as_it_is() -> None:
    model = small.model()
    method = prepared_serl(serl_of(), model)
    same = pad_rows([method.scored[0].logprobs.tolist()], torch.float32)
    assert torch.equal(_adjusted(method, [1.0], same, [0]), torch.ones_like(same))
    inside = torch.tensor([command_of(serl_turns()[0])])
    lower = _adjusted(method, [1.0], same - 1.0, [0])
    assert torch.allclose(lower[inside], torch.tensor(1.1))
    assert torch.equal(lower[~inside], torch.ones_like(lower[~inside]))
    higher = _adjusted(method, [-1.0], same - 1.0, [0])
    assert torch.allclose(higher[inside], torch.tensor(-0.9)), "blame for what was right is less"


def test_a_policy_that_is_no_longer_finite_is_left_to_the_optimiser() -> None:
    method = prepared_serl(serl_of(), small.model())
    width = max(len(serl_turns()[i].response_ids) for i in (0, 1))
    new = torch.full((2, width), -1.0)
    new[1, 0] = math.nan
    found = _adjusted(method, [1.0, 1.0], new, [0, 1])
    size = len(serl_turns()[1].response_ids)
    assert torch.equal(found[1, :size], torch.ones(size))
    assert not torch.equal(found[0, : len(command_of(serl_turns()[0]))], torch.ones(1))


def test_rows_nobody_sampled_here_stay_as_they_are() -> None:
    """Joined turns have indices beyond the rollouts'."""
    method = prepared_serl(serl_of(), small.model())
    term = method.token_term(step_of([0, 999]))
    assert term is not None
    batch = collate(segments_from_turns([serl_turns()[0], serl_turns()[1]]))
    adv = torch.ones(batch.mask_B_T.shape) * batch.mask_B_T
    found = term.advantages(adv, batch.old_B_T - 1.0, batch, [0, 999])
    assert torch.equal(found[1], adv[1])
    assert not torch.equal(found[0], adv[0])
    assert method.token_term(step_of([999])) is None


# -------------------------------------------------------------------------- nothing to do


@pytest.mark.parametrize(
    "case", ["weight_zero", "alpha_zero", "clip_zero", "no_context", "no_command"]
)
def test_with_nothing_to_say_parameters_are_bit_identical_to_the_base(case: str) -> None:
    turns = list(serl_turns())
    section: dict[str, Any] = {
        "weight_zero": {"weight": 0.0, "act_weight": 0.5},
        "alpha_zero": {"alpha": 0.0},
        "clip_zero": {"clip": 0.0},
        "no_context": {"source": "success_or_feedback"},
        "no_command": {},
    }[case]
    if case == "no_context":
        turns = [replace(turn, next_observation=" ", success=False, reward=0.0) for turn in turns]
        turns = [replace(turn, format_valid=i % 2 == 0) for i, turn in enumerate(turns)]
    if case == "no_command":
        end = small.tokenizer().eos_token_id
        turns = [replace(t, response_ids=(t.response_ids[0], end), logprobs=(-1.0, -1.0))
                 for t in turns]  # fmt: skip
    start, base, ours = small.model(), small.model(), small.model()
    learn(serl_config(auxiliary__serl=None), base, turns)
    metrics = learn(serl_of(**section), ours, turns)
    assert not small.same(small.weights(start), small.weights(base))
    assert small.same(small.weights(base), small.weights(ours))
    assert metrics["loss/auxiliary"] is None
    measured = case in ("weight_zero", "clip_zero")
    assert (metrics["serl/delta_abs_mean"] is not None) == measured
    assert metrics["serl/act_loss"] is None
    if case == "no_context":
        assert metrics["serl/row_coverage"] == 0.0
    if case == "no_command":
        assert metrics["serl/parse_failure"] == 1.0
        assert metrics["serl/row_coverage"] == 1.0


def test_with_something_to_say_parameters_differ() -> None:
    base, ours, weak = small.model(), small.model(), small.model()
    learn(serl_config(auxiliary__serl=None), base)
    metrics = learn(serl_of(), ours)
    learn(serl_of(weight=0.5), weak)
    assert not small.same(small.weights(base), small.weights(ours))
    assert not small.same(small.weights(weak), small.weights(ours))
    assert metrics["serl/alpha"] == 0.5
    assert metrics["serl/delta_abs_mean"] > 0
    assert 0 < metrics["serl/clipped_fraction"] <= 1


class _Counting:
    """Counts the segments that are scored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.segments: list[Segment] = []
        monkeypatch.setattr("trainer.methods.reweighting.base.score_segments", self)

    def __call__(self, model: Any, segments: Sequence[Segment], limits: PassLimits) -> list[Tensor]:
        self.segments += segments
        return score_segments(model, segments, limits)


def test_the_teacher_reads_rows_that_have_a_context_and_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, model = _Counting(monkeypatch), small.model()
    turns = list(serl_turns())
    end = small.tokenizer().eos_token_id
    turns[0] = replace(turns[0], next_observation="")
    turns[1] = replace(turns[1], response_ids=(end,), logprobs=(-1.0,))
    method = prepared_serl(serl_of(), model, turns=turns)
    assert set(method.scored) == set(range(2, len(turns)))
    assert len(seen.segments) == len(turns) - 2
    for segment, turn in zip(seen.segments, turns[2:], strict=True):
        assert segment.ids == told_row(turn).ids
        assert segment.temperature == turn.temperature
    metrics = method.metrics()
    n = len(turns)
    assert metrics["serl/row_coverage"] == pytest.approx((n - 1) / n)
    assert metrics["serl/parse_failure"] == pytest.approx(1 / n)
    assert metrics["serl/truncated_fraction"] == 0.0
    masks = [command_of(turn) for turn in turns]
    assert metrics["serl/action_token_fraction"] == pytest.approx(
        sum(map(sum, masks)) / sum(map(len, masks))
    )
    assert metrics["serl/u_mean"] is None, "nothing was weighed yet"


def test_turns_that_the_base_leaves_out_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _Counting(monkeypatch)
    learn(serl_config(objective__mask_truncated=True), small.model())
    ended = {(t.uid, t.tid) for t in serl_turns() if t.done and t.stop_reason != "step_limit"}
    kept = [t for t in serl_turns() if (t.uid, t.tid) in ended]
    assert 0 < len(kept) < len(serl_turns())
    assert len(seen.segments) == len(kept)


def test_alpha_decays_with_iterations_and_the_teacher_rests_at_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, model = _Counting(monkeypatch), small.model()
    config = serl_of(decay=4, weight=0.5)
    for iteration, alpha in ((0, 0.25), (1, 0.1875), (3, 0.0625)):
        method = prepared_serl(config, model, iteration)
        assert method.metrics()["serl/alpha"] == alpha
        assert method.scored
    count = len(seen.segments)
    method = prepared_serl(config, model, 4)
    assert len(seen.segments) == count
    assert method.token_term(step_of(range(5), 4)) is None
    assert method.metrics()["serl/alpha"] == 0.0
    assert method.metrics()["serl/row_coverage"] is None
    assert prepared_serl(serl_of(decay=0), model, 10_000).metrics()["serl/alpha"] == 0.5


def test_figures_are_of_all_micro_batches() -> None:
    config = serl_config(optim__steps=1, auxiliary__serl={"act_weight": 0.1})
    whole, cut = (
        learn(config.replace(**{"optim.micro_batch_tokens": tokens}), small.model())
        for tokens in (10**6, 300)
    )
    for name in ("delta_abs_mean", "clipped_fraction", "u_mean", "act_loss"):
        assert cut[f"serl/{name}"] == pytest.approx(whole[f"serl/{name}"], rel=1e-4), name


def test_a_short_limit_shortens_what_the_teacher_is_told() -> None:
    turns = [replace(turn, next_observation="you see a lamp. " * 60) for turn in serl_turns()]
    turns[0] = replace(turns[0], next_observation="")
    longest = max(len(turn.prompt_ids) for turn in turns)
    method = prepared_serl(serl_of(max_prompt_tokens=longest + 80), small.model(), turns=turns)
    assert method.metrics()["serl/truncated_fraction"] == 1.0
    assert method.scored
    assert all(len(row.prompt.ids) <= longest + 81 for row in method.scored.values())
    none = prepared_serl(serl_of(max_prompt_tokens=longest), small.model(), turns=turns).metrics()
    assert none["serl/row_coverage"] < 1.0
    assert none["serl/truncated_fraction"] == 1.0


# -------------------------------------------------------------------------- rewards still rule


def test_a_win_becomes_likelier_and_a_failure_less_likely() -> None:
    config = serl_config(optim__lr=1e-3, optim__steps=1, auxiliary__serl={"alpha": 1.0})
    won = {(t.uid, t.tid) for t in serl_turns() if t.done and t.success}
    mixed_groups = {t.uid for t in serl_turns() if (t.uid, t.tid) not in won} & {u for u, _ in won}
    rows = [t for t in serl_turns() if t.uid in mixed_groups]
    signs = torch.tensor([1.0 if (t.uid, t.tid) in won else -1.0 for t in rows])
    model = small.model()

    def logps() -> Tensor:
        return torch.stack(
            [v.sum() for v in score_segments(model, segments_from_turns(rows), LIMITS)]
        )

    before = logps()
    learn(config, model)
    change = logps() - before
    assert float((signs * change).sum()) > 0


def test_turns_from_a_file_give_the_numbers_of_the_run(tmp_path: Path) -> None:
    write_turns(tmp_path / "turns.parquet", list(serl_turns()))
    read = read_turns(tmp_path / "turns.parquet")
    config = serl_of(source="success+next_observation", placement="anchor", act_weight=0.1)
    left, right = small.model(), small.model()
    ran, again = learn(config, left), learn(config, right, read)
    assert small.untimed(ran) == small.untimed(again)
    assert small.same(small.weights(left), small.weights(right))


# -------------------------------------------------------------------------- what it refuses


def test_a_judge_by_name_is_asked() -> None:
    place = "tests.trainer.methods.test_feedback:reviewer"
    method = prepared_serl(serl_of(source="judge_current", judge=place), small.model())
    assert set(method.scored) == set(range(len(serl_turns())))
    text = small.tokenizer().decode(list(method.scored[0].prompt.ids))
    assert "It walked away from the goal." in text
    with pytest.raises(ConfigError, match=r"auxiliary\.serl\.judge='nowhere:at_all'"):
        prepared_serl(serl_of(source="judge_current", judge="nowhere:at_all"), small.model())
