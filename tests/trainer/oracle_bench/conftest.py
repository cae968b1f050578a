"""One trained policy for all tests here, and its roots."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracles.bench.figures import Probe
from tests.trainer.oracle_bench import bench_world
from trainer.banks.policy import TrainedPolicy


@pytest.fixture(scope="session")
def home_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_world.train_home(tmp_path_factory.mktemp("home") / "run")


@pytest.fixture(scope="session")
def trained(home_run: Path) -> TrainedPolicy:
    return bench_world.opened(home_run)


@pytest.fixture(scope="session")
def probes(trained: TrainedPolicy) -> list[Probe]:
    return bench_world.probes_of(trained, 12)


@pytest.fixture(scope="session")
def shop_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_world.train_shop(tmp_path_factory.mktemp("shop") / "run")
