"""Attention over sequences that share their first tokens.

Everything but the attention is computed once for each of the N tokens of a
`trainer.models.prefix_tree.PrefixTree`. For the attention, keys and values are gathered along the
path of each piece, and pieces of like size are computed in one call. What fills up a call is taken
from the piece itself, so nothing that is not a number reaches another sequence.

Letters: N tokens that are run, M queries, B pieces of a call, Q queries and K keys of each, D size
of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trainer.models.prefix_tree import Ints, PrefixTree

__all__ = ["Attend", "TreeAttention", "TreeRow", "tree_row"]

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Queries (B, heads, Q, D), keys and values (B, heads, K, D), a mask or None for plainly causal
ones, to (B, Q, heads, D)."""

# Of one call: a mask has as many entries.
_MOST = 1 << 22


class _Costs(NamedTuple):
    """How attention is best cut into calls.

    call: pairs of a query and a key that cost as much as a call of their own.
    queries: at most so many of a piece in one call that is masked: what is masked is computed.
    again: a piece of more queries than this that is most of its path takes the queries before it
        along, whose results are dropped: then it is plainly causal, and needs no mask, and its
        keys are gathered once.
    """

    call: int
    queries: int
    again: int


# Masks and keys of a long piece would be several times of what else is kept of its tokens.
_ON_CPU = _Costs(1 << 13, 256, 1024)
# There a call is many kernels, pairs are cheap, and causal kernels are the fastest.
_ELSEWHERE = _Costs(1 << 20, _MOST, 0)


class _Part(NamedTuple):
    """Queries by their index among all M, how many tokens stand before each, and their path.

    The results of the first `dropped` queries belong to others."""

    queries: Ints
    places: Ints
    path: Ints
    dropped: int = 0

    @property
    def causal(self) -> bool:
        """Whether query i is the path's token i, so that no mask is needed."""
        return len(self.path) == len(self.queries) and int(self.places[0]) == 0

    @property
    def pairs(self) -> int:
        return len(self.queries) * len(self.path)


