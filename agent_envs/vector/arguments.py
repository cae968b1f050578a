"""What callers of a vector env may pass to `reset` and `step`, checked before anything moves."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from agent_envs.errors import InvalidOption

Options = dict[str, Any]


def whole(value: Any) -> int | None:
    """`value` as an int if it is a whole number of any kind, NumPy's included, else None."""
    try:
        return None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        return None


def _listed(values: Any) -> list[Any] | None:
    """One entry for each sub-env, in order; None for what has no order, or is a single text."""
    if isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        return None
    return list(values)


def seeds_of(seed: int | Sequence[int | None] | None, n: int) -> list[int | None]:
    """A seed for each of `n` sub-envs: ``seed + i``, or those listed.

    >>> seeds_of(7, 3), seeds_of([None, 5], 2)
    ([7, 8, 9], [None, 5])
    """
    if seed is None:
        return [None] * n
    first = whole(seed)
    listed = _listed(seed) if first is None else [first + i for i in range(n)]
    seeds = [None if s is None else _seed(s) for s in listed or ()]
    if len(seeds) != n or any(s is not None and s < 0 for s in seeds):
        raise InvalidOption(
            f"seed is an int or a list of {n} ints or None, none below 0, not {seed!r:.80}."
        )
    return seeds


def _seed(value: Any) -> int:
    number = whole(value)
    return -1 if number is None else number


def reset_options(options: Mapping[str, Any] | None, n: int) -> tuple[list[int], list[Options]]:
    """Which of `n` sub-envs to reset, and the options of each. `options` stays as it is.

    >>> reset_options({"reset_mask": [False, True], "task_ids": [None, "a"]}, 2)
    ([1], [{}, {'task_id': 'a'}])
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidOption(f"reset options are a mapping, not {options!r:.80}.")
    common = dict(options or {})
    chosen = _chosen(common.pop("reset_mask", None), n)
    task_ids = common.pop("task_ids", None)
    if task_ids is None:
        return chosen, [dict(common) for _ in range(n)]
    if "task_id" in common:
        raise InvalidOption("Give 'task_id' for all sub-envs or 'task_ids', not both.")
    listed = _listed(task_ids)
    if listed is None:
        raise InvalidOption(
            f"options['task_ids'] is a sequence of ids, not {task_ids!r:.80}. One id for all "
            "sub-envs is options['task_id']."
        )
    if len(listed) != n:
        raise InvalidOption(
            f"options['task_ids'] has {len(listed)} entries for {n} sub-envs; those outside of "
            "reset_mask may be None."
        )
    return chosen, [dict(common) if i is None else {**common, "task_id": i} for i in listed]


def _chosen(reset_mask: Any, n: int) -> list[int]:
    if reset_mask is None:
        return list(range(n))
    mask = np.asarray(reset_mask)
    if mask.dtype != np.bool_ or mask.shape != (n,) or not mask.any():
        raise InvalidOption(
            f"options['reset_mask'] must be a bool array of shape ({n},) with at least one True, "
            f"not {reset_mask!r:.120}."
        )
    chosen: list[int] = np.flatnonzero(mask).tolist()
    return chosen


def actions_of(actions: Iterable[Any], n: int) -> list[Any]:
    """One action for each of `n` sub-envs."""
    listed = _listed(actions)
    if listed is None:
        raise InvalidOption(
            f"step takes a sequence of one action per sub-env, not {actions!r:.80}. A single "
            "command needs a list around it."
        )
    if len(listed) != n:
        raise InvalidOption(
            f"{len(listed)} actions for {n} sub-envs; give None for those that are to be skipped."
        )
    return listed
