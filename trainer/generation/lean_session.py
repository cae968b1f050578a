"""Keys and values of one batch of replies, for models that `trainer.models.lean` knows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from trainer.generation.sessions import Prefix
from trainer.models.lean import KeyValues, Lean, _heads, _rest, _rotate


class LeanSession:
    """Prefill and decode of B prompts. Every row keeps its tokens without a gap.

    Equal prompts are prefilled once, unless their beginnings are known.

    Args:
        lean: the model.
        prompts: token ids of each row's prompt.
        pad_id: fills the padding; has no effect.
        new_tokens: tokens that each row may get.
        prefixes: the known beginning of each prompt, shorter than it; None: of none.
    """

    def __init__(
        self,
        lean: Lean,
        prompts: Sequence[Sequence[int]],
        pad_id: int,
        new_tokens: Sequence[int],
        prefixes: Sequence[Prefix] | None = None,
    ) -> None:
        self.lean = lean
        unique: dict[tuple[int, ...], int] = {}
        self.place = [unique.setdefault(tuple(prompt), len(unique)) for prompt in prompts]
        self.prompts = list(unique) if prefixes is None else [tuple(p) for p in prompts]
        self.pad_id = pad_id
        self.limits = [len(p) + n for p, n in zip(prompts, new_tokens, strict=True)]
        self.prefixes = prefixes
        self.cache: KeyValues

    def prefill(self) -> Tensor:
        """Logits (B, V) of each row's first new token."""
        device = self.lean.head.weight.device
        known = [0] * len(self.prompts)
        if self.prefixes is not None:
            known = [len(prefix.ids) for prefix in self.prefixes]
        fresh = [prompt[n:] for prompt, n in zip(self.prompts, known, strict=True)]
        width = max(len(row) for row in fresh)
        ids = torch.tensor(
            [[*row, *[self.pad_id] * (width - len(row))] for row in fresh], device=device
        )
        lengths = torch.tensor([len(row) for row in fresh], device=device)
        if self.prefixes is not None:
            # Padding is written as well, behind what is real.
            capacity = max(*self.limits, *(n + width for n in known))
            cache = _laid_out(self.prefixes, capacity)
            logits = extend(self.lean, ids, lengths, cache)
            self.cache, self.prefixes = cache, None
            return logits
        logits, self.cache = self.lean.prefill(ids, lengths, max(width, *self.limits))
        if len(self.place) == len(self.prompts):
            return logits
        index = torch.tensor(self.place, device=device)
        self.cache.select(index)
        return logits[index]

    def step(self, tokens_B: Tensor) -> Tensor:
        """Logits (B, V) after one more token for each row."""
        # A finished row may wait for others to leave with it; what it gets is never read.
        room = self.cache.keys[0].shape[2]
        if int(self.cache.lengths_B.max()) >= room:
            self._resize(room + 16)
        return self.lean.step(tokens_B, self.cache)

    def select(self, keep: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self.cache.select(torch.tensor(keep, device=self.cache.lengths_B.device))
        self.limits = [self.limits[i] for i in keep]

    def join(self, other: LeanSession) -> None:
        """Append the rows of another session of the same model."""
        self.limits = self.limits + other.limits
        longest = max(int(s.cache.lengths_B.max()) for s in (self, other))
        capacity = max(longest, *self.limits)
        self._resize(capacity)
        other._resize(capacity)
        mine, new = self.cache, other.cache
        self.cache = KeyValues(
            [torch.cat(pair) for pair in zip(mine.keys, new.keys, strict=True)],
            [torch.cat(pair) for pair in zip(mine.values, new.values, strict=True)],
            torch.cat([mine.lengths_B, new.lengths_B]),
        )

    def kept(self, row: int, count: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Copies of keys and values of a row's first `count` tokens."""
        pairs = zip(self.cache.keys, self.cache.values, strict=True)
        return tuple((k[row, :, :count].clone(), v[row, :, :count].clone()) for k, v in pairs)

    def _resize(self, capacity: int) -> None:
        missing = capacity - self.cache.keys[0].shape[2]
        if missing:  # less than nothing cuts off slots that no row can reach
            self.cache.keys = [pad(k, (0, 0, 0, missing)) for k in self.cache.keys]
            self.cache.values = [pad(v, (0, 0, 0, missing)) for v in self.cache.values]


def _laid_out(prefixes: Sequence[Prefix], capacity: int) -> KeyValues:
    """Prefixes as the first slots of rows with room for `capacity` tokens."""
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for layer in range(len(prefixes[0].layers)):
        for rows, part in ((keys, 0), (values, 1)):
            first = prefixes[0].layers[layer][part]
            room = first.new_zeros(len(prefixes), first.shape[0], capacity, first.shape[2])
            for row, prefix in enumerate(prefixes):
                room[row, :, : len(prefix.ids)] = prefix.layers[layer][part]
            rows.append(room)
    device = keys[0].device
    return KeyValues(keys, values, torch.tensor([len(p.ids) for p in prefixes], device=device))


def extend(lean: Lean, ids_B_L: Tensor, fresh_B: Tensor, cache: KeyValues) -> Tensor:
    """Logits (B, V) after several more tokens for each row; `cache` grows by them.

    Args:
        ids_B_L: int64, padded on the right.
        fresh_B: int64, real tokens of each row of `ids_B_L`, at least 1.
        cache: with room for L more tokens in every row.
    """
    B, L = ids_B_L.shape
    device = ids_B_L.device
    hidden = lean.body.embed_tokens(ids_B_L)
    position_B_L = cache.lengths_B[:, None] + torch.arange(L, device=device)
    cos, sin = lean._rotation(hidden, position_B_L)
    width = int(position_B_L.max()) + 1
    mask = (torch.arange(width, device=device) <= position_B_L[:, :, None])[:, None]
    row, last = torch.arange(B, device=device), fresh_B - 1
    layers = lean._layers()
    for index, layer in enumerate(layers):
        x = layer.input_layernorm(hidden)
        k, v = (_heads(layer, name, x) for name in ("k_proj", "v_proj"))
        keys, values = cache.keys[index], cache.values[index]
        keys[row[:, None], :, position_B_L] = _rotate(k, cos, sin).transpose(1, 2)
        values[row[:, None], :, position_B_L] = v.transpose(1, 2)
        turn, seen_by = (cos, sin), mask
        if index == len(layers) - 1:
            # Only the last token of a row is asked for.
            x, hidden = x[row, last][:, None], hidden[row, last][:, None]
            turn = (cos[row, :, last][:, :, None], sin[row, :, last][:, :, None])
            seen_by = mask[row, :, last][:, :, None]
        q = _rotate(_heads(layer, "q_proj", x), *turn)
        seen = scaled_dot_product_attention(
            q, keys[:, :, :width], values[:, :, :width], attn_mask=seen_by, enable_gqa=True
        )
        hidden = _rest(layer, hidden, seen)
    cache.lengths_B = cache.lengths_B + fresh_B
    logits: Tensor = lean.head(lean.body.norm(hidden[:, 0]))
    return logits
