"""The environments of a run, in the pool that `env.pool` names."""

from __future__ import annotations

import os

from trainer.config.env import EnvConfig
from trainer.pools.base import EnvPool, TextEnvironment, proxies
from trainer.worlds.environments import TaskSet
from trainer.worlds.tasks import make_env

__all__ = ["make_envs"]


def make_envs(config: EnvConfig, task_set: TaskSet, split: str, n: int) -> list[TextEnvironment]:
    """`n` environments over a split. With a pool, closing any of them ends it.

    Raises:
        ConfigError: the pool needs a package that is not here.
        WorkerError: a worker did not start.
    """
    if config.pool == "serial":
        return [make_env(config, task_set, split) for _ in range(n)]
    pool: EnvPool
    if config.pool == "process":
        from trainer.pools.process import ProcessPool

        workers = config.workers or len(os.sched_getaffinity(0))
        pool = ProcessPool(config, split, n, min(workers, n))
    else:
        from trainer.pools.ray import RayPool

        pool = RayPool(config, split, n, config.workers)
    return proxies(pool, make_env(config, task_set, split))
