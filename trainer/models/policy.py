"""Log-probs of given tokens under a model: the one routine every objective uses.

Logits exist only where a trained token is predicted, never as a full (B, L, V) tensor, and
are divided by the sampling temperature in float32: the sampler reports log-probs of that
distribution, so any other scale would make importance ratios differ from 1 at the start.

A segment whose ids begin another one's has no row of its own: it is read from the longer one's
(`trainer.models.packing.chains`). Rows are padded, or packed without padding
(`trainer.models.packed_attention`), or all beginnings are run once (`trainer.models.prefix_tree`);
every tensor that leaves this module is (B, T) all the same.

Axis letters: B segments, R rows that are run, L tokens of a row, T trained tokens of a segment, N
trained tokens in all, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from trainer.errors import ConfigError
from trainer.models.lean import lean_of
from trainer.models.packed_attention import pack_arguments, packed_row, short_way
from trainer.models.packing import chains
from trainer.models.packing import micro_batches as micro_batches
from trainer.models.plain_head import has_plain_head
from trainer.models.prefix_tree import PrefixTree, prefix_tree
from trainer.models.tree_attention import TreeRow, tree_row
from trainer.objectives.entropy import token_entropy
from trainer.rollouts.data import Segment

# Above this many logits the head runs in pieces that are recomputed in the backward pass.
_CHUNK_LOGITS = 1 << 26

_head_paths: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """B segments, read from R rows of L tokens; T = most trained tokens in one segment.

    Column j of a (B, T) tensor is the j-th *trained* token of the segment.

    Attributes:
        ids_R_L: int64, padded on the right with `pad_id`; what fills it never matters, a causal
            model's real tokens do not see what comes after them. R = 1 where it is packed.
        row_B: int64, the row that holds each segment's tokens.
        position_B_T: int64, index into L of each trained token; 0 where `mask_B_T` is false.
        labels_B_T: int64, the trained tokens.
        mask_B_T: bool, true on trained tokens.
        old_B_T: float32, behaviour log-probs, 0 elsewhere.
        turn_B_T: int64, turn index, -1 elsewhere.
        temperature_B: float32.
        lengths: real tokens of each segment.
        run_lengths: real tokens of each sequence that is run: rows, or sequences in the packed row.
        place_1_L: int64, position ids of the packed row; None where rows are padded.
        before_B_T: int64, index into L of what stands before each trained token.
        shared_lengths: tokens of each sequence that an earlier one runs for it.
        tree: attention of a row in which common prefixes are once; None: there are none.
    """

    ids_R_L: Tensor
    row_B: Tensor
    position_B_T: Tensor
    labels_B_T: Tensor
    mask_B_T: Tensor
    old_B_T: Tensor
    turn_B_T: Tensor
    temperature_B: Tensor
    lengths: tuple[int, ...]
    run_lengths: tuple[int, ...]
    before_B_T: Tensor
    shared_lengths: tuple[int, ...]
    place_1_L: Tensor | None = None
    tree: TreeRow | None = None

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
    segments: Sequence[Segment],
    *,
    pad_id: int = 0,
    device: torch.device | str = "cpu",
    packed: bool = False,
    shared: bool = False,
) -> SegmentBatch:
    """One batch of segments. Lengths come from the segments, never from ids.

    Args:
        packed: all in one row without padding; for models that `packed_attention.packs`.
        shared: packed, and what segments have in common at their beginning is there once; for
            what `packed_attention.use_sharing` allows.

    Raises:
        ValueError: no segment at all.
    """
    if not segments:
        raise ValueError("cannot collate an empty list of segments")
    ids = [s.ids for s in segments]
    masks = [s.loss_mask for s in segments]
    row_of = [0] * len(ids)
    place: Tensor | None = None
    tree: PrefixTree | None = None
    if shared:
        tree = prefix_tree(ids)
        run = tree.run_lengths
        paths = {i: p.tolist() for g, p in zip(tree.groups, tree.paths, strict=True) for i in g}
        row, place = (torch.from_numpy(x)[None].to(device) for x in (tree.ids, tree.places))
    else:
        groups = chains(ids)
        longest = [ids[group[-1]] for group in groups]
        run = tuple(map(len, longest))
        starts = [0] * len(run)
        if packed:
            row, place, starts = packed_row(longest, device)
        else:
            row = pad_rows(longest, torch.int64, fill=pad_id, device=device)
            row_of = [r for _, r in sorted((i, r) for r, g in enumerate(groups) for i in g)]
        paths = {i: range(s, s + n) for s, n, g in zip(starts, run, groups, strict=True) for i in g}

    def rows(values: Sequence[Sequence[float]], dtype: torch.dtype, fill: float = 0) -> Tensor:
        """(B, T) of the values at trained tokens."""
        chosen = [list(compress(row, mask)) for row, mask in zip(values, masks, strict=True)]
        return pad_rows(chosen, dtype, fill=fill, device=device)

    # The first token is never trained (see `Segment`), so it needs none before it.
    before = [list(compress(paths[i], mask[1:])) for i, mask in enumerate(masks)]
    flat = np.array(list(chain.from_iterable(before)), dtype=np.int64)
    return SegmentBatch(
        ids_R_L=row,
        row_B=torch.tensor(row_of, device=device),
        position_B_T=rows([paths[i][: len(s)] for i, s in enumerate(ids)], torch.int64),
        labels_B_T=rows(ids, torch.int64),
        mask_B_T=rows(masks, torch.bool),
        old_B_T=rows([s.logprobs for s in segments], torch.float32),
        turn_B_T=rows([s.token_turn for s in segments], torch.int64, -1),
        temperature_B=torch.tensor([s.temperature for s in segments], device=device),
        lengths=tuple(map(len, ids)),
        run_lengths=run,
        before_B_T=pad_rows(before, torch.int64, device=device),
        shared_lengths=(0,) * len(run) if tree is None else tuple(tree.shared),
        place_1_L=place,
        tree=None if tree is None else tree_row(tree, flat, device),
    )


def token_logprobs(
    model: nn.Module, batch: SegmentBatch, *, entropy: bool = False
) -> TokenLogprobs:
    """log pi(token | what stands before it) of every trained token, at the row's temperature.

    Works with any transformers causal language model. Gradients flow where they are enabled;
    the model's train or eval mode is the caller's.

    Args:
        model: called on (R, L) ids without an attention mask: padding is on the right.
        batch: from `collate`.
        entropy: also return the entropy of the tempered distribution at each token.
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
    row_N, before_N = _places(batch)
    lean = lean_of(model) if batch.place_1_L is None else short_way(model) if batch.tree else None
    if lean is not None and batch.tree is not None and batch.place_1_L is not None:
        hidden = lean.hidden_in_tree(batch.ids_R_L, batch.place_1_L, batch.tree)
        return hidden.index_select(0, batch.tree.slot), lean.head
    if lean is not None:
        position_R_P, slot_N = _by_row(row_N, before_N, len(batch.ids_R_L))
        return lean.hidden_at(batch.ids_R_L, position_R_P)[row_N, slot_N], lean.head
    body, head = body_and_head(model)
    if body is None or head is None:
        return None
    with _pass(model, batch) as arguments:
        hidden = body(input_ids=batch.ids_R_L, use_cache=False, **arguments).last_hidden_state
    return hidden[row_N, before_N], head


