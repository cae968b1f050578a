"""Log-probs of given tokens under a model: the one routine every objective uses.

Logits exist only where a trained token is predicted, never as a full (B, L, V) tensor, and
are divided by the sampling temperature in float32: the sampler reports log-probs of that
distribution, so any other scale would make importance ratios differ from 1 at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.data import Segment
from trainer.models.lean import lean_of
from trainer.objectives.entropy import token_entropy

# Above this many logits the head runs in pieces that are recomputed in the backward pass.
_CHUNK_LOGITS = 1 << 26

_head_paths: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """B segments, right padded to L tokens; T = most trained tokens in one segment.

    Column j of a (B, T) tensor is the j-th *trained* token of the segment.

    Attributes:
        ids_B_L: int64, padding filled with `pad_id`; what fills it never matters, a causal
            model's real tokens do not see what comes after them.
        position_B_T: int64, index into L of each trained token; 0 where `mask_B_T` is false.
        labels_B_T: int64, the trained tokens.
        mask_B_T: bool, true on trained tokens.
        old_B_T: float32, behaviour log-probs, 0 elsewhere.
        turn_B_T: int64, turn index, -1 elsewhere.
        temperature_B: float32.
        lengths: real tokens of each segment.
    """

    ids_B_L: Tensor
    position_B_T: Tensor
    labels_B_T: Tensor
    mask_B_T: Tensor
    old_B_T: Tensor
    turn_B_T: Tensor
    temperature_B: Tensor
    lengths: tuple[int, ...]

    @property
    def trained(self) -> int:
        """Trained tokens in the batch."""
        return int(self.mask_B_T.sum())


class TokenLogprobs(NamedTuple):
    """float32 (B, T), 0 where the batch's mask is false. `entropy` in nats, if asked for."""

    logprobs: Tensor
    entropy: Tensor | None


