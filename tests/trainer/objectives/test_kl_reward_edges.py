"""The bounds of turn numbers in the KL reward."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from trainer.objectives.kl_reward import kl_turn_rewards

ONES = torch.ones(1, 2)


@pytest.mark.parametrize("turn", [-1, 2, 3, 7])
def test_a_trained_token_of_no_turn_is_refused(turn: int) -> None:
    logp, turns = torch.zeros(1, 2), tensor([[0, turn]])
    with pytest.raises(ValueError, match=r"turn_B_T must lie in 0\.\.1 inside"):
        kl_turn_rewards(torch.zeros(2), logp, logp, ONES, turns, coef=1.0)


def test_the_last_turn_is_one() -> None:
    new, ref = tensor([[0.0, -1.0]]), tensor([[0.0, -3.0]])
    got = kl_turn_rewards(tensor([1.0, 1.0]), new, ref, ONES, tensor([[0, 1]]), coef=0.5)
    assert got.tolist() == [1.0, 0.0]  # 1 - 0.5 * (-1 + 3)
