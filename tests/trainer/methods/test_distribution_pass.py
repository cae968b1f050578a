"""Passes over the vocabulary, against logits that are computed one row at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.short_runs import mixed
from trainer.auxiliary.distill import distillation_loss
from trainer.methods.distillation import distributions
from trainer.methods.distillation.distributions import (
    Distributions,
    Pair,
    distribution_backward,
    distribution_values,
    pair_counts,
)
from trainer.methods.protocol import PassLimits
from trainer.models.tiny import TinyConfig, build_model
from trainer.objectives import Denominators
from trainer.rollouts.data import Segment, make_segment

WIDE = PassLimits(10**9, 0)
REPLIES = [(5, 6, 7), (8, 9), (10, 11, 12, 13), (5,)]


def _pairs(temperature: float = 1.0) -> list[Pair]:
    """Replies of 1 to 4 tokens; the teacher's prompts are longer than the student's."""
    pairs = []
    for i, reply in enumerate(REPLIES):
        own = tuple(range(20, 24 + i))
        told = (*own, *range(40, 50 - 2 * i))
        old = [-0.5 * (k + 1) for k in range(len(reply))]
        pairs.append(
            Pair(
                make_segment(own, reply, logprobs=old, temperature=temperature),
                make_segment(told, reply, temperature=temperature),
            )
        )
    return pairs


def _rows(model: Any, segment: Segment) -> Tensor:
    """(R, V) log-probs before each trained token, from the model's own logits."""
    logits = model(input_ids=torch.tensor([segment.ids]), use_cache=False).logits[0]
    before = [i - 1 for i, keep in enumerate(segment.loss_mask) if keep]
    rows: Tensor = (logits[before] / segment.temperature).log_softmax(-1)
    return rows


def _by_hand(model: Any, teacher: Any, pairs: list[Pair]) -> Tensor:
    """Mean over all tokens of KL(S || T)."""
    s = torch.cat([_rows(model, pair.student) for pair in pairs])
    t = torch.cat([_rows(teacher, pair.teacher) for pair in pairs]).detach()
    return (s.exp() * (s - t)).sum(-1).mean()


def _rkl(found: Distributions, counts: Denominators) -> Tensor:
    return distillation_loss(
        found.student_1_N_V, found.teacher_1_N_V, found.mask_1_N, denominators=counts
    )


def _gradient(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("tokens", [1, 30, 10**9])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_loss_and_gradient_are_those_of_the_whole_step(tokens: int, temperature: float) -> None:
    model, teacher, pairs = small.model(), small.model(seed=1), _pairs(temperature)
    expected = _by_hand(model, teacher, pairs)
    expected.backward()
    gradient = _gradient(model)
    model.zero_grad()
    total = distribution_backward(model, teacher, pairs, _rkl, 0.25, PassLimits(tokens, 0))
    assert total == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(_gradient(model), 0.25 * gradient, rtol=1e-4, atol=1e-6)
    assert all(p.grad is None for p in teacher.parameters())


def test_the_model_as_its_own_teacher_gets_the_students_gradient_alone() -> None:
    model, pairs = small.model(), _pairs()
    distribution_backward(model, small.twin(model), pairs, _rkl, 1.0, WIDE)
    gradient = _gradient(model)
    assert float(gradient.abs().max()) > 1e-3
    model.zero_grad()
    distribution_backward(model, model, pairs, _rkl, 1.0, WIDE)
    assert torch.equal(_gradient(model), gradient)


@pytest.mark.parametrize(("limit", "pieces"), [(1, 4), (2, 4), (3, 3), (6, 3), (7, 2), (10, 1)])
def test_few_logits_are_alive_at_a_time(
    monkeypatch: pytest.MonkeyPatch, limit: int, pieces: int
) -> None:
    """Rows in order of length have 1, 2, 4 and 3 tokens; a row is never cut."""
    model, teacher, pairs = small.model(), small.model(seed=1), _pairs()
    whole = distribution_backward(model, teacher, pairs, _rkl, 1.0, WIDE)
    gradient = _gradient(model)
    model.zero_grad()
    vocabulary = model.config.vocab_size
    monkeypatch.setattr(distributions, "MAX_LOGITS", limit * vocabulary)
    sizes: list[int] = []

    def counted(found: Distributions, counts: Denominators) -> Tensor:
        sizes.append(found.mask_1_N.numel())
        return _rkl(found, counts)

    cut = distribution_backward(model, teacher, pairs, counted, 1.0, WIDE)
    assert sum(sizes) == 10
    assert all(size <= max(limit, 4) for size in sizes)
    assert len(sizes) == pieces
    assert cut == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(_gradient(model), gradient, rtol=1e-4, atol=1e-6)


def test_a_padded_vocabulary_of_the_teacher_is_cut() -> None:
    m = small.small_config().model
    model = small.model()
    wide = build_model(
        model.config.vocab_size + 8,
        TinyConfig(m.hidden_size, m.intermediate_size, m.layers, m.heads, m.kv_heads, 1024, 0.3),
        seed=1,
    )
    pairs = _pairs()
    total = distribution_backward(model, wide, pairs, _rkl, 1.0, WIDE)
    size = model.config.vocab_size
    s = torch.cat([_rows(model, pair.student) for pair in pairs])
    t = torch.cat([_rows(wide, pair.teacher) for pair in pairs])[:, :size].log_softmax(-1)
    assert total == pytest.approx(float((s.exp() * (s - t)).sum(-1).mean().detach()), rel=1e-5)


@pytest.mark.parametrize("tokens", [1, 30, 10**9])
def test_values_come_back_to_their_rows(tokens: int) -> None:
    model, pairs = small.model(), _pairs()

    def told(found: Distributions) -> Tensor:
        return found.token_1_N + found.old_1_N

    rows = distribution_values(model, model, pairs, told, PassLimits(tokens, 0))
    assert [row.tolist() for row in rows] == [
        [token - 0.5 * (k + 1) for k, token in enumerate(reply)] for reply in REPLIES
    ]
    assert all(not row.requires_grad for row in rows)


def test_the_gap_is_that_of_the_sampled_tokens() -> None:
    model, teacher, pairs = small.model(), small.model(seed=1), _pairs()
    gaps: list[float] = []

    def noted(found: Distributions) -> Tensor:
        gaps.append(found.gap())
        return found.old_1_N

    distribution_values(model, teacher, pairs, noted, WIDE)
    place = torch.tensor([token for reply in REPLIES for token in reply])[:, None]
    s = torch.cat([_rows(model, pair.student) for pair in pairs]).gather(-1, place)
    t = torch.cat([_rows(teacher, pair.teacher) for pair in pairs]).gather(-1, place)
    assert sum(gaps) == pytest.approx(float((s - t).sum().detach()), rel=1e-4)


def test_counts_are_of_trained_tokens_and_rows() -> None:
    assert pair_counts(_pairs()) == Denominators(10, 4)
    assert pair_counts([]) == Denominators(0, 0)


def test_another_reply_is_refused() -> None:
    turn = mixed(small.small_config())[0]
    one = make_segment(turn.prompt_ids, turn.response_ids)
    Pair(one, one)
    with pytest.raises(ValueError, match=r"same tokens.*one reply behind both prompts"):
        Pair(one, make_segment(turn.prompt_ids, turn.response_ids[:-1]))
    with pytest.raises(ValueError, match="same tokens"):
        Pair(one, make_segment(turn.prompt_ids, (*turn.response_ids[:-1], 3)))
