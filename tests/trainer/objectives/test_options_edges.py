"""Options are compared as texts: a config file's are other objects than those of the code."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import tensor

from trainer.objectives import grpo_advantages
from trainer.objectives.hgpo import hgpo_terms
from trainer.objectives.reinforce_pp import reinforce_pp_advantages

ROWS = (
    tensor([0.0, 10.0, 0.0, 0.0, 4.0]),
    tensor([True, True, False, True, True]),
    tensor([0, 0, 0, 0, 1]),
    tensor([0, 0, 1, 1, 2]),
    tensor([0, 1, 0, 1, 0]),
)


def fresh(text: str) -> str:
    """An equal text that is another object."""
    other = "".join([text[:1], text[1:]])
    assert other == text
    assert other is not text
    return other


def test_grpo() -> None:
    for flavor, singleton in product(("code", "code_traj"), ("zero", "raw")):
        want = grpo_advantages(*ROWS, flavor=flavor, singleton=singleton)
        got = grpo_advantages(*ROWS, flavor=fresh(flavor), singleton=fresh(singleton))
        assert torch.equal(got, want)
    with pytest.raises(ValueError, match="raw"):
        grpo_advantages(*ROWS, flavor=fresh("paper"), singleton=fresh("raw"))


def test_hgpo() -> None:
    anchor = tensor([0, 1, 0, 1, 2])
    found = {}
    for flavor, mode in product(("paper", "code"), ("mean_std_norm", "mean_norm")):
        want = hgpo_terms(*ROWS, anchor, flavor=flavor, mode=mode).advantage
        got = hgpo_terms(*ROWS, anchor, flavor=fresh(flavor), mode=fresh(mode)).advantage
        assert torch.equal(got, want)
        found[flavor, mode] = tuple(want.tolist())
    assert len(set(found.values())) == 4


@pytest.mark.parametrize("rows", [4, 6])
def test_reinforce_pp_wants_a_row_of_tokens_for_each_turn(rows: int) -> None:
    reward, valid, _, tid, _ = ROWS
    with pytest.raises(ValueError, match=f"Expected a mask of 5 rows, found {rows}"):
        reinforce_pp_advantages(reward, valid, tid, torch.ones(rows, 2))
