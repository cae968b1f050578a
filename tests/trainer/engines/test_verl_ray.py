"""verl's processes through Ray: two data-parallel ranks take the update of one process, and its
client of inference servers serves our sampler.

Two minutes on a slow core, so under SERO_TEST_FULL=1 only.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import full_count
from tests.trainer import small
from tests.trainer.engines import own_update, verl_cpu
from tests.trainer.engines.test_verl_driver import NAMED
from trainer.engines.verl.driver import Driver
from trainer.engines.verl.main import compose
from trainer.engines.verl.sampler import ServerSampler
from trainer.generation.hf import HFSampler
from trainer.models.tiny import save_policy

if importlib.util.find_spec("verl") is None:
    pytest.skip("the package verl is not installed", allow_module_level=True)
if not full_count(0, 1):
    pytest.skip("takes two minutes; SERO_TEST_FULL=1 runs it", allow_module_level=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray  # type: ignore[import-not-found, unused-ignore]

    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=3, include_dashboard=False, logging_level="error",
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


def test_two_ranks_take_the_steps_of_one_process(cluster: Any, tmp_path: Path) -> None:
    from trainer.engines.verl.sero_trainer import SeroTrainer

    verl_cpu.use_cpu(tmp_path / "store")
    from tests.trainer.engines.verl_ray import worker_group

    save_policy(tmp_path / "policy", small.model(), small.tokenizer())
    config = small.small_config(
        **NAMED | {"model__path": str(tmp_path / "policy"), "optim__lr": 1.0}
    )
    alone = verl_cpu.local_trainer(
        config, small.tokenizer(), small.model(), small.half_expert(0.6), task_set=small.games()
    )
    before = alone.actor_rollout_wg.weights()
    found = alone.driver.collect(0)
    local = alone.update(found, alone.base_batch(found))
    expected = {k: v - before[k] for k, v in alone.actor_rollout_wg.weights().items()}

    group = worker_group(compose(config, verl_cpu.OVERRIDES), ranks=2)
    alone.actor_rollout_wg = group
    assert isinstance(alone, SeroTrainer)
    assert alone._get_dp_size(group, "actor") == 2
    metrics = alone.update(found, alone.base_batch(found))
    assert metrics["verl/branch_rows"] == local["verl/branch_rows"] > 3
    for weights in group.weights():
        through = {name: value - before[name] for name, value in weights.items()}
        assert own_update.apart(through, expected) < 1e-5
    alone.close()


def test_episodes_are_played_through_verl_s_client(cluster: Any, tmp_path: Path) -> None:
    """Its client, its load balancer and two servers: what is played is what our sampler plays."""
    from tests.trainer.engines.verl_ray import server_client

    save_policy(tmp_path / "policy", small.model(), small.tokenizer())
    config = small.small_config(
        **NAMED | {"model__path": str(tmp_path / "policy"), "auxiliary__sero": None}
    )
    student = small.student(config)
    client, servers = server_client(
        compose(config, verl_cpu.OVERRIDES), str(tmp_path / "policy"), student.stop_ids, 2
    )
    played = []
    samplers: list[Any] = [
        ServerSampler(client, student.stop_ids),
        HFSampler(small.model(), student.stop_ids),
    ]
    for sampler in samplers:
        driver = Driver(config, student, sampler, None, small.games())
        result = driver.evaluate()["valid_seen"]["tasks"]
        played.append([{k: v for k, v in one.items() if not k.endswith("_s")} for one in result])
        driver.close()
        sampler.close()
    assert played[0] == played[1]
    assert all(count > 3 for count in cluster.get([s.count.remote() for s in servers]))
