"""Branch rows, the loss on them, and how optimiser steps are arranged for verl."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.engines.verl.branch_rows import (
    BRANCH,
    branch_tensors,
    make_policy_loss,
    segment_tensors,
)
from trainer.engines.verl.rows import token_values
from trainer.engines.verl.steps import StepError, arrange, join
from trainer.learning.update import AuxiliaryRow
from trainer.rollouts.data import make_segment

has_verl = importlib.util.find_spec("verl") is not None
needs_verl = pytest.mark.skipif(not has_verl, reason="the package verl is not installed")

OWN = [make_segment((1, 2), (4, 5)), make_segment((1, 2, 3), (6, 7, 8, 9))]
ROW = AuxiliaryRow(make_segment((1, 2), (3, 4, 5), mask=(False, True, True)), 0.25)
VALUES = {
    "advantages": torch.tensor([[0.5, 0.5, 0, 0], [-1.0, -1.0, -1.0, -1.0]]),
    "old_log_probs": torch.tensor([[-1.0, -1.0, 0, 0], [-1.0, -1.0, -1.0, -1.0]]),
}


def test_segments_have_the_layout_of_verl() -> None:
    made = segment_tensors([OWN[0], ROW.segment], pad_id=0)
    assert made["prompts"].tolist() == [[0, 1, 2], [1, 2, 3]]
    assert made["responses"].tolist() == [[4, 5], [4, 5]]
    assert made["input_ids"].tolist() == [[0, 1, 2, 4, 5], [1, 2, 3, 4, 5]]
    assert made["attention_mask"].tolist() == [[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]]
    assert made["position_ids"].tolist() == [[0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert made["response_mask"].tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="room for 2"):
        segment_tensors([OWN[1]], 0, prompt=2, response=4)
    with pytest.raises(ValueError, match="without a trained token"):
        segment_tensors([make_segment((1,), (2,), mask=(False,))], 0)


def test_a_mask_with_gaps_stays_where_it_is() -> None:
    segment = make_segment((1,), (2, 3, 4), mask=(True, False, True))
    assert segment_tensors([segment], 0)["response_mask"].tolist() == [[1, 0, 1]]
    made = branch_tensors([AuxiliaryRow(segment, 2.0)], 0.5, 0)
    assert made["advantages"].tolist() == [[1.0, 0.0, 1.0]]


def test_a_branch_row_is_in_no_mask() -> None:
    made = branch_tensors([ROW], 0.1, pad_id=0, prompt=4, response=3)
    # What stands before the first trained token is the prompt.
    assert made["prompts"].tolist() == [[0, 1, 2, 3]]
    assert made["response_mask"].tolist() == [[0, 0, 0]]
    torch.testing.assert_close(made["advantages"], torch.tensor([[0.025, 0.025, 0.0]]))
    assert made["old_log_probs"].tolist() == [[BRANCH] * 3]


def _clipped(**given: Any) -> tuple[Tensor, dict[str, Any]]:
    """Token mean of the clipped loss."""
    ratio = (given["log_prob"] - given["old_log_prob"]).exp()
    loss = torch.max(-given["advantages"] * ratio, -given["advantages"] * ratio.clamp(0.8, 1.2))
    return (loss * given["response_mask"]).sum() / given["response_mask"].sum(), {"m": 1}


def _check_loss(base: Any, config: Any, ranks: int = 1) -> None:
    """A step with a branch row has the loss and gradient of the base, plus coefficient * NLL."""
    made = join(OWN, VALUES, [[0, 1]], [[ROW]], 0.1, ranks=1, pad_id=0).tensors
    place = made["old_log_probs"][:, 0].eq(BRANCH).nonzero().item()
    rest = [b for b in range(3) if b != place]
    log_prob = (torch.arange(12.0).reshape(3, 4) / -10 - 0.6).requires_grad_()
    loss, metrics = make_policy_loss(base)(
        made["old_log_probs"], log_prob, made["advantages"], made["response_mask"],
        "token-mean", config,
    )  # fmt: skip
    loss.backward()  # type: ignore[no-untyped-call]
    own = log_prob.detach()[rest].clone().requires_grad_()
    alone, _ = base(
        old_log_prob=made["old_log_probs"][rest], log_prob=own,
        advantages=made["advantages"][rest], response_mask=made["response_mask"][rest],
        loss_agg_mode="token-mean", config=config, rollout_is_weights=None,
    )  # fmt: skip
    alone.backward()
    nll = -0.025 * float(log_prob[place, :2].detach().sum())
    assert loss.item() == pytest.approx(alone.item() + ranks * nll, rel=1e-5)
    assert metrics["actor/sero_loss"] == pytest.approx(nll, rel=1e-5)
    assert log_prob.grad is not None
    assert own.grad is not None
    assert torch.equal(log_prob.grad[rest], own.grad)
    expected = ranks * torch.tensor([-0.025, -0.025, 0, 0])
    torch.testing.assert_close(log_prob.grad[place], expected)


def test_the_loss_adds_the_branches_and_leaves_the_base_as_it_is() -> None:
    _check_loss(_clipped, None)


def test_the_sum_over_branches_makes_up_for_the_mean_over_ranks() -> None:
    _check_loss(_clipped, SimpleNamespace(global_batch_info={"dp_size": 4}), ranks=4)


def test_a_pass_of_branch_rows_alone_has_no_base_loss() -> None:
    """verl gives the token count of the whole step; here the pass has none of its own."""

    def whole_step(**given: Any) -> tuple[Tensor, dict[str, Any]]:
        ratio = (given["log_prob"] - given["old_log_prob"]).exp()
        return -(given["advantages"] * ratio * given["response_mask"]).sum() / 7, {}

    rows = branch_tensors([ROW], 1.0, 0)
    log_prob = torch.full(rows["advantages"].shape, -2.0, requires_grad=True)
    loss, _ = make_policy_loss(whole_step)(
        rows["old_log_probs"], log_prob, rows["advantages"], rows["response_mask"]
    )
    assert loss.item() == pytest.approx(0.25 * 4.0)


def test_an_impossible_oracle_token_outside_the_loss_does_no_harm() -> None:
    rows = branch_tensors([AuxiliaryRow(make_segment((1,), (2, 3)), 0.5)], 1.0, 0, response=3)
    log_prob = torch.tensor([[-1.0, -1.0, float("-inf")]], requires_grad=True)
    loss, _ = make_policy_loss(lambda **g: ((g["log_prob"] * 0.0)[:, :0].sum(), {}))(
        rows["old_log_probs"], log_prob, rows["advantages"], rows["response_mask"]
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(1.0)
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [[-0.5, -0.5, 0.0]]


def test_a_row_with_an_impossible_token_is_left_out() -> None:
    rows = branch_tensors([AuxiliaryRow(make_segment((1,), (2, 3)), 0.5), ROW], 1.0, 0)
    log_prob = torch.tensor([[-1.0, float("-inf")], [-1.0, -3.0]], requires_grad=True)
    loss, _ = make_policy_loss(lambda **_: (torch.zeros(()), {}))(
        rows["old_log_probs"], log_prob, rows["advantages"], rows["response_mask"]
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(1.0)
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [[0.0, 0.0], [-0.25, -0.25]]


def test_what_would_let_branches_into_the_base_is_refused() -> None:
    rows = branch_tensors([ROW], 1.0, 0)
    log_prob = -torch.ones_like(rows["advantages"])
    loss = make_policy_loss(_clipped)
    with pytest.raises(ValueError, match="token-mean"):
        loss(
            rows["old_log_probs"], log_prob, rows["advantages"], rows["response_mask"],
            "seq-mean-token-sum",
        )  # fmt: skip
    with pytest.raises(ValueError, match="response_mask"):
        loss(
            rows["old_log_probs"], log_prob, rows["advantages"],
            torch.ones_like(rows["response_mask"]),
        )  # fmt: skip


@needs_verl
def test_the_loss_over_verl_s_own() -> None:
    from verl.trainer.ppo import core_algos  # type: ignore[import-not-found, unused-ignore]
    from verl.workers.config import ActorConfig  # type: ignore[import-not-found, unused-ignore]

    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    _check_loss(core_algos.compute_policy_loss_vanilla, config)


# --- the order of rows ------------------------------------------------------------------------


def _as_verl_cuts(order: list[Any], ranks: int, steps: int) -> list[list[Any]]:
    """Rows of each optimiser step: a rank takes a run, and of it a mini-batch a step."""
    share = len(order) // ranks
    per = share // steps
    runs = [order[r * share : (r + 1) * share] for r in range(ranks)]
    return [[row for run in runs for row in run[i * per : (i + 1) * per]] for i in range(steps)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_verl_s_steps_are_the_parts(sizes: list[int], ranks: int, random: Any) -> None:
    rows = list(range(sum(sizes)))
    random.shuffle(rows)
    lengths = [random.randint(1, 50) for _ in rows]
    parts, first = [], 0
    for size in sizes:
        parts.append(rows[first : first + size])
        first += size
    order = arrange(parts, lengths, ranks)
    assert len(order) % (ranks * len(parts)) == 0
    found = _as_verl_cuts(order, ranks, len(parts))
    assert [sorted(r for r in step if r is not None) for step in found] == [
        sorted(part) for part in parts
    ]
    # No more rows to fill up than the largest part needs.
    assert len(order) == ranks * len(parts) * max(-(-size // ranks) for size in sizes)


def test_ranks_get_about_equal_lengths() -> None:
    order = arrange([[0, 1, 2, 3]], [10, 9, 8, 7], ranks=2)
    assert order == [0, 3, 1, 2]


def test_the_batch_of_an_update() -> None:
    made = join(OWN, VALUES, [[0], [1]], [[], [ROW]], 0.1, ranks=1, pad_id=0)
    assert (made.step_rows, made.branch_rows, made.filler_rows) == (2, 1, 1)
    tensors = made.tensors
    assert set(tensors) == {
        "prompts", "responses", "input_ids", "attention_mask", "position_ids", "response_mask",
        "advantages", "old_log_probs",
    }  # fmt: skip
    own, filler, longest, branch = range(4)
    assert tensors["response_mask"].sum(dim=-1).tolist() == [2, 0, 4, 0]
    assert tensors["attention_mask"].sum(dim=-1).tolist() == [4, 2, 7, 5]
    assert tensors["advantages"][filler].abs().sum() == 0
    torch.testing.assert_close(tensors["advantages"][own], VALUES["advantages"][0])
    torch.testing.assert_close(tensors["old_log_probs"][longest], VALUES["old_log_probs"][1])
    assert tensors["old_log_probs"][branch].tolist() == [BRANCH] * 4


def test_without_branches_the_batch_is_the_turns() -> None:
    made = join(OWN, VALUES, [[1], [0]], [[], []], 0.0, ranks=1, pad_id=0)
    assert made.filler_rows == made.branch_rows == 0
    assert torch.equal(made.tensors["advantages"], VALUES["advantages"].flip(0))


def test_steps_without_turns_are_refused() -> None:
    with pytest.raises(StepError, match=r"optim\.steps=3"):
        join(OWN, VALUES, [[0], [1], []], [[], [], [ROW]], 0.1, ranks=1, pad_id=0)
    wide = {"advantages": torch.ones(2, 6)}
    with pytest.raises(StepError, match="advantages is 6 wide"):
        join(OWN, wide, [[0, 1]], [[]], 0.1, ranks=1, pad_id=0)


def test_ragged_values_are_padded() -> None:
    assert token_values([(-1.0,), (-2.0, -3.0)], 3).tolist() == [[-1, 0, 0], [-2, -3, 0]]
