"""Entropy per token and its loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.objectives import AGGREGATIONS, Denominators
from trainer.objectives.entropy import entropy_loss, token_entropy


def logits(seed=0):
    return torch.randn((3, 4, 5), generator=torch.Generator().manual_seed(seed)).double()


def test_entropy_by_hand():
    rows = tensor([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]).double().log()
    assert_close(token_entropy(rows).tolist(), [1.5 * math.log(2), math.log(3)])
    assert_close(token_entropy(rows + 1000), token_entropy(rows), rtol=1e-9, atol=0)
    assert token_entropy(torch.zeros(2, 3, 7)).shape == (2, 3)


def test_impossible_tokens_count_nothing_forward_and_backward():
    short = tensor([1.0, 2.0]).double().requires_grad_()
    long = tensor([1.0, -math.inf, 2.0, -math.inf]).double().requires_grad_()
    results = [token_entropy(short), token_entropy(long)]
    for x in results:
        x.backward()
    assert_close(results[0], results[1])
    assert_close(long.grad[[0, 2]], short.grad)
    assert long.grad[[1, 3]].tolist() == [0.0, 0.0]


def test_large_logits_in_single_precision():
    base = tensor([0.0, 0.5, -0.5])
    exact = token_entropy(base.double()).item()
    assert abs(token_entropy(base + 4096).item() - exact) < 1e-6
    assert token_entropy(tensor([0.0, 500.0])).item() == 0.0


def test_gradients_by_finite_differences():
    x = logits().requires_grad_()
    mask = tensor([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    assert torch.autograd.gradcheck(token_entropy, (x,))
    for how in AGGREGATIONS:
        counts = Denominators.of(mask, length=8)

        def loss_of(x, how=how, counts=counts):
            return entropy_loss(token_entropy(x), mask, aggregation=how, denominators=counts)

        assert torch.autograd.gradcheck(loss_of, (x,))


def test_loss_is_minus_the_mean_and_descending_it_raises_the_entropy():
    entropy = tensor([[1.0, 2.0, 50.0], [4.0, 60.0, 70.0]])
    mask = tensor([[1, 1, 0], [1, 0, 0]])
    assert_close(entropy_loss(entropy, mask).item(), -7 / 3)
    assert entropy_loss(entropy, mask, aggregation="seq-mean-token-mean").item() == -2.75
    counts = Denominators(tokens=14, sequences=2)
    assert entropy_loss(entropy, mask, denominators=counts).item() == -0.5
    x = logits().requires_grad_()
    before = token_entropy(x)
    entropy_loss(before, torch.ones(3, 4)).backward()
    assert token_entropy(x - 0.1 * x.grad).mean() > before.mean()


@pytest.mark.parametrize("junk", [1e30, math.inf, math.nan])
def test_masked_tokens_and_empty_masks(junk):
    x = tensor([[1.0, junk]]).requires_grad_()
    loss = entropy_loss(x, tensor([[1, 0]]))
    loss.backward()
    assert loss.item() == -1.0
    assert x.grad.tolist() == [[-1.0, 0.0]]
    y = tensor([[junk, junk]]).requires_grad_()
    empty = entropy_loss(y, torch.zeros(1, 2))
    empty.backward()
    assert empty.item() == 0.0
    assert y.grad.tolist() == [[0.0, 0.0]]


def test_micro_batches_add_up():
    entropy = token_entropy(logits())
    mask = tensor([[1, 1, 0, 1], [1, 0, 0, 0], [0, 1, 1, 1]])
    for how in AGGREGATIONS:
        options = {"aggregation": how, "denominators": Denominators.of(mask, length=6)}
        whole = entropy_loss(entropy, mask, **options)
        parts = sum(entropy_loss(entropy[i : i + 1], mask[i : i + 1], **options) for i in range(3))
        assert_close(parts, whole)
