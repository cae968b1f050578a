"""The smallest vocabulary."""

from __future__ import annotations

import pytest
import torch

from trainer.auxiliary.divergence import divergence


@pytest.mark.parametrize("kind", ["fkl", "rkl", "gjs"])
def test_over_one_token_models_agree(kind: str) -> None:
    student, teacher = torch.tensor([[3.0]]), torch.tensor([[-2.0]])
    assert divergence(student, teacher, kind=kind).tolist() == [0.0]
    with pytest.raises(ValueError, match="shape"):
        divergence(torch.zeros(1, 0), torch.zeros(1, 0), kind=kind)
