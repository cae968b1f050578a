"""Oracles by name: an environment's own, or anybody's as `module:factory`.

For training and for people; evaluation never gets here. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oracles.base import Oracle, Planner
from trainer.errors import ConfigError
from trainer.worlds.environments import PLANNER, environment_of
from trainer.worlds.named import NamedError, load_named

__all__ = ["check_oracle", "check_planner", "make_oracle", "make_planner"]


def make_oracle(
    name: str, budget_s: float | None, env_id: str, *, field: str | None = None
) -> Oracle[Any]:
    """An oracle by name.

    Args:
        name: one of those of the environment (`planner`: its first), or `module:factory`, which
            is called without arguments.
        budget_s: seconds that one answer of an environment's own oracle may take; None: no limit.
        env_id: the environment it is for.
        field: of the config, for messages.

    Raises:
        ConfigError: neither form, or there is no such module or factory.
    """
    factory, own = _factory(name, env_id, field)
    oracle: Oracle[Any] = factory(budget_s) if own else factory()
    return oracle


def check_oracle(name: str, env_id: str, field: str) -> None:
    """Raises what `make_oracle` would, and makes nothing: an oracle may take long to be made."""
    _factory(name, env_id, field)


def make_planner(budget_s: float | None, env_id: str) -> Planner[Any]:
    """The environment's own planner.

    Raises:
        ConfigError: it has none, or one that cannot lay out the whole way.
    """
    oracle = make_oracle(PLANNER, budget_s, env_id)
    if not isinstance(oracle, Planner):
        raise ConfigError(f"The oracle of {env_id} cannot plan ahead: it has no method `plan`.")
    return oracle


def check_planner(env_id: str, field: str) -> None:
    """Raises where `make_planner` would; `field` asks for plans."""
    if not environment_of(env_id).oracles:
        raise ConfigError(
            f"{field} needs a planner of the environment, and {env_id} has no oracles of its own. "
            "Choose another context."
        )
    factory, _ = _factory(PLANNER, env_id, field)
    if not hasattr(factory, "plan"):
        raise ConfigError(
            f"{field} needs a planner, and the oracle of {env_id} cannot plan ahead: it has no "
            "method `plan`. Choose another context."
        )


def _factory(name: str, env_id: str, field: str | None) -> tuple[Callable[..., Any], bool]:
    """What makes the oracle, and whether it is the environment's own, which gets the budget."""
    own = environment_of(env_id).oracles
    place = own.get(next(iter(own), "") if name == PLANNER else name)
    if place is None and ":" not in name:
        what = f"Unknown oracle {name!r} for {env_id}"
        if field is not None:
            what = f"{field}={name}: unknown oracle for {env_id}"
        known = f"give {', '.join(own)} or" if own else "it has none by name, give"
        option = f", e.g. --{field} module:factory" if field and "." in field else ""
        raise ConfigError(f"{what}: {known} 'module:factory'{option}.")
    try:
        factory = load_named(place or name, field or "oracle")
    except NamedError as error:
        raise ConfigError(f"There is no such oracle. {error}") from error
    if not callable(factory):
        raise ConfigError(
            f"{field or 'oracle'}={name} is of type {type(factory).__name__}: expected a function "
            "or class that makes an oracle."
        )
    made: Callable[..., Any] = factory
    return made, place is not None
