"""Keys and values of conversations between their turns, within a budget of tokens.

A conversation that only grows begins every prompt with the last prompt and reply, whose keys and
values are known already. What is dropped here is computed again, so the budget changes speed and
memory, and no reply.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Prefix", "PrefixStore"]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Token ids and, for each layer, their keys and values, each (heads, tokens, head size)."""

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]

    def first(self, count: int) -> Prefix:
        """The first `count` tokens; shares memory."""
        if count == len(self.ids):
            return self
        return Prefix(self.ids[:count], tuple((k[:, :count], v[:, :count]) for k, v in self.layers))


class PrefixStore:
    """The last prefix of each conversation; the least recently used go first.

    Args:
        max_tokens: tokens of all prefixes together, 0: keep none.
    """

    def __init__(self, max_tokens: int) -> None:
        if max_tokens < 0:
            raise ValueError(f"max_tokens is {max_tokens}; expected 0 or more")
        self.max_tokens = max_tokens
        self.tokens = 0
        self._kept: OrderedDict[str, Prefix] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, name: str, ids: Sequence[int]) -> Prefix | None:
        """What is known of the beginning of `ids`, by comparing ids; None: nothing.

        Leaves at least one token to compute: its logits are what is asked for.
        """
        kept = self._kept.get(name)
        if kept is None:
            return None
        self._kept.move_to_end(name)
        count = common_prefix(kept.ids, ids[: len(ids) - 1])
        return kept.first(count) if count else None

    def put(self, name: str, prefix: Prefix) -> None:
        """Keeps `prefix` in the place of the conversation's last one, if the budget allows."""
        old = self._kept.pop(name, None)
        if old is not None:
            self.tokens -= len(old.ids)
        if len(prefix.ids) > self.max_tokens:
            return
        self._kept[name] = prefix
        self.tokens += len(prefix.ids)
        while self.tokens > self.max_tokens:
            self.tokens -= len(self._kept.popitem(last=False)[1].ids)

    def clear(self) -> None:
        self._kept.clear()
        self.tokens = 0


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids both begin with."""
    most = min(len(left), len(right))
    if tuple(left[:most]) == tuple(right[:most]):
        return most
    return next(i for i in range(most) if left[i] != right[i])
