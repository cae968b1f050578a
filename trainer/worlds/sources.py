"""What `--env`, `--policy` and `--oracle` of a command name: ours, a trained run, or anybody's.

Somebody's own parts are named as `module:name`, as they are for `python -m`: the current folder is
looked through first, for this import only. What is named runs with the rights of the command, so
name only what you trust. Nothing here imports torch unless a trained run plays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from agent_envs.core import TextEnv
from oracles.base import Oracle
from oracles.branches import EnvRecipe
from oracles.walks import PLAYERS, Player, Walk, walks
from trainer.worlds.environments import PLANNER, environment_of
from trainer.worlds.named import NamedError, is_attribute, load_named, maker_of, somebodys
from trainer.worlds.oracles import make_oracle

if TYPE_CHECKING:
    from trainer.banks.policy import TrainedPolicy

__all__ = ["ImportedRecipe", "OracleRecipe", "Source", "of_somebody", "resolve"]

Options = Mapping[str, Any]
"""`data`, `split` and `max_steps`; None: not given."""


@dataclass(frozen=True, slots=True)
class ImportedRecipe(EnvRecipe):
    """Makes what `module:name` stands for: a factory or class of the module, or an id that it
    registers. `env_id` is the whole name. Can be sent to other processes."""

    def __call__(self) -> gymnasium.Env[str, str]:
        """A new environment."""
        maker = maker_of(self.env_id, "--env")
        with somebodys(f"--env {self.env_id}"):
            made: gymnasium.Env[str, str] = maker(**self.kwargs)
        return made


@dataclass(frozen=True, slots=True)
class OracleRecipe:
    """Makes an oracle by name; can be sent to other processes."""

    name: str
    """One of the environment's own, or `module:factory`."""
    env_id: str

    def __call__(self) -> Oracle[Any]:
        """A new oracle.

        Raises:
            NamedError: the module has no such factory, or it makes something else.
            ConfigError: the environment has no oracle of that name.
        """
        if ":" not in self.name:
            return make_oracle(self.name, None, self.env_id)
        factory = load_named(self.name, "--oracle")
        if callable(factory) and (wanted := _required(factory)):
            raise NamedError(
                f"--oracle {self.name} takes arguments ({', '.join(wanted)}): expected a factory "
                "without any, such as the oracle's class or a function that makes one."
            )
        with somebodys(f"--oracle {self.name}"):
            made = factory() if callable(factory) else factory
        if not isinstance(made, Oracle):
            raise NamedError(
                f"--oracle {self.name} gives a {type(made).__name__}, which is no oracle: expected "
                "`privileged`, `start(view, history)` and `act(state, view, observation)`."
            )
        return made


@dataclass(frozen=True, slots=True)
class Source:
    """What plays: an environment, a policy in it, and the oracle that takes over."""

    recipe: EnvRecipe
    oracle: str
    """Its own name: never `planner` for another one."""
    make_oracle: OracleRecipe
    policy: str
    played: Iterator[Walk]
    """Episodes of the policy without end."""
    provenance: dict[str, Any]
    """What is known of the policy's origin."""
    trained: TrainedPolicy | None = None


