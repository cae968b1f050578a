"""What the SERO loss promises.

1. Where loss and z cover the same tokens, w_k = exp(-sum of l_j over j < k) at the behaviour
   weights; with the default token sets they differ, and a case worked by hand holds.
2. With every z equal to 1 it is Full-Flat; with z_0 equal to 0 it is Root-only.
3. Any cut into micro-batches gives the same loss and gradients; so does any order of branches.
4. N_root counts selected, valid or active roots; `branch_norm="mass"` divides by sum_k w_k.
5. Gates and weights are constants: no gradient reaches what they were computed from.
6. Without an active root the loss is exactly 0 and every gradient exactly 0; a row of weight 0
   may hold -inf; tokens outside the mask change nothing.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor
from torch.testing import assert_close

from trainer.auxiliary import (
    Branch,
    count_roots,
    effective_depth,
    gate,
    log_z,
    pruned_mass,
    reach_weights,
    row_coefficients,
    sero_branch_loss,
    sero_loss,
)
from trainer.objectives import weighted_nll

INF = math.inf
F64 = torch.float64


def branch(student, *, behaviour=None, G_pi=0.0, G_O=1.0, valid=True, c_R=1.0, **masks) -> Branch:
    """A branch from nested lists of token log-probs; the behaviour policy defaults to the same."""
    return Branch(
        valid=valid,
        G_pi=G_pi,
        G_O=G_O,
        c_R=c_R,
        behaviour=[tensor(row, dtype=F64) for row in behaviour or student],
        student=[tensor(row, dtype=F64).requires_grad_() for row in student],
        **{name: [tensor(row) for row in value] for name, value in masks.items()},
    )


def random_bank(seed: int = 0, roots: int = 6) -> list[Branch]:
    """Branches of 1 to 5 rows and 1 to 6 tokens: active, fractional, tied and invalid ones."""
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    bank = []
    for r in range(roots):
        widths = [draw(1, 6) for _ in range(draw(1, 5))]
        student = [(-2 * torch.rand(n, generator=g, dtype=F64)).tolist() for n in widths]
        behaviour = [(-torch.rand(n, generator=g, dtype=F64)).tolist() for n in widths]
        G_pi = [0.0, 0.4, 1.0][r % 3]
        bank.append(branch(student, behaviour=behaviour, G_pi=G_pi, valid=r != 4))
    return bank


def gradients(bank: list[Branch]) -> list[list[list[float]]]:
    return [[[] if row.grad is None else row.grad.tolist() for row in one.student] for one in bank]


def padded(bank: list[Branch]) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """All rows of a bank as one (K, T) leaf of log-probs, its mask, and each row's (r, k)."""
    rows = [(r, k) for r, one in enumerate(bank) for k in range(len(one.student))]
    width = max(len(bank[r].student[k]) for r, k in rows)
    logp = torch.full((len(rows), width), math.nan, dtype=F64)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, (r, k) in enumerate(rows):
        values = bank[r].student[k].detach()
        logp[i, : len(values)], mask[i, : len(values)] = values, True
    return logp.requires_grad_(), mask, rows


# -- 1. token sets ---------------------------------------------------------------------------


def test_weights_are_the_exponential_of_the_losses_when_token_sets_coincide():
    g = torch.Generator().manual_seed(1)
    rows = [(-torch.rand(n, generator=g, dtype=F64)).tolist() for n in (4, 1, 6, 3, 2)]
    (got,) = sero_loss([branch(rows)]).rows
    for k, row in enumerate(got):
        assert row.nll == pytest.approx(-sum(rows[k]) / len(rows[k]), rel=1e-14)
        before = sum(earlier.nll for earlier in got[:k])
        assert row.weight == pytest.approx(math.exp(-before), rel=1e-13)


