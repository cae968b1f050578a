"""Tokens and log-probs from logits: the one place where temperature, nucleus and draws meet.

Axis letters: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainer.generation.base import GenerationRequest, NonFiniteLogitsError

__all__ = ["draw", "invert_cdf", "nucleus", "sampling_logprobs"]


def sampling_logprobs(logits_B_V: Tensor, temperature_B: Tensor, top_p_B: Tensor | None) -> Tensor:
    """Log of the distribution that is sampled from, (B, V) float64; -inf outside the nucleus.

    Args:
        logits_B_V: of any float type.
        temperature_B: float64, above 0.
        top_p_B: float64 in (0, 1]; None: all 1.
    """
    logprobs = torch.log_softmax(logits_B_V.double() / temperature_B[:, None], dim=-1)
    if top_p_B is None:
        return logprobs
    return nucleus(logprobs, top_p_B).log_softmax(dim=-1)


def nucleus(logprobs_B_V: Tensor, top_p_B: Tensor) -> Tensor:
    """The same log-probs, -inf but for the fewest most likely tokens that reach `top_p`.

    The most likely token always stays; of equally likely ones the lower ids do. A row with
    `top_p` 1 keeps every token.
    """
    ordered, token = torch.sort(logprobs_B_V, dim=-1, descending=True, stable=True)
    probs = ordered.exp()
    before = probs.cumsum(dim=-1) - probs
    cut = (before >= top_p_B[:, None]) & (top_p_B[:, None] < 1)
    cut[:, 0] = False
    outside = torch.zeros_like(cut).scatter(-1, token, cut)
    return logprobs_B_V.masked_fill(outside, -torch.inf)


def draw(
    logits_B_V: Tensor,
    requests: Sequence[GenerationRequest],
    over: Sequence[bool],
    name: Callable[[int], str] = "row {}".format,
) -> tuple[Tensor, list[float]]:
    """Next token of each row (B,) and its log-prob under the sampling distribution.

    A sampled row takes one uniform from its own stream, a greedy row and one that is `over`
    none; what is drawn for a row that is over means nothing.

    Args:
        name: what an error calls a row.

    Raises:
        NonFiniteLogitsError: logits of which one is NaN or infinite, or all are minus infinity,
            in a row that is not over.
    """
    device = logits_B_V.device
    # A maximum is enough: it is not finite where any logit is NaN or +inf, or where all are -inf.
    finite = logits_B_V.amax(dim=-1).isfinite()
    if not bool(finite.all()):
        wanted = finite | torch.tensor(over, dtype=torch.bool, device=device)
        if not bool(wanted.all()):
            raise NonFiniteLogitsError(name(int(wanted.int().argmin())))
        logits_B_V = logits_B_V.masked_fill(~finite[:, None], 0.0)

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    top_p = [request.top_p for request in requests]
    logprobs = sampling_logprobs(
        logits_B_V,
        column([request.temperature for request in requests]),
        column(top_p) if min(top_p) < 1 else None,
    )
    greedy = [request.greedy for request in requests]
    if all(greedy):
        tokens = logprobs.argmax(dim=-1)
    else:
        uniform = [
            0.0 if done or request.rng is None or request.greedy else request.rng.random()
            for request, done in zip(requests, over, strict=True)
        ]
        tokens = invert_cdf(logprobs.exp(), column(uniform))
        if any(greedy):
            mask = torch.tensor(greedy, device=device)
            tokens = torch.where(mask, logprobs.argmax(dim=-1), tokens)
    chosen: list[float] = logprobs.gather(-1, tokens[:, None]).squeeze(-1).tolist()
    return tokens, chosen


def invert_cdf(probs_B_V: Tensor, uniform_B: Tensor) -> Tensor:
    """First token whose cumulative probability exceeds u, (B,) int64.

    Args:
        probs_B_V: float64, non-negative; need not sum to exactly 1.
        uniform_B: float64 in [0, 1).

    Never returns a token of probability 0, also where rounding pushes u times the total up to
    the total.
    """
    cumulative = probs_B_V.cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    target = uniform_B[:, None] * total
    index = torch.searchsorted(cumulative, target, right=True)
    last = torch.searchsorted(cumulative, total, right=False)
    return torch.minimum(index, last).squeeze(-1)
