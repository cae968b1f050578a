"""A run of the tiny policy, and banks of its branches, for the tests of replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agent_envs
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.bank import (
    Bank,
    BankRow,
    PolicyEnd,
)
from oracles.base import HistoryItem
from oracles.branch import RootRecord
from oracles.branches import BranchRequest, BranchRunner
from oracles.walks import collect
from tests.trainer.banks.replay_support import kept_bank, replay_config, report_of
from trainer.banks.policy import load_policy_of
from trainer.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    train(replay_config(), folder)
    return folder


@pytest.fixture(scope="module")
def bank(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """Twelve branches from failed episodes of the run's own policy."""
    trained = load_policy_of(run, None)
    with BranchRunner(ALFWorldPlanner, trained.recipe) as runner:
        rows, _ = collect(trained.walks(0), runner, 12, oracle="planner", policy="run@1", seed=0)
    return kept_bank(tmp_path_factory.mktemp("bank") / "bank", trained.recipe, rows, trained.digest)


@pytest.fixture(scope="module")
def short(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """Branches of one step: the policy gave up before the last command of a walkthrough."""
    recipe = load_policy_of(run, None).recipe
    env: Any = recipe()
    rows = []
    for number, task in enumerate(env.unwrapped.games.task_ids("train")):
        seen, info = env.reset(seed=0, options={"task_id": task})
        plan = list(env.unwrapped.games.walkthrough(task))
        history = []
        for command in plan[:-1]:
            before = seen
            seen, _, _, _, info = env.step(command)
            history.append(HistoryItem(before, command, True))
        here = RootRecord(seen, info["admissible_actions"])
        request = BranchRequest(agent_envs.snapshot(env), tuple(history), here)
        with BranchRunner(ALFWorldPlanner, recipe) as runner:
            (branch,) = runner.run([request])
        own = PolicyEnd(("look",), (0.0,), success=False, score=0.0)
        rows.append(BankRow(branch, here, own, "planner", "p", 0, number))
    assert {len(row.branch.steps) for row in rows} == {1}
    return kept_bank(tmp_path_factory.mktemp("short") / "bank", recipe, rows)


@pytest.fixture(scope="module")
def all_rules(
    bank: Bank, run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("all") / "replay"
    return folder, report_of(bank, run, folder)
