"""The infos of several envs as one dict of arrays, in Gymnasium's vector format.

Every key has an array with one entry per env, and a mask ``_key`` that says which envs gave this
key now. Unlike Gymnasium's own, the type of an array comes from all of its values: a score of 0
in the first env does not round the others to integers, and tuples stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Infos = dict[str, Any]

_EXACT = 1 << 53
"""Up to here a float holds every int."""


def gather_infos(infos: Sequence[Mapping[str, Any] | None], fresh: NDArray[np.bool_]) -> Infos:
    """One dict of arrays for `infos`, one entry per env.

    Where `fresh` is False the mask is False and the array keeps what the env said last. Keys that
    no fresh env has are left out. Values that are dicts become such dicts themselves.

    >>> gathered = gather_infos([{"score": 0}, {"score": 0.5}], np.array([True, False]))
    >>> gathered["score"].tolist(), gathered["_score"].tolist()
    ([0.0, 0.5], [True, False])
    """
    gathered: Infos = {}
    n = len(infos)
    keys = {key: None for info, new in zip(infos, fresh, strict=True) if new for key in info or ()}
    everywhere = list(range(n))
    for key in keys:
        try:
            places, values = everywhere, [info[key] for info in infos]  # type: ignore[index]
        except (KeyError, TypeError):  # rare: an info is missing, or has not this key
            places = [i for i, info in enumerate(infos) if info is not None and key in info]
            values = [infos[i][key] for i in places]  # type: ignore[index]
        mask = fresh.copy()
        if len(places) < n:
            mask[list(set(range(n)) - set(places))] = False
        kinds = set(map(type, values))
        if key == "final_obs":
            kinds = {object}  # kept whole, as Gymnasium does
        if kinds == {dict}:
            parts: list[Mapping[str, Any] | None] = [None] * n
            for place, value in zip(places, values, strict=True):
                parts[place] = value
            gathered[key] = gather_infos(parts, mask)
        elif len(places) == n:
            gathered[key] = _full(values, kinds)
        else:
            gathered[key] = _sparse(_full(values, kinds), places, n)
        gathered[f"_{key}"] = mask
    return gathered


def _full(values: list[Any], kinds: set[type]) -> NDArray[Any]:
    """`values` as an array with one entry each, of the type that holds all of them exactly."""
    n = len(values)
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    if kind is bool:
        return np.fromiter(values, np.bool_, n)
    if kind is float or (
        kinds == {int, float} and all(type(v) is float or -_EXACT <= v <= _EXACT for v in values)
    ):
        return np.fromiter(values, np.float64, n)
    if kind is int and all(-(1 << 63) <= value < 1 << 63 for value in values):
        return np.fromiter(values, np.int64, n)
    if kind is np.ndarray and len({(value.shape, value.dtype) for value in values}) == 1:
        return np.stack(values)
    if kind is not None and issubclass(kind, np.number):
        return np.array(values, dtype=kind)
    return np.fromiter(values, np.object_, n)


def _sparse(array: NDArray[Any], places: list[int], n: int) -> NDArray[Any]:
    """The entries of `array` at `places` in an array of `n`; the others are 0, False or None."""
    if array.dtype == np.object_:
        spread = np.full((n, *array.shape[1:]), None, dtype=np.object_)
    else:
        spread = np.zeros((n, *array.shape[1:]), dtype=array.dtype)
    spread[places] = array
    return spread
