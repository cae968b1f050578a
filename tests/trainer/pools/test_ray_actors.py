"""How many actors a Ray pool starts: no more than can run."""

from __future__ import annotations

import importlib.util

import pytest

from tests.trainer import small
from trainer.config import ConfigError
from trainer.pools.base import Start, reset_envs
from trainer.pools.ray import actors_for
from trainer.pools.registry import make_envs
from trainer.worlds.tasks import split_tasks

N = 4
has_ray = importlib.util.find_spec("ray") is not None


def test_there_are_no_more_actors_than_cores() -> None:
    """Those beyond would never start, and the pool wait for them in vain."""
    assert [actors_for(128, 0, cores) for cores in (2, 16, None)] == [2, 8, 8]
    assert actors_for(3, 4, 3) == 3
    with pytest.raises(ConfigError, match=r"env\.workers=4 .* Ray has 2"):
        actors_for(128, 4, 2)


@pytest.mark.skipif(not has_ray, reason="the package ray is not installed")
def test_the_default_number_of_actors_starts_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    monkeypatch.setattr("trainer.pools.ray.ENVS_AN_ACTOR", 2)
    monkeypatch.setattr("trainer.pools.ray.TIMEOUT_S", 60.0)
    config = small.small_config(env__pool="ray")
    ids = split_tasks(config.env, small.games(), "train")
    starts: list[Start] = [(ids[i % len(ids)], i) for i in range(N)]
    try:
        envs = make_envs(config.env, small.games(), "train", N)
        assert len(reset_envs(envs, starts)) == N
        envs[0].close()
    finally:
        ray.shutdown()
