"""What the trainer has to know of an environment: one entry for each id, and nothing elsewhere.

An environment of another package joins with `register_environment`. Nothing here imports torch,
`oracles` or the data of an environment before it is opened.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium

from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.config.env import EnvConfig

__all__ = [
    "ALFWORLD",
    "WEBSHOP",
    "Environment",
    "TaskRef",
    "TaskSet",
    "check_environment",
    "environment_of",
    "register_environment",
]

ALFWORLD = "SeroALFWorld-v0"
WEBSHOP = "SeroWebShop-v0"
VARIABLES = {ALFWORLD: "SERO_ALFWORLD_DATA", WEBSHOP: "SERO_WEBSHOP_DATA"}
"""Environment variables that name the data where a config does not."""
PLANNER = "planner"
"""As the name of an oracle: the environment's own first one."""


class TaskRef(Protocol):
    """What a set of tasks knows of one task without loading it."""

    @property
    def split(self) -> str: ...

    @property
    def task_type(self) -> str: ...


class TaskSet(Protocol):
    """Tasks that environments share: `GameSet` of ALFWorld, `GoalSet` of WebShop."""

    @property
    def source(self) -> str:
        """Where the tasks come from, for people."""
        ...

    @property
    def manifest_hash(self) -> str:
        """SHA-256 (hex) over all tasks and their contents."""
        ...

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have tasks."""
        ...

    def task_ids(
        self, split: str | None = None, task_types: Sequence[str] | None = None
    ) -> Sequence[str]:
        """Ids in a fixed order; of one split, or of some types. May be made on demand."""
        ...

    def meta(self, task_id: str) -> TaskRef: ...


@dataclass(frozen=True, slots=True)
class Environment:
    """How the trainer opens and plays one environment.

    Attributes:
        open: the tasks that the section `env` of a config names. Raises `MissingData`.
        options: arguments of the environment's constructor, `max_steps` apart, from the config,
            the opened tasks and the split.
        held_out: splits that are evaluated where a config names none.
        oracles: by name, the `module:factory` of each; a factory takes the seconds that one
            answer may take. The first is the default, also called `planner`.
        pages: which wording of the prompt templates (`agent_envs.prompting.get_template`).
        make: makes an environment, from the same as `options`; None: by `gymnasium.make`.
        reads: fields of `EnvConfig`, besides `id`, `split` and `max_steps`, that mean something
            here; all others have to keep their defaults.
    """

    open: Callable[[EnvConfig], TaskSet]
    options: Callable[[EnvConfig, Any, str], Mapping[str, Any]]
    held_out: tuple[str, ...]
    oracles: Mapping[str, str] = field(default_factory=dict)
    pages: str = "plain"
    reads: frozenset[str] = frozenset()
    make: Callable[[EnvConfig, Any, str], gymnasium.Env[str, str]] | None = None


def environment_of(env_id: str) -> Environment:
    """The entry of an id, or of `module:name` (`trainer.worlds.user_env`).

    Raises:
        ConfigError: there is none; suggests the nearest.
    """
    if ":" in env_id:
        from trainer.worlds.user_env import user_environment

        return user_environment(env_id)
    if env_id in _ENVIRONMENTS:
        return _ENVIRONMENTS[env_id]
    near = difflib.get_close_matches(env_id, _ENVIRONMENTS, n=1, cutoff=0.0)
    raise ConfigError(
        f"env.id={env_id!r} is no environment that can be trained on. Did you mean {near[0]!r}? "
        f"Known: {', '.join(_ENVIRONMENTS)}, and module:name for one of your own."
    )


def register_environment(env_id: str, environment: Environment) -> None:
    """Makes `env.id: <env_id>` a config that can be trained.

    Raises:
        ConfigError: the id is taken.
    """
    if env_id in _ENVIRONMENTS:
        raise ConfigError(f"The environment {env_id!r} is already known to the trainer.")
    _ENVIRONMENTS[env_id] = environment


def check_environment(config: EnvConfig) -> Environment:
    """The entry of `config.id`, once nothing is set that the environment would not read.

    Raises:
        ConfigError: names the id or the field.
    """
    environment = environment_of(config.id)
    plain = type(config)()  # every field at its default
    always = {"id", "split", "max_steps", "pool", "workers"}
    for name in sorted({f.name for f in fields(config)} - always - environment.reads):
        if getattr(config, name) != getattr(plain, name):
            raise ConfigError(f"env.{name} is set, but {config.id} does not read it. Remove it.")
    return environment


# ------------------------------------------------------------------------------ ALFWorld


def _open_games(config: EnvConfig) -> TaskSet:
    from agent_envs.alfworld.games import load_game_set

    if config.data != "generated":
        return load_game_set(config.data)
    from agent_envs.alfworld.households.generator import generate_game_set
    from agent_envs.alfworld.households.spec import PRESETS

    generated = config.generated
    spec: Any = PRESETS[generated.preset]
    if generated.task_types:
        spec = replace(spec, task_types=generated.task_types)
    if generated.receptacles is not None:
        spec = replace(spec, receptacles=generated.receptacles)
    if generated.objects is not None:
        spec = replace(spec, objects=generated.objects)
    counts = {
        "train": generated.train,
        "valid_seen": generated.valid_seen,
        "valid_unseen": generated.valid_unseen,
    }
    return generate_game_set(generated.seed, counts, spec)


def _game_options(config: EnvConfig, games: Any, split: str) -> Mapping[str, Any]:
    return {"data": games, "split": split, "task_types": config.task_types or None}


# ------------------------------------------------------------------------------ WebShop


def _open_goals(config: EnvConfig) -> TaskSet:
    from agent_envs.webshop.catalogue import GoalSet, load_shop

    shop, data = config.webshop, config.data
    if data == "generated":
        generated = shop.generated
        data = f"generated:{generated.preset}?seed={generated.seed}"
        if generated.products is not None:
            data += f"&n={generated.products}"
    loaded = load_shop(data, price_seed=shop.price_seed)
    return GoalSet(loaded, shop.goal_source, split_by=shop.split_by)


def _goal_options(config: EnvConfig, goals: Any, split: str) -> Mapping[str, Any]:
    shop = config.webshop
    return {
        "data": goals.shop,
        "split": split,
        "goal_source": shop.goal_source,
        "split_by": shop.split_by,
        "price_seed": shop.price_seed,
        "observation_mode": shop.observation_mode,
        "show_attributes": shop.show_attributes,
    }


_ENVIRONMENTS: dict[str, Environment] = {
    ALFWORLD: Environment(
        open=_open_games,
        options=_game_options,
        held_out=("valid_seen", "valid_unseen"),
        oracles=MappingProxyType(
            {
                PLANNER: "oracles.alfworld_planner:ALFWorldPlanner",
                "explorer": "oracles.alfworld_explorer:ALFWorldExplorer",
                "as_seen": "oracles.alfworld_planner:as_seen_planner",
                "pddl": "oracles.pddl.oracle:PDDLOracle",
                "reference-handcoded": "oracles.alfworld_original:OriginalHandCoded",
                "reference-planner": "oracles.alfworld_original:OriginalPlanner",
            }
        ),
        reads=frozenset(("data", "generated", "task_types")),
    ),
    WEBSHOP: Environment(
        open=_open_goals,
        options=_goal_options,
        held_out=("val",),
        oracles=MappingProxyType(
            {
                "goal": "oracles.webshop_goal:WebShopGoalOracle",
                "choice": "oracles.webshop_baselines:ChoiceOracle",
                "rule": "oracles.webshop_baselines:RuleOracle",
            }
        ),
        pages="webshop",
        reads=frozenset(("data", "webshop")),
    ),
}
