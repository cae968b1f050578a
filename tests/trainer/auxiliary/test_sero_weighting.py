"""SERO's decays, depth and token weights, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.auxiliary.sero import (
    Branch,
    row_coefficients,
    sero_branch_loss,
    sero_loss,
    weigh_tokens,
    weighted_nll,
)
from trainer.auxiliary.sero_weighting import Weighting, decay_of
from trainer.auxiliary.sero_weights import reach_weights

HALF, QUARTER = math.log(0.5), math.log(0.25)
LOGZ = [HALF, QUARTER, -9.0]


# ------------------------------------------------------------------------------ decays


def test_decays_by_hand():
    assert reach_weights(LOGZ, "depth", 0.5, "exponential") == [1.0, 0.5, 0.25]
    assert reach_weights(LOGZ, "depth", 0.5, "harmonic") == [1.0, 1 / 2, 1 / 3]
    assert reach_weights([0.0] * 4, "depth", 0.5, "linear") == [1.0, 0.75, 0.5, 0.25]
    for decay in ("harmonic", "linear"):
        assert reach_weights([], "depth", 0.5, decay) == []
        assert reach_weights([-1.0], "depth", 0.0, decay) == [1.0]


@pytest.mark.parametrize("rule", ["sero", "flat", "root"])
def test_a_decay_belongs_to_rule_depth_alone(rule):
    plain = reach_weights(LOGZ, rule)
    assert reach_weights(LOGZ, rule, 0.3, "harmonic") == plain
    assert reach_weights(LOGZ, rule, 0.3, "linear") == plain


def test_an_unknown_decay_is_refused():
    with pytest.raises(ValueError, match="Unknown decay 'cosine'; choose one of"):
        reach_weights(LOGZ, "depth", 0.5, "cosine")


def test_the_decay_is_given_or_matched():
    # 1 + d + d^2 = 1 + 1/2 + 1/4 at d = 1/2
    bank = [[HALF, HALF, HALF]]
    assert decay_of(0.9, bank) == 0.9
    assert decay_of(0.0, []) == 0.0
    assert decay_of("matched", bank) == pytest.approx(0.5, rel=1e-12)
    assert decay_of("matched", []) == 0.0


# ------------------------------------------------------------------------------ weighting


def test_weighting_is_that_of_sero_by_default():
    scheme = Weighting()
    assert (scheme.rule, scheme.delta, scheme.decay) == ("sero", 0.9, "exponential")
    assert (scheme.depth, scheme.direction) == (None, "forward")
    assert scheme.weights(LOGZ) == reach_weights(LOGZ)
    assert scheme.weights([]) == []


def test_weighting_passes_every_choice_on():
    assert Weighting("depth", 0.5).weights(LOGZ) == [1.0, 0.5, 0.25]
    assert Weighting("depth", 0.5, "harmonic").weights(LOGZ) == [1.0, 1 / 2, 1 / 3]
    assert Weighting("flat").weights(LOGZ) == [1.0, 1.0, 1.0]


def test_a_depth_takes_rows_away_and_changes_no_weight():
    whole = Weighting().weights(LOGZ)
    assert whole == pytest.approx([1.0, 0.5, 0.125])
    for depth, direction, kept in [
        (0, "forward", []),
        (1, "forward", [0]),
        (2, "forward", [0, 1]),
        (3, "forward", [0, 1, 2]),
        (9, "forward", [0, 1, 2]),
        (1, "backward", [2]),
        (2, "backward", [1, 2]),
        (9, "backward", [0, 1, 2]),
    ]:
        scheme = Weighting(depth=depth, direction=direction)
        expected = [w if k in kept else 0.0 for k, w in enumerate(whole)]
        assert scheme.weights(LOGZ) == expected, (depth, direction)
        assert scheme.weights([]) == []


# ------------------------------------------------------------------------------ token weights

LOGP = [[HALF, QUARTER, -2.0]]
MASK = [[1, 1, 0]]


def _double(values, grad=False):
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def test_no_weights_leave_the_log_probs_as_they_are():
    logp = _double(LOGP)
    assert weigh_tokens(logp, torch.tensor(MASK)) is logp
    assert weigh_tokens(logp, torch.tensor(MASK), "none") is logp


def test_chord_weights_by_hand_and_no_gradient_through_them():
    logp, mask = _double(LOGP, grad=True), torch.tensor(MASK)
    loss = weighted_nll(weigh_tokens(logp, mask, "chord"), mask, _double([2.0]))
    # p (1 - p): 1/4 and 3/16
    assert loss.item() == pytest.approx(2 * (0.25 * -HALF + 0.1875 * -QUARTER), rel=1e-12)
    loss.backward()
    assert logp.grad.tolist() == [pytest.approx([-2 * 0.25, -2 * 0.1875, 0.0], rel=1e-12)]
    assert weigh_tokens(logp, mask, "chord")[0, 2].item() == 0.0


def test_a_row_without_loss_tokens_has_no_coefficient():
    assert row_coefficients([1.0], [[1.0, 0.5]], [[0, 2]], n_root=1) == [[0.0, 0.25]]


@pytest.mark.parametrize("absurd", [1e30, math.inf, -math.inf, math.nan])
def test_tokens_outside_the_mask_never_matter(absurd):
    clean, odd = _double(LOGP, grad=True), _double([[HALF, QUARTER, absurd]], grad=True)
    mask = torch.tensor(MASK)
    values = []
    for logp in (clean, odd):
        loss = weighted_nll(weigh_tokens(logp, mask, "chord"), mask, _double([1.0]))
        loss.backward()
        values.append((loss.item(), logp.grad.tolist()))
    assert values[0] == values[1]


def test_a_row_with_an_impossible_token_is_left_out_whatever_the_weights():
    logp = _double([[HALF, -math.inf], [HALF, HALF]], grad=True)
    mask, coefficients = torch.ones(2, 2, dtype=torch.bool), _double([5.0, 1.0])
    for weights, expected in (("none", -2 * HALF), ("chord", -2 * 0.25 * HALF)):
        logp.grad = None
        weighed = weigh_tokens(logp, mask, weights)
        assert weighed[0, 1].item() == -math.inf
        loss = weighted_nll(weighed, mask, coefficients)
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        loss.backward()
        assert logp.grad[0].tolist() == [0.0, 0.0]


def test_an_empty_mask_gives_nothing_and_no_gradient():
    logp = _double(LOGP, grad=True)
    mask = torch.zeros(1, 3)
    loss = weighted_nll(weigh_tokens(logp, mask, "chord"), mask, _double([1.0]))
    loss.backward()
    assert loss.item() == 0.0
    assert logp.grad.tolist() == [[0.0] * 3]


def test_token_weights_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="'none' or 'chord', found 'entropy'"):
        weigh_tokens(_double(LOGP), torch.tensor(MASK), "entropy")
    with pytest.raises(ValueError, match="mask_B_T"):
        weigh_tokens(_double(LOGP), torch.tensor([[1, 1]]))


def _branch(logp):
    return Branch(
        True,
        0.0,
        1.0,
        behaviour=[_double([HALF, HALF]), _double([HALF, HALF])],
        student=logp,
    )


def test_the_definition_and_the_padded_form_take_token_weights():
    logp = [_double([HALF, HALF], grad=True), _double([QUARTER, QUARTER], grad=True)]
    plain = sero_loss([_branch(logp)], lambda_O=1.0)
    # g = 1, N = 1, w = 1 and 1/2, token means
    assert plain.loss.item() == pytest.approx(-HALF - 0.5 * QUARTER, rel=1e-12)
    weighed = sero_loss([_branch(logp)], lambda_O=1.0, token_weights="chord")
    expected = -0.25 * HALF - 0.5 * 0.1875 * QUARTER
    assert weighed.loss.item() == pytest.approx(expected, rel=1e-12)
    assert [row.nll for row in weighed.rows[0]] == [row.nll for row in plain.rows[0]]
    padded = torch.stack(logp)
    arguments = padded, torch.ones(2, 2), _double([1.0, 1.0]), _double([1.0, 0.5])
    assert sero_branch_loss(*arguments, n_root=1).item() == pytest.approx(plain.loss.item())
    chord = sero_branch_loss(*arguments, n_root=1, token_weights="chord")
    assert chord.item() == pytest.approx(expected, rel=1e-12)


def test_chord_weighted_parts_of_a_step_add_up():
    generator = torch.Generator().manual_seed(0)
    logp = -torch.rand(4, 3, generator=generator, dtype=torch.float64)
    mask, coefficients = torch.ones(4, 3), _double([1.0, 0.5, 0.0, 2.0])
    whole = weighted_nll(weigh_tokens(logp, mask, "chord"), mask, coefficients)
    parts = [
        weighted_nll(weigh_tokens(logp[s], mask[s], "chord"), mask[s], coefficients[s])
        for s in (slice(0, 1), slice(1, 4))
    ]
    assert sum(p.item() for p in parts) == pytest.approx(whole.item(), rel=1e-12)
