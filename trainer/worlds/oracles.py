"""Oracles by name: an environment's own, or anybody's as `module:factory`.

For training and for people; evaluation never gets here. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Any

from oracles.base import Oracle, Planner
from trainer.errors import ConfigError
from trainer.worlds.environments import PLANNER, environment_of
from trainer.worlds.named import NamedError, load_named

__all__ = ["make_oracle", "make_planner"]


def make_oracle(name: str, budget_s: float | None, env_id: str) -> Oracle[Any]:
    """An oracle by name.

    Args:
        name: one of those of the environment (`planner`: its first), or `module:factory`, which
            is called without arguments.
        budget_s: seconds that one answer of an environment's own oracle may take; None: no limit.
        env_id: the environment it is for.

    Raises:
        ConfigError: neither form, or there is no such module or factory.
    """
    own = environment_of(env_id).oracles
    place = own.get(next(iter(own), "") if name == PLANNER else name)
    if place is None and ":" not in name:
        raise ConfigError(
            f"Unknown oracle {name!r} for {env_id}: give {', '.join(own) or 'none by name'} or "
            "'module:factory'."
        )
    try:
        factory = load_named(place or name, "oracle")
    except NamedError as error:
        raise ConfigError(f"There is no oracle {name!r}: {error}") from error
    oracle: Oracle[Any] = factory(budget_s) if place else factory()
    return oracle


def make_planner(budget_s: float | None, env_id: str) -> Planner[Any]:
    """The environment's own planner.

    Raises:
        ConfigError: it has none, or one that cannot lay out the whole way.
    """
    oracle = make_oracle(PLANNER, budget_s, env_id)
    if not isinstance(oracle, Planner):
        raise ConfigError(f"The oracle of {env_id} cannot plan ahead: it has no method `plan`.")
    return oracle
