"""The same commands give the same episodes wherever the environments are."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import agent_envs
from agent_envs.errors import TaskNotFound, WorkerError
from tests.trainer import small
from trainer.config import Config, ConfigError
from trainer.pools.base import PooledEnv, Start, Stepped, reset_envs, step_envs
from trainer.pools.process import ProcessPool
from trainer.pools.ray import RayPool
from trainer.pools.registry import make_envs
from trainer.pools.serial import SerialPool
from trainer.rollouts.rollout import Episode, PlaySettings, play
from trainer.worlds.tasks import make_env, split_tasks

N = 4
has_ray = importlib.util.find_spec("ray") is not None
RAY = pytest.param(
    "ray", marks=pytest.mark.skipif(not has_ray, reason="the package ray is not installed")
)


def _config(pool: str) -> Config:
    workers = {} if pool == "serial" else {"env__workers": 2}
    return small.small_config(env__pool=pool, **workers)


def _envs(pool: str) -> list[Any]:
    config = _config(pool)
    return make_envs(config.env, small.games(), "train", N)


def _tasks() -> list[str]:
    ids = split_tasks(_config("serial").env, small.games(), "train")
    return [ids[i % len(ids)] for i in range(N)]


def _starts() -> list[Start]:
    return [(task, seed) for seed, task in enumerate(_tasks())]


@pytest.fixture(params=["process", RAY], scope="module")
def pooled(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    envs = _envs(request.param)
    yield envs
    envs[0].close()
    envs[-1].close()
    if request.param == "ray":
        import ray

        ray.shutdown()


def _walk(envs: list[Any], snapshots: bool) -> tuple[list[Any], list[list[Stepped]]]:
    """Every environment along its admissible commands, each at a place of its own."""
    began = reset_envs(envs, _starts())
    infos = [info for _, info in began]
    rows = []
    for t in range(4):
        commands = [i["admissible_actions"][(t * 3 + n) % len(i["admissible_actions"])]
                    for n, i in enumerate(infos)]  # fmt: skip
        rows.append(step_envs(envs, commands, snapshots=snapshots))
        infos = [found.info for found in rows[-1]]
    return began, rows


def test_walks_are_equal_to_the_last_field(pooled: list[Any]) -> None:
    here = _envs("serial")
    assert all(isinstance(env, PooledEnv) for env in pooled)
    assert not any(isinstance(env, PooledEnv) for env in here)
    assert _walk(pooled, False) == _walk(here, False)


def test_states_come_back_for_branches(pooled: list[Any]) -> None:
    """A snapshot of a worker resumes here."""
    here = _envs("serial")
    _, theirs = _walk(pooled, True)
    _, ours = _walk(here, True)
    assert theirs == ours
    env = make_env(_config("serial").env, small.games(), "train")
    for row, following in itertools.pairwise(theirs):
        for found, after in zip(row, following, strict=True):
            assert after.before is not None
            observation, info = agent_envs.restore(env, after.before)
            assert observation == found.observation
            assert info["admissible_actions"] == found.info["admissible_actions"]


def test_the_rollout_loop_plays_in_a_pool(pooled: list[Any]) -> None:
    def played(envs: list[Any]) -> list[Any]:
        config = _config("serial")
        episodes = [
            Episode(task, f"0.{i}", f"0.{i}.{j}", 0, 0, i, j)
            for i, task in enumerate(_tasks())
            for j in range(2)
        ]
        return play(episodes, envs, small.student(config), small.half_expert(0.8), PlaySettings(24))

    assert played(pooled) == played(_envs("serial"))


def test_errors_are_the_environment_s_own(pooled: list[Any]) -> None:
    with pytest.raises(TaskNotFound) as there:
        reset_envs(pooled, [*_starts()[:-1], ("no such task", 0)])
    with pytest.raises(TaskNotFound) as here:
        reset_envs(_envs("serial"), [*_starts()[:-1], ("no such task", 0)])
    assert str(there.value).splitlines()[0] == str(here.value).splitlines()[0]
    _walk(pooled, False)  # and the pool goes on


def test_an_env_of_a_pool_has_no_schedule(pooled: list[Any]) -> None:
    with pytest.raises(ValueError, match="task_id"):
        pooled[0].reset(seed=0)
    with pytest.raises(ValueError, match="twice"):
        step_envs([pooled[0], pooled[0]], ["look", "look"])
    assert pooled[0].max_steps == 6
    assert pooled[0].spec.id == "SeroALFWorld-v0"


def test_a_serial_pool_is_a_pool_too() -> None:
    pool = SerialPool(_envs("serial"))
    began = pool.reset_many(dict(enumerate(_starts())))
    moved = pool.step_many({1: "look"}, snapshots=True)
    assert list(moved) == [1]
    assert moved[1].before is not None
    assert [began[i] for i in range(N)] == reset_envs(_envs("serial"), _starts())
    pool.close()


def test_a_worker_that_died_is_named() -> None:
    pool = ProcessPool(_config("process").env, "train", 2, 1)
    os.kill(pool.worker_pids[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match="agent_envs-worker-0"):
        pool.reset_many({0: _starts()[0]})
    pool.close()


@pytest.mark.skipif(has_ray, reason="ray is installed")
def test_without_ray_the_message_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match="pip install ray"):
        RayPool(_config("ray").env, "train", 2, 1)


def test_workers_without_a_pool_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.workers=2 has no effect"):
        small.small_config(env__workers=2)
