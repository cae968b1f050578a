"""What callers of a vector env may pass to `reset` and `step`, checked before anything moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from agent_envs.errors import InvalidOption

Options = dict[str, Any]


def seeds_of(seed: int | Sequence[int | None] | None, n: int) -> list[int | None]:
    """A seed for each of `n` sub-envs: ``seed + i``, or those listed.

    >>> seeds_of(7, 3), seeds_of([None, 5], 2)
    ([7, 8, 9], [None, 5])
    """
    if seed is None:
        return [None] * n
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + i for i in range(n)]
    seeds = list(seed)
    if len(seeds) != n or not all(s is None or isinstance(s, (int, np.integer)) for s in seeds):
        raise InvalidOption(f"seed is an int or a list of {n} ints or None, not {seed!r:.80}.")
    return [None if s is None else int(s) for s in seeds]


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
    if isinstance(task_ids, str) or not isinstance(task_ids, Iterable):
        raise InvalidOption(
            f"options['task_ids'] is a sequence of ids, not {task_ids!r:.80}. One id for all "
            "sub-envs is options['task_id']."
        )
    listed = list(task_ids)
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
    if isinstance(actions, (str, bytes)) or not isinstance(actions, Iterable):
        raise InvalidOption(
            f"step takes one action per sub-env, not {actions!r:.80}. A single command needs a "
            "list around it."
        )
    listed = list(actions)
    if len(listed) != n:
        raise InvalidOption(
            f"{len(listed)} actions for {n} sub-envs; give None for those that are to be skipped."
        )
    return listed
