"""A run on somebody's own environment (`env.id: module:name`) as the policy of a bank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oracles.bank import BankError, header_of, read_bank, verify_bank, write_bank
from oracles.bench import measure
from oracles.branches import BranchRunner
from oracles.walks import collect
from tests.trainer.short_runs import run_config
from trainer.banks.replay import open_replay, replay_all
from trainer.banks.replay_settings import ReplaySettings
from trainer.config import Config, from_dict
from trainer.loop import train
from trainer.worlds.sources import resolve

USER_ENV = "tests.trainer.worlds.test_user_env"
REPLAY: dict[str, Any] = {"rules": ("sero",), "roots": 3, "iterations": 1}


def _config(tmp_path: Path, name: str) -> Config:
    settings = {
        "env": {"id": f"{USER_ENV}:{name}", "max_steps": 8},
        "rollout": {"tasks": 2, "rollouts": 3, "max_new_tokens": 24},
        "model": {"path": run_config(tmp_path).model.path},
        "eval": {"initial": False, "tasks": 2, "splits": ["dark"]},
        "run": {"iterations": 1},
        "auxiliary": {"sero": {"oracle": f"{USER_ENV}:walker"}},
    }
    return from_dict(settings)


@pytest.mark.parametrize("name", ["SplitLamp", "MarkedLamp"])
def test_a_run_on_an_own_environment_has_a_bank(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    run = tmp_path / "run"
    train(_config(tmp_path, name), run)
    given: dict[str, Any] = {"env": None, "policy": str(run), "oracle": f"{USER_ENV}:walker"}
    source = resolve(seed=0, **given)
    assert source.recipe().unwrapped.__class__.__name__ == name
    with BranchRunner(source.make_oracle, source.recipe) as runner:
        rows, _ = collect(
            source.played, runner, 4, oracle=source.oracle, policy=source.policy, seed=0
        )
    header = header_of(
        source.recipe(), source.recipe, oracle="o", policy="p", seed=0,
        provenance=source.provenance,
    )  # fmt: skip
    path = tmp_path / "bank.parquet"
    write_bank(path, header, rows)
    assert verify_bank(path, source.recipe).ok
    bank = read_bank(path)
    report = replay_all(open_replay(bank, run, ReplaySettings(**REPLAY)), bank, tmp_path / "out")
    assert report["rules"]["sero"]["iterations"] == 1
    measured = measure(
        source.recipe, resolve(seed=0, **given).played, source.make_oracle,
        roots=2, seed=0, from_reset=2,
    )  # fmt: skip
    assert measured.restore.share == 1.0

    # the same for the split that is evaluated
    dark = resolve(seed=0, options={"split": "dark"}, **given)
    with BranchRunner(dark.make_oracle, dark.recipe) as runner:
        rows, _ = collect(dark.played, runner, 2, oracle="o", policy="p", seed=0)
    held_out = tmp_path / "dark.parquet"
    write_bank(
        held_out, header_of(dark.recipe(), dark.recipe, oracle="o", policy="p", seed=0), rows
    )
    with pytest.raises(BankError, match="branches of split 'dark', which the run evaluates"):
        open_replay(read_bank(held_out), run, ReplaySettings(**REPLAY))
