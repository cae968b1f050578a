"""`make_vec`: one id, many environments, in this process or in workers."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode

from agent_envs.errors import InvalidOption
from agent_envs.vector.arguments import whole
from agent_envs.vector.calls import MakeWrapper, Recipe
from agent_envs.vector.pool import ProcessVectorEnv
from agent_envs.vector.vector_env import SerialVectorEnv, TextVectorEnv

MODES = ("serial", "process")


def make_vec(
    env_id: str | EnvSpec,
    num_envs: int = 1,
    *,
    vectorization_mode: str | None = None,
    num_workers: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.DISABLED,
    wrappers: Sequence[MakeWrapper] = (),
    timeout: float = 600.0,
    **env_kwargs: Any,
) -> TextVectorEnv:
    """`num_envs` envs of one id as a vector env.

    Args:
        env_id: a registered id, with its module in front if need be (``"package:Id-v0"``), or an
            `EnvSpec`.
        num_envs: number of sub-envs, at least 1.
        vectorization_mode: ``"serial"``: one after another in this process, sharing compiled
            games or a shop; the fastest for native engines. ``"process"``: in worker processes,
            for slow engines. None: ``"process"`` if `num_workers` is given, else ``"serial"``.
        num_workers: worker processes, each with several envs; None for one a core.
        autoreset_mode: what happens after the end of an episode, see `TextVectorEnv`.
        wrappers: functions from env to env, applied in order to each sub-env.
        timeout: seconds that a worker may take for one request before the pool gives up.
        env_kwargs: for `gymnasium.make`, such as ``data=``, ``max_steps=`` or
            ``max_episode_steps=``.

    Raises:
        InvalidOption: an argument that makes no sense, or, with workers, one that cannot be sent
            to another process.
        WorkerError: a worker died or did not start.
    """
    n = whole(num_envs)
    if n is None or n < 1:
        raise InvalidOption(f"num_envs must be an int of at least 1, not {num_envs!r}.")
    if vectorization_mode is None:
        vectorization_mode = "serial" if num_workers is None else "process"
    if vectorization_mode not in MODES:
        raise InvalidOption(
            f"vectorization_mode {vectorization_mode!r} is not one of {list(MODES)}."
        )
    recipe = Recipe(_spec_of(env_id), env_kwargs, tuple(wrappers))
    if vectorization_mode == "serial":
        if num_workers is not None:
            raise InvalidOption(
                "num_workers is for vectorization_mode='process'; 'serial' has no workers."
            )
        return SerialVectorEnv(recipe, n, autoreset_mode)
    return ProcessVectorEnv(recipe, n, autoreset_mode, num_workers, timeout)


def alfworld_vector_env(num_envs: int = 1, **kwargs: Any) -> TextVectorEnv:
    """The vector entry point of ``SeroALFWorld-v0``: `make_vec` for that id."""
    return make_vec("SeroALFWorld-v0", num_envs, **kwargs)


def webshop_vector_env(num_envs: int = 1, **kwargs: Any) -> TextVectorEnv:
    """The vector entry point of ``SeroWebShop-v0``: `make_vec` for that id."""
    return make_vec("SeroWebShop-v0", num_envs, **kwargs)


def _spec_of(env_id: str | EnvSpec) -> EnvSpec:
    if isinstance(env_id, EnvSpec):
        return env_id
    if not isinstance(env_id, str):
        raise InvalidOption(f"env_id is a registered id or an EnvSpec, not {env_id!r:.80}.")
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)