def _places(batch: SegmentBatch) -> tuple[Tensor, Tensor]:
    """Row, and index into L, of what stands before each trained token: (N,) and (N,)."""
    return batch.row_B[_rows(batch)], batch.before_B_T[batch.mask_B_T]


def _by_row(row_N: Tensor, place_N: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The places of each row side by side, (R, P) filled with 0, and each one's column, (N,)."""
    counts = torch.bincount(row_N, minlength=rows)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    slot = torch.empty_like(row_N)
    slot[row_N.argsort(stable=True)] = torch.arange(len(row_N), device=row_N.device) - first
    place_R_P = place_N.new_zeros(rows, int(counts.max()))
    place_R_P[row_N, slot] = place_N
    return place_R_P, slot


@contextmanager
def _pass(model: nn.Module, batch: SegmentBatch) -> Iterator[dict[str, Any]]:
    """Arguments of a forward pass besides the ids; layers that are to be recomputed will be."""
    packed: AbstractContextManager[dict[str, Any]] = nullcontext({})
    if batch.place_1_L is not None:
        parts = batch.run_lengths if batch.tree is None else batch.tree
        packed = pack_arguments(model, batch.place_1_L, parts)
    with packed as arguments, _recomputing(model):
        yield arguments


def enable_gradient_checkpointing(model: nn.Module) -> None:
    """Activations of each layer are recomputed in the backward pass instead of kept.

    By the model's own method, without keeping the random state: policies train without dropout,
    so nothing draws.

    Raises:
        ConfigError: the model has no such method.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"optim.gradient_checkpointing: {type(model).__name__} cannot recompute its layers. "
            "Leave it out and lower optim.micro_batch_tokens."
        )
    how = {"use_reentrant": False, "preserve_rng_state": False}
    enable: Any = getattr(model, "activation_checkpointing_enable", None)
    if enable is not None:  # transformers renamed it within the 5.x series
        enable(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)  # type: ignore[operator]


@contextmanager
def _recomputing(model: nn.Module) -> Iterator[None]:
    """Layers with checkpointing act on it in train mode only, and policies train in eval mode.

    The flag is set on these layers alone, not on what is in them: no dropout comes to life.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    chosen = [m for m in layers if m.gradient_checkpointing and not m.training]
    for module in chosen:
        module.training = True
    try:
        yield
    finally:
        for module in chosen:
            module.training = False


def _rows(batch: SegmentBatch) -> Tensor:
    """Segment of each trained token, (N,)."""
    mask = batch.mask_B_T
    return torch.arange(mask.shape[0], device=mask.device)[:, None].expand_as(mask)[mask]


def _whole_logits(model: nn.Module, batch: SegmentBatch) -> Tensor:
    """(N, V) logits from the model's own head."""
    row_N, before_N = _places(batch)
    columns, where = torch.unique(before_N, return_inverse=True)
    with _pass(model, batch) as arguments:
        logits: Tensor = model(
            input_ids=batch.ids_R_L, use_cache=False, logits_to_keep=columns, **arguments
        ).logits
    return logits[row_N, where]


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
    each model is tried once, see `trainer.models.plain_head`.
    """
    get_body = getattr(model, "get_decoder", None)
    get_head = getattr(model, "get_output_embeddings", None)
    if get_body is None or get_head is None:
        return None, None
    body, head = get_body(), get_head()
    if body is None or head is None or body is model:
        return None, None
    if model not in _head_paths:
        with evaluation_mode(model):
            _head_paths[model] = has_plain_head(model, body, head)
    return (body, head) if _head_paths[model] else (None, None)
