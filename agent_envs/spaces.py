"""`AnyText`: the space of observations and commands.

A plain `gymnasium.spaces.Text` checks every character against a charset, which costs hundreds of
microseconds on a long page and rejects texts with an unforeseen character. `AnyText` only looks
at the type and the length.

Gymnasium's vector envs choose their batching functions by the type of the space. The inherited
ones for `Text` map unknown characters to filler and read shared memory once, before anything was
written, so `AsyncVectorEnv` with its default arguments would return filler. The functions
registered here send the exact text.
"""

from __future__ import annotations

import copy
import multiprocessing
import string
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, overload

import numpy as np
from gymnasium.spaces import Box, Text
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector.utils import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from numpy.typing import NDArray

from agent_envs.errors import ObservationTooLong

_PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " "
_SAMPLE_LENGTH = 64  # longer samples would only cost time
_NO_CHARACTER = 0x110000  # one past the last code point
_HEADER = 8  # bytes that hold the length of a text in shared memory


class AnyText(Text):
    """Every `str` of at most `max_length` characters, the empty one included.

    Args:
        max_length: largest number of characters (code points), at least 0.
        seed: seed of the generator behind `sample`.

    >>> space = AnyText(20)
    >>> "caf\\u00e9\\t\\u2122" in space, "" in space, b"bytes" in space, "x" * 21 in space
    (True, True, False, False)
    """

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        # Not Text's constructor: the tables of its charset take 18 kB a space.
        for name, value in _tables(max_length).items():
            setattr(self, name, value)
        if isinstance(seed, np.random.Generator):
            self._np_random = seed
        elif seed is not None:
            self.seed(seed)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string of allowed length. Constant time."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short printable string; `mask` and `probability` as in `gymnasium.spaces.Text`."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(min(self.max_length, _SAMPLE_LENGTH) + 1))
        picks = self.np_random.integers(len(_PRINTABLE), size=length)
        return "".join(_PRINTABLE[i] for i in picks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]  # as every Gymnasium space

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"

    def __deepcopy__(self, memo: dict[int, Any]) -> AnyText:
        # The tables of the charset never change; only the generator behind `sample` does.
        new = AnyText.__new__(type(self))
        for name, value in vars(self).items():
            setattr(new, name, value)
        if self._np_random is not None:
            new._np_random = copy.deepcopy(self._np_random, memo)
        return new


@lru_cache(maxsize=64)
def _tables(max_length: int) -> dict[str, Any]:
    """What Gymnasium makes of the charset, the same for all spaces; nothing changes it."""
    return vars(Text(max_length, min_length=0, charset=_PRINTABLE))


@flatten_space.register(AnyText)
def _flatten_space(space: AnyText) -> Box:
    return Box(low=0, high=_NO_CHARACTER, shape=(space.max_length,), dtype=np.int32)


@flatten.register(AnyText)
def _flatten(space: AnyText, x: str) -> NDArray[np.int32]:  # type: ignore[misc]
    codes = np.full(space.max_length, _NO_CHARACTER, dtype=np.int32)
    codes[: len(x)] = [ord(c) for c in x]
    return codes


@unflatten.register(AnyText)
def _unflatten(space: AnyText, x: NDArray[np.int32]) -> str:  # type: ignore[misc]
    return "".join(chr(c) for c in x if c != _NO_CHARACTER)


class SharedTexts(Sequence[str]):
    """The current texts of all sub-envs, read from shared memory whenever one is asked for.

    `AsyncVectorEnv` keeps this object and hands out deep copies (``copy=True``, its default): a
    deep copy is a plain tuple of the texts at that moment. With ``copy=False`` the caller gets
    this live view.
    """

    def __init__(self, space: AnyText, shared: Any, n: int) -> None:
        self._stride = _stride(space)
        self._bytes = np.frombuffer(shared.get_obj(), dtype=np.uint8)
        self._n = n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._n)))
        start = range(self._n)[index] * self._stride
        size = int.from_bytes(self._bytes[start : start + _HEADER].tobytes(), "little")
        start += _HEADER
        return self._bytes[start : start + size].tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(self._n))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, SharedTexts)) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SharedTexts({tuple(self)!r})"

    def __deepcopy__(self, memo: dict[int, object]) -> tuple[str, ...]:
        return tuple(self)


def _stride(space: AnyText) -> int:
    return _HEADER + 4 * space.max_length  # UTF-8 takes at most four bytes a character


@create_shared_memory.register(AnyText)
def _create_shared_memory(space: AnyText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("B", n * _stride(space))


@read_from_shared_memory.register(AnyText)
def _read_from_shared_memory(space: AnyText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(space, shared_memory, n)


@write_to_shared_memory.register(AnyText)
def _write_to_shared_memory(space: AnyText, index: int, values: str, shared_memory: Any) -> None:
    if not space.contains(values):
        found = f"{len(values)} characters" if isinstance(values, str) else repr(type(values))
        raise ObservationTooLong(
            f"An observation of {found} does not fit {space!r} and cannot go through shared "
            "memory. Use AsyncVectorEnv(..., shared_memory=False) or a larger space."
        )
    data = values.encode("utf-8", "surrogatepass")
    start = index * _stride(space)
    memory = np.frombuffer(shared_memory.get_obj(), dtype=np.uint8)
    head = len(data).to_bytes(_HEADER, "little")
    memory[start : start + _HEADER + len(data)] = np.frombuffer(head + data, dtype=np.uint8)