@dataclass(frozen=True, slots=True)
class _Call:
    """queries: (B * Q,) or a range of them, keys: (B * K,) or a range, mask: bool, (B or 1, 1, Q,
    K), None: causal."""

    rows: int
    queries: Tensor | slice
    keys: Tensor | slice
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class TreeAttention:
    """Which queries attend to which tokens.

    Attributes:
        calls: one attention each.
        order: place of each query in what the calls give, (M,); None: they are in order.
    """

    calls: tuple[_Call, ...]
    order: Tensor | None
    _added: dict[tuple[int, torch.dtype], Tensor] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, attend: Attend) -> Tensor:
        """(1, M, heads, D) of queries (1, heads, M, D), keys and values (1, heads, N, D)."""
        flat = [x[0].transpose(0, 1) for x in (query, key, value)]
        heads, size = query.shape[1], query.shape[3]
        seen = []
        for number, call in enumerate(self.calls):
            q = _take(flat[0], call.queries, call.rows)
            k, v = (_take(x, call.keys, call.rows) for x in flat[1:])
            mask = self._mask(number, query)
            seen.append(attend(q, k, v, mask).reshape(-1, heads, size))
        found = torch.cat(seen) if seen else query.new_zeros(0, heads, size)
        return (found if self.order is None else _select(found, self.order))[None]

    def _mask(self, number: int, query: Tensor) -> Tensor | None:
        """A call's mask. With gradient what is added to scores, the same one for all layers: torch
        makes that of bools in each layer anew, and keeps every one for the backward pass."""
        mask = self.calls[number].mask
        if mask is None or not torch.is_grad_enabled():
            return mask
        dtype, device = query.dtype, query.device.type
        if dtype == torch.float32 and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        added = self._added.get((number, dtype))
        if added is None:
            added = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            added.masked_fill_(~mask, -torch.inf)
            self._added[number, dtype] = added
        return added


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One row in which every common prefix is once.

    Attributes:
        whole: attention of all N tokens.
        wanted: attention of the tokens whose states are wanted, M of them.
        wanted_M: these tokens.
        slot: index among them of what stands before each trained token, in the order of the
            batch's mask.
    """

    whole: TreeAttention
    wanted: TreeAttention
    wanted_M: Tensor
    slot: Tensor


def tree_row(tree: PrefixTree, before: Ints, device: torch.device | str = "cpu") -> TreeRow:
    """Attention over a tree, of all its tokens and of those `before` the trained ones."""
    wanted, slot = np.unique(before, return_inverse=True)
    everything = np.arange(len(tree.ids))
    costs = _ON_CPU if torch.device(device).type == "cpu" else _ELSEWHERE
    # What stands before the wanted is not among them.
    apart = costs._replace(again=len(everything))
    return TreeRow(
        _attention(_parts(tree, everything, costs), len(everything), costs, device),
        _attention(_parts(tree, wanted, apart), len(wanted), costs, device),
        torch.from_numpy(wanted).to(device),
        torch.from_numpy(slot.reshape(-1)).to(device),
    )


def _parts(tree: PrefixTree, tokens: Ints, costs: _Costs) -> list[_Part]:
    """These tokens, sorted, piece by piece; a piece whose mask would be large in several parts."""
    parts, first = [], 0
    for row, start, stop in tree.pieces:
        low, high = np.searchsorted(tokens, [first, first + stop - start]).tolist()
        places = start + tokens[low:high] - first
        first += stop - start
        if low == high:
            continue
        path = tree.paths[row][: int(places[-1]) + 1]
        whole = _Part(np.arange(low, high), places, path)
        if high - low > costs.again and 2 * (high - low) > len(path):
            whole = _Part(path, np.arange(len(path)), path, int(places[0]))
        if whole.causal:
            parts.append(whole)
            continue
        size = max(1, min(costs.queries, _MOST // len(path)))
        for a in range(0, high - low, size):
            mine = places[a : a + size]
            parts.append(_Part(np.arange(low + a, low + a + len(mine)), mine,
                               path[: int(mine[-1]) + 1]))  # fmt: skip
    return parts


def _attention(
    parts: Sequence[_Part], queries: int, costs: _Costs, device: torch.device | str
) -> TreeAttention:
    """Parts of like size share a call where filling them up costs less than calls of their own."""
    order = sorted(
        range(len(parts)),
        key=lambda i: (parts[i].causal, -len(parts[i].path), -len(parts[i].queries), i),
    )
    together: list[list[_Part]] = []
    pairs = most = 0
    for index in order:
        part = parts[index]
        if together and together[-1][0].causal == part.causal:
            group = together[-1]
            wide, real = max(most, len(part.queries)), pairs + part.pairs
            filled = (len(group) + 1) * wide * len(group[0].path)
            if filled <= real + real // 8 + costs.call and (part.causal or filled <= _MOST):
                group.append(part)
                pairs, most = real, wide
                continue
        together.append([part])
        pairs, most = part.pairs, len(part.queries)
    calls, places, filled = [], np.empty(queries, dtype=np.int64), 0
    for group in together:
        wide = max(len(p.queries) for p in group)
        for number, part in enumerate(group):
            begin = filled + number * wide
            mine = np.arange(begin, begin + len(part.queries))
            places[part.queries[part.dropped :]] = mine[part.dropped :]
        filled += len(group) * wide
        calls.append(_call(group, wide, device))
    in_order = filled == queries and bool((places == np.arange(queries)).all())
    return TreeAttention(tuple(calls), None if in_order else torch.from_numpy(places).to(device))


def _call(group: Sequence[_Part], wide: int, device: torch.device | str) -> _Call:
    long = max(len(p.path) for p in group)
    # A part is filled up with tokens of its own: queries that are dropped, keys that are masked.
    queries = np.stack([_filled(p.queries, wide) for p in group])
    keys = np.stack([_filled(p.path, long) for p in group])
    mask: Tensor | None = None
    if not group[0].causal:
        places = np.stack([_filled(p.places, wide) for p in group])
        if (places == places[0]).all():
            places = places[:1]
        seen = np.arange(long) <= places[:, None, :, None]
        mask = torch.from_numpy(seen).to(device)
    return _Call(len(group), _index(queries, device), _index(keys, device), mask)


def _filled(values: Ints, size: int) -> Ints:
    return values if len(values) == size else np.pad(values, (0, size - len(values)), mode="edge")


def _index(values: Ints, device: torch.device | str) -> Tensor | slice:
    """A range where the values are one: it needs no copy."""
    flat = values.reshape(-1)
    if bool((np.diff(flat) == 1).all()):
        return slice(int(flat[0]), int(flat[-1]) + 1)
    return torch.from_numpy(flat).to(device)


def _take(x_M_heads_D: Tensor, index: Tensor | slice, rows: int) -> Tensor:
    """Tokens of x as (rows, heads, tokens a row, D)."""
    found = x_M_heads_D[index] if isinstance(index, slice) else _select(x_M_heads_D, index)
    return found.reshape(rows, -1, *found.shape[1:]).transpose(1, 2)


def _select(x_M_heads_D: Tensor, index: Tensor) -> Tensor:
    """Rows of x. In two axes, of which torch adds the gradient up fastest."""
    heads, size = x_M_heads_D.shape[1:]
    flat = x_M_heads_D.reshape(-1, heads * size).index_select(0, index)
    return flat.view(-1, heads, size)