def test_default_token_sets_by_hand():
    # Tokens: opening tag, two command tokens, closing tag. z: the command. Loss: command and
    # closing tag. Behaviour and student differ.
    one = branch(
        [[-7.0, -0.3, -0.1, -0.2], [-8.0, -0.5, -0.1, -0.6]],
        behaviour=[[-5.0, -0.2, -0.4, -3.0], [-6.0, -0.5, -0.4, -2.0]],
        z_mask=[[0, 1, 1, 0], [0, 1, 1, 0]],
        loss_mask=[[0, 1, 1, 1], [0, 1, 1, 1]],
    )
    result = sero_loss([one])
    w1 = math.exp(-0.3)  # mean of .2 and .4
    assert result.loss.item() == pytest.approx(0.6 / 3 + w1 * 1.2 / 3, rel=1e-14)
    assert result.weighted.item() == pytest.approx(0.1 * result.loss.item(), rel=1e-14)
    # exp(-l_0) = exp(-.2) is another number: the free identity does not hold here.
    assert result.rows[0][1].weight == pytest.approx(w1, rel=1e-14)
    assert abs(w1 - math.exp(-0.2)) > 0.05
    result.loss.backward()
    assert one.student[0].grad.tolist() == pytest.approx([0.0, -1 / 3, -1 / 3, -1 / 3])
    assert one.student[1].grad.tolist() == pytest.approx([0.0] + [-w1 / 3] * 3)


# -- 2. the two ablations as limits ----------------------------------------------------------


def sero_and(rule: str, behaviour_logp: float, only_first: bool = False):
    outcomes = []
    for name in ("sero", rule):
        bank = random_bank(2)
        changed = [
            Branch(
                valid=one.valid,
                G_pi=one.G_pi,
                G_O=one.G_O,
                behaviour=[
                    torch.full_like(row, behaviour_logp) if k == 0 or not only_first else row
                    for k, row in enumerate(one.behaviour)
                ],
                student=one.student,
            )
            for one in bank
        ]
        result = sero_loss(changed, rule=name)
        result.loss.backward()
        outcomes.append((result.loss.item(), gradients(bank)))
    return outcomes


def test_equals_full_flat_when_every_z_is_one():
    sero, flat = sero_and("flat", 0.0)
    assert sero == flat
    assert sero[0] > 0


def test_equals_root_only_when_the_first_z_is_zero():
    sero, root = sero_and("root", -INF, only_first=True)
    assert sero == root
    assert sero[0] > 0


# -- 3. cuts and order -----------------------------------------------------------------------


@pytest.mark.parametrize("normaliser", ["selected", "valid", "active"])
@pytest.mark.parametrize("token_agg", ["mean", "sum"])
@pytest.mark.parametrize("branch_norm", ["none", "mass"])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_micro_batches_give_the_same_loss_and_gradients(normaliser, token_agg, branch_norm, size):
    bank = random_bank(3)
    whole = sero_loss(
        bank, normaliser=normaliser, token_agg=token_agg, w_min=0.05, branch_norm=branch_norm
    )
    whole.loss.backward()

    logp, mask, rows = padded(bank)
    gates = [gate(one.G_pi, one.G_O, one.c_R, one.valid) for one in bank]
    weights = [reach_weights([log_z(row) for row in one.behaviour]) for one in bank]
    n_root = count_roots(gates, [one.valid for one in bank], normaliser)
    coefficients = row_coefficients(
        gates,
        weights,
        [[len(row) for row in one.student] for one in bank],
        n_root=n_root,
        token_agg=token_agg,
        w_min=0.05,
        branch_norm=branch_norm,
    )
    coef = tensor([coefficients[r][k] for r, k in rows], dtype=F64)
    # Scattered rows: a branch may be cut over micro-batches.
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(4))
    total = 0.0
    for part in order.split(size):
        loss = weighted_nll(logp[part], mask[part], coef[part])
        loss.backward()
        total += loss.item()
    assert whole.loss.item() > 0.05
    assert_close(total, whole.loss.item(), rtol=1e-12, atol=0)
    direct = 0.0
    masses = tensor([effective_depth(weights[r]) for r, _ in rows], dtype=F64)
    for part in order.split(size):
        direct += sero_branch_loss(
            logp.detach()[part],
            mask[part],
            tensor([gates[rows[i][0]] for i in part], dtype=F64),
            tensor([weights[rows[i][0]][rows[i][1]] for i in part], dtype=F64),
            n_root=n_root,
            token_agg=token_agg,
            w_min=0.05,
            branch_mass_K=masses[part] if branch_norm == "mass" else None,
        ).item()
    assert_close(direct, whole.loss.item(), rtol=1e-12, atol=0)
    for i, (r, k) in enumerate(rows):
        reference = bank[r].student[k].grad
        n = len(bank[r].student[k])
        assert_close(logp.grad[i, :n], reference, rtol=1e-12, atol=1e-15)
        assert not logp.grad[i, n:].any()