def pad_rows(
    rows: Sequence[Sequence[float]],
    dtype: torch.dtype,
    *,
    fill: float = 0,
    width: int | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Ragged rows as (B, T), right padded; T is `width` or the longest row."""
    size = max((len(row) for row in rows), default=0) if width is None else width
    padded = [[*row, *([fill] * (size - len(row)))] for row in rows]
    return torch.tensor(padded, dtype=dtype, device=device).reshape(len(rows), size)


def collate(
    segments: Sequence[Segment], *, pad_id: int = 0, device: torch.device | str = "cpu"
) -> SegmentBatch:
    """Right-pad segments into one batch. Lengths come from the segments, never from ids.

    Raises:
        ValueError: no segment at all.
    """
    if not segments:
        raise ValueError("cannot collate an empty list of segments")
    positions = [[i for i, keep in enumerate(s.loss_mask) if keep] for s in segments]

    def picked(values: str) -> list[list[float]]:
        return [
            [getattr(segment, values)[i] for i in row]
            for segment, row in zip(segments, positions, strict=True)
        ]

    def rows(values: Sequence[Sequence[float]], dtype: torch.dtype, fill: float = 0) -> Tensor:
        return pad_rows(values, dtype, fill=fill, device=device)

    return SegmentBatch(
        ids_B_L=rows([s.ids for s in segments], torch.int64, pad_id),
        position_B_T=rows(positions, torch.int64),
        labels_B_T=rows(picked("ids"), torch.int64),
        mask_B_T=rows([[1] * len(row) for row in positions], torch.bool),
        old_B_T=rows(picked("logprobs"), torch.float32),
        turn_B_T=rows(picked("token_turn"), torch.int64, -1),
        temperature_B=torch.tensor([s.temperature for s in segments], device=device),
        lengths=tuple(len(s.ids) for s in segments),
    )


def micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Split row indices so that rows x longest row stays within `max_tokens`.

    Rows of like length go together, so little is padded. A row longer than the bound gets a
    batch of its own. Ties keep their order, so the split is deterministic.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; expected 1 or more")
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    batches: list[list[int]] = []
    for index in order:
        # Ascending order: the row that joins is the longest so far.
        if batches and (len(batches[-1]) + 1) * lengths[index] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def token_logprobs(
    model: nn.Module, batch: SegmentBatch, *, entropy: bool = False
) -> TokenLogprobs:
    """log pi(token | what stands before it) of every trained token, at the row's temperature.

    Works with any transformers causal language model. Gradients flow where they are enabled;
    the model's train or eval mode is the caller's.

    Args:
        model: called on (B, L) ids without an attention mask: padding is on the right.
        batch: from `collate`.
        entropy: also return the entropy of the tempered distribution at each token.

    Returns:
        `TokenLogprobs` of float32 (B, T).
    """
    mask = batch.mask_B_T
    labels = batch.labels_B_T[mask]
    temperature = batch.temperature_B[_rows(batch)]
    found = token_hidden(model, batch)
    if found is not None:
        hidden, head = found
        logprobs, entropies = _head_in_chunks(hidden, labels, temperature, head, entropy)
    else:
        logprobs, entropies = _score(_whole_logits(model, batch), labels, temperature, entropy)
    blank = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    return TokenLogprobs(
        blank.masked_scatter(mask, logprobs),
        blank.masked_scatter(mask, entropies) if entropy else None,
    )


def token_distributions(model: nn.Module, batch: SegmentBatch) -> Tensor:
    """log pi(. | what stands before it) at every trained token: float32 (N, V).

    N counts the trained tokens, row by row as `batch.mask_B_T` selects them. Of the whole
    vocabulary, so for few tokens at a time; `token_logprobs` never makes such a tensor.
    """
    found = token_hidden(model, batch)
    logits = _whole_logits(model, batch) if found is None else found[1](found[0])
    scaled = logits.float() / batch.temperature_B[_rows(batch)][:, None]
    return scaled.log_softmax(dim=-1)


def token_hidden(
    model: nn.Module, batch: SegmentBatch
) -> tuple[Tensor, Callable[[Tensor], Tensor]] | None:
    """Last hidden states before every trained token, (N, H), and the head that reads them.

    None where a model's logits are more than head(hidden).
    """
    mask = batch.mask_B_T
    lean = lean_of(model)
    if lean is not None:
        hidden = lean.hidden_at(batch.ids_B_L, (batch.position_B_T - 1).clamp(min=0))[mask]
        return hidden, lean.head
    body, head = body_and_head(model)
    if body is None or head is None:
        return None
    hidden = body(input_ids=batch.ids_B_L, use_cache=False).last_hidden_state
    return hidden[_rows(batch), batch.position_B_T[mask] - 1], head


def _rows(batch: SegmentBatch) -> Tensor:
    """Row of each trained token, (N,)."""
    mask = batch.mask_B_T
    return torch.arange(mask.shape[0], device=mask.device)[:, None].expand_as(mask)[mask]


def _whole_logits(model: nn.Module, batch: SegmentBatch) -> Tensor:
    """(N, V) logits from the model's own head."""
    before = batch.position_B_T[batch.mask_B_T] - 1
    columns, where = torch.unique(before, return_inverse=True)
    logits: Tensor = model(input_ids=batch.ids_B_L, use_cache=False, logits_to_keep=columns).logits[
        _rows(batch), where
    ]
    return logits


def _score(
    logits_N_V: Tensor, labels_N: Tensor, temperature_N: Tensor, entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (N,) in float32; entropies are empty unless asked for."""
    scaled = logits_N_V.float() / temperature_N[:, None]
    norm = torch.logsumexp(scaled, dim=-1)
    logprobs = scaled.gather(-1, labels_N[:, None]).squeeze(-1) - norm
    if not entropy:
        return logprobs, logprobs.new_zeros(0)
    return logprobs, token_entropy(scaled)


def _head_in_chunks(
    hidden_N_H: Tensor,
    labels_N: Tensor,
    temperature_N: Tensor,
    head: Callable[[Tensor], Tensor],
    entropy: bool,
) -> tuple[Tensor, Tensor]:
    """`_score` of head(hidden), in pieces when N x V would be large."""

    def score(hidden: Tensor, labels: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        return _score(head(hidden), labels, temperature, entropy)

    vocabulary = getattr(head, "out_features", 1)
    size = max(1, _CHUNK_LOGITS // int(vocabulary))
    if hidden_N_H.shape[0] <= size:
        return score(hidden_N_H, labels_N, temperature_N)
    pieces: list[tuple[Tensor, Tensor]] = [
        # Nothing here draws: the global random state need not be kept, and stays unread.
        checkpoint(score, *piece, use_reentrant=False, preserve_rng_state=False)
        for piece in zip(
            *(torch.split(x, size) for x in (hidden_N_H, labels_N, temperature_N)), strict=True
        )
    ]
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch off dropout and the like; every submodule gets its own mode back."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def body_and_head(model: nn.Module) -> tuple[Any, Any]:
    """The model as (body, head), or (None, None) where logits are more than head(hidden).

    Some architectures scale or cap their logits after the head. Instead of a list of names,
    a probe of four tokens compares both ways once for each model.
    """
    get_body = getattr(model, "get_decoder", None)
    get_head = getattr(model, "get_output_embeddings", None)
    if get_body is None or get_head is None:
        return None, None
    body, head = get_body(), get_head()
    if body is None or head is None or body is model:
        return None, None
    if model not in _head_paths:
        device = next(model.parameters()).device
        probe = torch.arange(4, device=device)[None] % int(getattr(head, "out_features", 4))
        with evaluation_mode(model), torch.no_grad():
            whole = model(input_ids=probe, use_cache=False).logits
            parts = head(body(input_ids=probe, use_cache=False).last_hidden_state)
        _head_paths[model] = bool(torch.allclose(whole, parts, rtol=1e-3, atol=1e-4))
    return (body, head) if _head_paths[model] else (None, None)
