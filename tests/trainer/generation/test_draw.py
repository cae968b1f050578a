"""Temperature, nucleus and draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.generation import models
from trainer.generation.base import GenerationRequest, NonFiniteLogitsError
from trainer.generation.draw import draw, nucleus, sampling_logprobs
from trainer.generation.hf import HFSampler
from trainer.rng import stream


def _kept(probs: list[float], top_p: float) -> list[int]:
    row = torch.tensor([probs], dtype=torch.float64).log()
    cut = nucleus(row, torch.tensor([top_p], dtype=torch.float64))
    return [i for i, value in enumerate(cut[0].tolist()) if value > -np.inf]


def test_the_nucleus_by_hand() -> None:
    probs = [0.1, 0.5, 0.15, 0.25]
    assert _kept(probs, 0.4) == [1]
    assert _kept(probs, 0.6) == [1, 3]
    assert _kept(probs, 0.8) == [1, 2, 3]
    assert _kept(probs, 1.0) == [0, 1, 2, 3]
    assert _kept(probs, 1e-12) == [1], "the most likely token always stays"
    assert _kept([0.25] * 4, 0.5) == [0, 1], "of equals the lower ids"


def test_log_probs_are_those_of_the_tempered_and_cut_distribution() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0]])
    found = sampling_logprobs(
        logits, torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.9], dtype=torch.float64)
    )
    probs = np.exp(2 * logits.numpy()[0])
    probs /= probs.sum()
    expected = probs[[1, 2]] / probs[[1, 2]].sum()
    np.testing.assert_allclose(found[0, [1, 2]].exp(), expected, rtol=1e-6)
    assert found[0, [0, 3]].exp().sum() == 0


@pytest.mark.parametrize("top_p", [0.3, 0.8])
def test_a_nucleus_row_stays_inside_it_beside_rows_without(top_p: float) -> None:
    model: Any = models.lean()
    prompt = [7, 1, 3]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[:, -1]
    one = torch.ones(1, dtype=torch.float64)
    expected = sampling_logprobs(logits, one, one * top_p)[0]
    requests = [
        GenerationRequest(prompt, stream(0, rollout=i), 1, top_p=top_p if i % 2 else 1.0)
        for i in range(400)
    ]
    replies = HFSampler(model, [models.END]).generate(requests)
    whole = sampling_logprobs(logits, one, None)[0]
    seen = set()
    for i, reply in enumerate(replies):
        table = expected if i % 2 else whole
        assert reply.logprobs[0] == pytest.approx(float(table[reply.ids[0]]), abs=1e-4)
        if i % 2:
            seen.add(reply.ids[0])
    assert seen <= {i for i, value in enumerate(expected.tolist()) if value > -np.inf}
    if top_p > 0.5:
        assert len(seen) > 1


@pytest.mark.parametrize("top_p", [0.0, 1.5, -1.0])
def test_an_impossible_nucleus_is_refused(top_p: float) -> None:
    request = GenerationRequest([1], stream(0), top_p=top_p)
    with pytest.raises(ValueError, match="top_p is"):
        HFSampler(models.lean(), [1]).generate([request])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_row_whose_logits_are_not_finite_is_named(bad: float) -> None:
    logits = torch.zeros(3, models.VOCAB)
    logits[1] = bad
    rows = models.requests([[1], [2], [3]])
    with pytest.raises(NonFiniteLogitsError, match="not finite at reply b:"):
        draw(logits, rows, [False] * 3, lambda row: f"reply {'abc'[row]}")
    logits[1] = 0
    logits[1, 3:] = -torch.inf  # a token that cannot come is no error
    assert int(draw(logits, rows, [False] * 3)[0][1]) < 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_over_needs_no_logits(bad: float) -> None:
    logits = torch.zeros(3, models.VOCAB)
    logits[1] = bad
    found = [
        draw(some, models.requests([[1], [2], [3]]), [False, True, False])
        for some in (logits, torch.zeros(3, models.VOCAB))
    ]
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    logits[2] = bad
    with pytest.raises(NonFiniteLogitsError, match="at c:"):
        draw(logits, models.requests([[1], [2], [3]]), [False, True, False], "abc".__getitem__)


@pytest.mark.parametrize("kind", sorted(models.KINDS))
@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_every_session_says_which_request_has_no_logits(kind: str, weight: float) -> None:
    model = models.KINDS[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(weight)
    sampler = HFSampler(model, [models.END])
    sampler.submit(7, GenerationRequest([1, 2], stream(0), 4, session="talk"))
    with pytest.raises(NonFiniteLogitsError, match=r"request 7 \(talk\), with a prompt of 2"):
        sampler.collect()
