"""Whether an oracle bank and a run are of one world: environment, data, and what prompts show."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from oracles.bank import Bank, BankError, header_of
from oracles.branches import EnvRecipe
from trainer.branches.records import GrownRoot
from trainer.config import Config, SeroConfig
from trainer.worlds.environments import TaskSet, environment_of
from trainer.worlds.named import maker_of
from trainer.worlds.tasks import make_env

__all__ = ["check_fit", "check_open"]

_APART = frozenset(("data", "split", "max_steps", "task_types", "task_ids", "render_mode"))
"""Which tasks and how long: the data are compared by their hash, and branches carry their own."""


def check_fit(bank: Bank, config: Config, task_set: TaskSet, *, evaluated: bool) -> None:
    """Compares what the bank's header says with the run's environment.

    Args:
        evaluated: whether the splits of `config.eval` are played.

    Raises:
        BankError: another environment, other data, or other options of what is shown; names both.
            Or the branches are of a split that is evaluated.
    """
    header, env_id = bank.header, config.env.id
    if header.env_id != env_id:
        _refuse(f"is of {header.env_id}, and the run was trained on {env_id}")
    env = make_env(config.env, task_set, config.env.split)
    try:
        here = header_of(env, EnvRecipe(env_id, {}), oracle="", policy="", seed=0)
    finally:
        env.close()
    found = (here.data_revision, here.manifest_hash)
    if found != (header.data_revision, header.manifest_hash):
        _refuse(
            f"was made on data of revision {header.data_revision!r} (tasks "
            f"{header.manifest_hash!r}), and the run's are {found[0]!r} (tasks {found[1]!r}), "
            f"from {task_set.source}"
        )
    theirs = {**_defaults(env_id), **header.env_kwargs}
    for name, value in environment_of(env_id).options(config.env, task_set, "").items():
        if name not in _APART and _plain(value) and value != theirs.get(name):
            _refuse(f"was made with {name}={theirs.get(name)!r}, and the run has {name}={value!r}")
    if not evaluated:
        return
    splits = {str(theirs.get("split"))}
    if theirs.get("split") is None:  # tasks of all splits
        ids = {row.branch.root.task_id for row in bank.rows}
        splits = {task_set.meta(task_id).split for task_id in ids}
    for split in sorted(splits.intersection(config.eval.splits)):
        raise BankError(
            f"The bank has branches of split {split!r}, which the run evaluates: its tasks would "
            "not be held out. Build a bank of split train, or evaluate no task (--eval-tasks 0)."
        )


def check_open(roots: Sequence[GrownRoot], section: SeroConfig) -> None:
    """Raises BankError where no gate is open, so that there is nothing to train on."""
    if any(root.gate > 0 for root in roots):
        return
    why = Counter(reason for root in roots for reason in root.reasons or (root.gate_reason,))
    told = ", ".join(f"{reason}: {number}" for reason, number in sorted(why.items()))
    raise BankError(
        f"None of the {len(roots)} branches of the bank can be trained on with target="
        f"{section.target} ({told or 'it is empty'}). Build a bank with an oracle that does better "
        "than the policy, or with prompts within the run's limits."
    )


def _defaults(env_id: str) -> dict[str, Any]:
    maker: Any = maker_of(env_id, "env.id") if ":" in env_id else None
    kwargs: dict[str, Any] = {}
    if maker is None or isinstance(maker, partial):  # an id, perhaps of somebody's module
        spec = gymnasium.registry[env_id.rpartition(":")[2]]
        entry: Any = spec.entry_point
        maker = load_env_creator(entry) if isinstance(entry, str) else entry
        kwargs = dict(spec.kwargs)
    known = inspect.signature(maker)
    return {
        name: parameter.default
        for name, parameter in known.parameters.items()
        if parameter.default is not parameter.empty
    } | kwargs


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _refuse(why: str) -> None:
    raise BankError(
        f"The bank {why}. Its branches would not be what this policy sees: build a bank with "
        "--policy RUN, or name the run that it belongs to."
    )