def test_order_of_branches_is_irrelevant():
    bank = random_bank(5)
    forward = sero_loss(bank)
    backward = sero_loss(bank[::-1])
    assert_close(forward.loss, backward.loss, rtol=1e-14, atol=0)
    assert forward.diagnostics == pytest.approx(backward.diagnostics, rel=1e-13)


# -- 4. normalisers --------------------------------------------------------------------------


def four_roots() -> list[Branch]:
    """Active, tied with the oracle, invalid, and empty; the active one costs 1 + e^-1 * 1."""
    return [
        branch([[-1.0], [-1.0]]),
        branch([[-1.0], [-1.0]], G_pi=1.0),
        branch([[-1.0], [-1.0]], valid=False),
        branch([]),
    ]


@pytest.mark.parametrize(("normaliser", "n_root"), [("selected", 4), ("valid", 2), ("active", 1)])
def test_normalisers_count_what_they_say(normaliser, n_root):
    result = sero_loss(four_roots(), normaliser=normaliser)
    assert result.loss.item() == pytest.approx((1 + math.exp(-1)) / n_root, rel=1e-14)
    figures = result.diagnostics
    assert [figures[key] for key in ("n_root", "n_valid", "n_active")] == [4, 2, 1]
    assert figures["gate_zero_ratio"] == 0.75
    assert figures["gate_mean"] == 0.25
    assert figures["effective_depth_mean"] == pytest.approx(3 * (1 + math.exp(-1)) / 4)


@pytest.mark.parametrize("rule", ["sero", "flat", "root", "depth"])
def test_branch_norm_mass_gives_every_root_the_weight_of_its_gate(rule):
    rows = [[-1.0, -1.0], [-1.0], [-1.0, -1.0, -1.0]]  # every row costs exactly 1
    bank = [branch(rows), branch(rows[:1], G_pi=0.75), branch(rows[:2], G_pi=0.5)]
    result = sero_loss(bank, rule=rule, branch_norm="mass")
    assert result.loss.item() == pytest.approx((1 + 0.25 + 0.5) / 3, rel=1e-14)
    for one, g in zip(result.rows, (1.0, 0.25, 0.5), strict=True):
        assert math.fsum(row.share for row in one) == pytest.approx(g / 3, rel=1e-14)


def test_pruning_drops_rows_without_making_the_others_heavier():
    bank = [branch([[-3.0], [-3.0], [-3.0]])]
    for norm in ("none", "mass"):
        full = sero_loss(bank, branch_norm=norm)
        cut = sero_loss(bank, w_min=math.exp(-3), branch_norm=norm)  # w_1 itself is dropped
        assert [row.share for row in cut.rows[0]] == [full.rows[0][0].share, 0.0, 0.0]
        dropped = pytest.approx(math.exp(-3) + math.exp(-6))
        assert cut.diagnostics["pruned_mass"] == dropped
        assert full.diagnostics["pruned_mass"] == 0.0
    assert pruned_mass([0.5], [[1.0, 0.1]], 0.2) == pytest.approx(0.05)


# -- 5. constants ----------------------------------------------------------------------------


def test_gates_and_weights_receive_no_gradient():
    logp = torch.full((2, 3), -1.0, dtype=F64, requires_grad=True)
    gates = torch.full((2,), 0.5, dtype=F64, requires_grad=True)
    weights = tensor([1.0, 0.4], dtype=F64, requires_grad=True)
    loss = sero_branch_loss(-(logp.square()), torch.ones(2, 3), gates, weights, n_root=1)
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.abs().sum() > 0
    assert gates.grad is None
    assert weights.grad is None


def test_behaviour_log_probs_receive_no_gradient():
    one = branch([[-1.0], [-2.0]])
    behaviour = [row.clone().requires_grad_() for row in one.behaviour]
    live = Branch(True, 0.0, 1.0, behaviour=behaviour, student=one.student)
    sero_loss([live]).loss.backward()
    assert [row.grad for row in behaviour] == [None, None]
    assert one.student[1].grad.tolist() == [pytest.approx(-math.exp(-1))]