def resolve(
    *, env: str | None, policy: str, oracle: str, seed: int, options: Options | None = None
) -> Source:
    """Find environment, policy and oracle by their names, before anything is played.

    Args:
        env: `alfworld`, `webshop`, a registered id, or `module:name`: an attribute of the module
            that makes an environment (a function, or a class), else an id that the module
            registers. None: ALFWorld, or that of the trained run.
        policy: `random`, `first`, the folder of a trained run, or `module:name`: a function from
            (observation, info) to a command, or a class whose objects are such functions.
        oracle: one of the environment's own (`planner`: its first), or `module:factory`.
        seed: of the order of tasks, and of the draws of `random` and of a trained policy.

    Raises:
        NamedError: something is not there or is of another kind; says what was found.
        ConfigError, RunFolderError, CheckpointError, MissingData: as their names say.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    if policy not in PLAYERS and (Path(policy).is_dir() or ":" not in policy):
        return _trained(env, policy, oracle, seed, given)
    recipe, known = _environment("alfworld" if env is None else env, given)
    player = PLAYERS[policy] if policy in PLAYERS else _player(policy)
    found = _oracle(oracle, known)
    played = _episodes(walks(_opened(recipe), player, seed), recipe.env_id)
    return Source(recipe, found.name, found, policy, played, {})


def of_somebody(recipe: EnvRecipe) -> AbstractContextManager[None]:
    """`somebodys` around work in environments of `recipe`; where they are ours, nothing at all."""
    place = recipe.env_id
    return somebodys(f"--env {place}") if ":" in place else nullcontext()


# ------------------------------------------------------------------------------ policies


def _player(policy: str) -> Player:
    found = load_named(policy, "--policy")
    with somebodys(f"--policy {policy}"):
        choose: Any = found() if isinstance(found, type) else found
    if not callable(choose):
        raise NamedError(
            f"--policy {policy} is of type {type(choose).__name__}: expected a function from "
            "(observation, info) to a command."
        )

    def play(observation: str, info: Mapping[str, Any], _: np.random.Generator) -> str:
        with somebodys(f"--policy {policy}"):
            command = choose(observation, info)
        if not isinstance(command, str):
            raise NamedError(f"--policy {policy} answered {command!r}: expected a command, a str.")
        return command

    return play


def _trained(env: str | None, policy: str, oracle: str, seed: int, given: Options) -> Source:
    if not Path(policy).is_dir():
        raise NamedError(
            f"--policy {policy}: neither {' nor '.join(PLAYERS)}, there is no such folder, and it "
            "is not of the form module:name."
        )
    for name in ("data", "max_steps"):
        if name in given:
            raise NamedError(
                f"{_flag(name)}: a trained run has its own. Leave it out, or play with --policy "
                f"{' or '.join(PLAYERS)}."
            )
    from trainer.banks.policy import load_policy_of

    trained = load_policy_of(Path(policy), given.get("split"))
    recipe = trained.recipe
    if env is not None and (asked := _env_id(env)) != recipe.env_id:
        raise NamedError(f"--env {env} is {asked}: the run was trained on {recipe.env_id}.")
    found = _oracle(oracle, recipe.env_id)
    told = {"checkpoint": trained.digest}
    return Source(recipe, found.name, found, trained.name, trained.walks(seed), told, trained)


# ------------------------------------------------------------------------------ environments


def _environment(env: str, given: Options) -> tuple[EnvRecipe, str]:
    """How to make it, and the id under which its oracles are known."""
    env_id = _env_id(env)
    if ":" not in env_id:
        return EnvRecipe(env_id, _accepted(_creator(env_id), env_id, given, "train")), env_id
    name = env_id.partition(":")[2]
    if name in gymnasium.registry and not is_attribute(env_id, "--env"):
        options = _accepted(_creator(name), name, given, "train")
        return ImportedRecipe(env_id, options), name
    return ImportedRecipe(env_id, _accepted(maker_of(env_id, "--env"), env_id, given, None)), env_id


def _env_id(env: str) -> str:
    """The registered id, or `module:name` where the module has to be imported first."""
    from trainer.cli.play import find_env

    ours = env.removeprefix("agent_envs:")
    if ours in gymnasium.registry:
        return ours
    if ":" not in env:
        return find_env(env)
    maker_of(env, "--env")
    return env


def _creator(env_id: str) -> Callable[..., Any]:
    entry: Any = gymnasium.registry[env_id].entry_point
    creator: Callable[..., Any] = load_env_creator(entry) if isinstance(entry, str) else entry
    return creator


def _accepted(
    creator: Callable[..., Any], name: str, given: Options, split: str | None
) -> dict[str, Any]:
    """Arguments of the environment, as a bank keeps them."""
    known = inspect.signature(creator).parameters
    for option in given.keys() - known.keys():
        raise NamedError(f"{_flag(option)}: {name} has no such option.")
    options = dict(given)
    if split is not None and "split" in known:
        options.setdefault("split", split)
    return options


def _episodes(played: Iterator[Walk], env_id: str) -> Iterator[Walk]:
    with somebodys(f"--env {env_id}: an episode"):
        yield from played


def _opened(recipe: EnvRecipe) -> gymnasium.Env[str, str]:
    env = recipe()
    base = env.unwrapped if isinstance(env, gymnasium.Env) else env
    if not isinstance(base, TextEnv):
        raise NamedError(
            f"--env {recipe.env_id} gives a {type(base).__name__}: expected an agent_envs.TextEnv, "
            "whose states can be snapshot and restored. See docs/adoption.md."
        )
    return env


# ------------------------------------------------------------------------------ oracles


def _oracle(name: str, env_id: str) -> OracleRecipe:
    """The oracle under its own name, after it was made once."""
    if ":" not in name:
        if ":" in env_id:
            raise NamedError(
                f"--oracle {name}: {env_id} has no oracles by name. Give module:factory."
            )
        own = environment_of(env_id).oracles
        name = next(iter(own), name) if name == PLANNER else name
    recipe = OracleRecipe(name, env_id)
    recipe()
    return recipe


def _required(factory: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a call has to give; empty where Python cannot tell."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in free]


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