# -- 6. nothing to learn ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "bank",
    [
        [],
        [branch([])],
        [branch([[-1.0, -2.0]], G_pi=1.0), branch([[-1.0]], G_pi=1.0, G_O=0.0)],
        [branch([[-1.0, -INF], [math.nan]], valid=False, behaviour=[[-1.0, -1.0], [-1.0]])],
        [branch([[-1.0]], G_O=math.nan)],
        [branch([[-1.0, -1.0]], loss_mask=[[0, 0]])],
        [branch([[-1.0, -1.0]], z_mask=[[0, 0]])],
    ],
    ids=["no_roots", "empty", "not_better", "invalid", "nan_return", "no_loss_tokens", "no_z"],
)
@pytest.mark.parametrize("normaliser", ["selected", "valid", "active"])
@pytest.mark.parametrize("branch_norm", ["none", "mass"])
def test_o27_exact_zero_without_an_active_root(bank, normaliser, branch_norm):
    for one in bank:
        for row in one.student:
            row.grad = None
    result = sero_loss(bank, normaliser=normaliser, branch_norm=branch_norm)
    result.weighted.backward()
    assert result.loss.item() == 0.0
    for one in bank:
        for row in one.student:
            assert row.grad is not None
            assert torch.equal(row.grad, torch.zeros_like(row))
    assert all(math.isfinite(value) for value in result.diagnostics.values())
    assert result.diagnostics["n_active"] == 0


def test_o27_padded_rows_all_gates_zero():
    logp = torch.full((3, 4), -INF, requires_grad=True)
    ones = torch.ones(3, 4)
    loss = sero_branch_loss(logp, ones, torch.zeros(3), torch.ones(3), n_root=2)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logp.grad, torch.zeros(3, 4))
    none = torch.zeros((0, 4), requires_grad=True)
    empty = sero_branch_loss(none, none.detach(), torch.zeros(0), torch.zeros(0), n_root=0)
    empty.backward()
    assert empty.item() == 0.0


def test_rows_of_weight_zero_may_be_impossible():
    # z_0 = 0, so row 1 has weight 0 and may hold -inf. Row 0 itself is possible for the student.
    one = branch([[-2.0], [-INF]], behaviour=[[-INF], [-1.0]])
    result = sero_loss([one])
    result.loss.backward()
    assert result.loss.item() == 2.0
    assert [row.grad.tolist() for row in one.student] == [[-1.0], [0.0]]
    assert result.diagnostics["n_infinite"] == 0


def test_impossible_rows_of_positive_weight_are_skipped_and_counted():
    one = branch([[-INF, -1.0], [-3.0]], behaviour=[[-1.0, -1.0], [-1.0]])
    result = sero_loss([one])
    result.loss.backward()
    assert result.loss.item() == pytest.approx(3 * math.exp(-1), rel=1e-14)
    assert result.rows[0][0].nll is None
    assert result.rows[0][0].share == 0.0
    assert one.student[0].grad.tolist() == [0.0, 0.0]
    assert result.diagnostics["n_infinite"] == 1


@pytest.mark.parametrize("junk", [-1e9, -INF, math.nan])
def test_o29_tokens_outside_the_loss_mask_change_no_bit(junk):
    outcomes = []
    for fill in (-0.5, junk):
        one = branch(
            [[fill, -1.0, -2.0], [fill, -3.0, fill]],
            behaviour=[[fill, -1.0, fill], [fill, -0.7, fill]],
            z_mask=[[0, 1, 0], [0, 1, 0]],
            loss_mask=[[0, 1, 1], [0, 1, 0]],
        )
        result = sero_loss([one])
        result.loss.backward()
        outcomes.append((result.loss.item(), gradients([one])))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1][0][0][0] == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sero_loss([branch([[-1.0]])], normaliser="all"), "Unknown normaliser"),
        (lambda: sero_loss([branch([[-1.0]])], token_agg="max"), "token_agg"),
        (lambda: sero_loss([branch([[-1.0]])], branch_norm="depth"), "branch_norm"),
        (lambda: sero_loss([branch([[-1.0]])], rule="linear"), "Unknown weight rule"),
        (lambda: sero_loss([branch([[-1.0]], behaviour=[[-1.0, -1.0]])]), "behaviour tokens"),
        (lambda: sero_loss([branch([[-1.0]], loss_mask=[[1, 1]])]), "its mask"),
        (lambda: row_coefficients([1.0], [[1.0]], [[1, 2]], n_root=1), "equal length"),
        (lambda: row_coefficients([-1.0], [[1.0]], [[1]], n_root=1), "finite and >= 0"),
        (lambda: row_coefficients([1.0], [[math.nan]], [[1]], n_root=1), "finite and >= 0"),
        (lambda: row_coefficients([1.0], [[1.0]], [[1]], n_root=-1), "n_root"),
    ],
)
def test_wrong_inputs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
