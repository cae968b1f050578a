"""The sweep: real training with several weights from one checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import short_runs as runs
from tests.trainer import small
from tests.trainer.oracle_bench import bench_world
from trainer.config import ConfigError, SeroConfig
from trainer.loop import train
from trainer.metrics import wilson
from trainer.models.tiny import load_policy
from trainer.oracle_bench.scale import base_config
from trainer.oracle_bench.sweep import ARM_WEIGHTS, arm_config, arm_folder, sweep
from trainer.runs.folder import RunFolder, RunFolderError

SECTION = SeroConfig()
FEW: dict[str, Any] = {"eval.splits": ["valid_seen", "valid_unseen"], "eval.tasks": 3}


def _sweep(run: Path, out: Path, told: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "section": SECTION,
        "iterations": 2,
        "weights": (0.0, 0.5),
        "overrides": FEW,
        "on_iteration": lambda w, s, m: None if told is None else told.append((w, s)),
        **changes,
    }
    return sweep(run, out, **arguments)


def test_every_weight_is_trained_from_the_checkpoint_and_evaluated(
    home_run: Path, tmp_path: Path
) -> None:
    out, told = tmp_path / "sweep", []
    found = _sweep(home_run, out, told, seeds=(0, 1), iterations=1)
    assert told == [(0.0, 0), (0.0, 1), (0.5, 0), (0.5, 1)]
    assert (found["iterations"], found["seeds"]) == (1, [0, 1])
    assert found["checkpoint"] == "run@1"
    assert [(row["weight"], row["split"]) for row in found["rows"]] == [
        (w, split) for w in (0.0, 0.5) for split in FEW["eval.splits"]
    ]
    for row in found["rows"]:
        results = [
            json.loads(
                RunFolder(arm_folder(out, row["weight"], seed))
                .evaluation(1, row["split"])
                .read_text()
            )
            for seed in (0, 1)
        ]
        wins = sum(r["wins"] for r in results)
        assert (row["n"], row["wins"], row["success"]) == (6, wins, wins / 6)
        assert (row["low"], row["high"]) == wilson(wins, 6)
    start = small.weights(bench_world.opened(home_run).model)
    for weight in (0.0, 0.5):
        folder = arm_folder(out, weight, 0)
        assert small.same(start, small.weights(load_policy(RunFolder(folder).initial)[0]))
        assert not small.same(start, runs.trained(folder))
        assert RunFolder(folder).roots.exists() == (weight > 0)
    bare, aided = (runs.trained(arm_folder(out, w, 0)) for w in (0.0, 0.5))
    assert not small.same(bare, aided)
    json.dumps(found, allow_nan=False)

    # Nothing is left to do: the same answer, and no iteration.
    told.clear()
    assert _sweep(home_run, out, told, seeds=(0, 1), iterations=1) == found
    assert told == []


def test_a_sweep_goes_on_where_it_was_broken_off(home_run: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = _sweep(home_run, whole)
    made_with = RunFolder(arm_folder(whole, 0.5, 0)).read_config()
    # One arm is half way, the other was killed before its first checkpoint.
    train(made_with, arm_folder(broken, 0.5, 0), until=1)
    bare = RunFolder(arm_folder(broken, 0.0, 0))
    bare.path.mkdir(parents=True)
    bare.info.write_text(RunFolder(arm_folder(whole, 0.0, 0)).info.read_text())
    told: list[Any] = []
    assert _sweep(home_run, broken, told) == expected
    assert told == [(0.0, 0), (0.0, 0), (0.5, 0)]
    for weight in (0.0, 0.5):
        left, right = (runs.trained(arm_folder(out, weight, 0)) for out in (whole, broken))
        assert small.same(left, right)
    # More iterations go on as well; other settings are another sweep.
    told.clear()
    _sweep(home_run, broken, told, iterations=3, weights=(0.0,))
    assert told == [(0.0, 0)]
    with pytest.raises(RunFolderError, match="other settings"):
        _sweep(home_run, broken, overrides={**FEW, "optim.lr": 1e-5})


def test_weight_zero_has_no_oracle_and_is_the_base_alone(home_run: Path) -> None:
    made_with = RunFolder(home_run).read_config()
    sero = made_with.replace(**{"auxiliary.sero.weight": 0.2, "auxiliary.format_only.weight": 0.1})
    base = base_config(sero, "train")
    assert arm_config(base, SECTION, 0.0, 7) == base.replace(**{"run.seed": 7})
    arm = arm_config(base, SeroConfig(w_min=0.01, weight=3.0), 0.05, 7)
    assert [name for name, _ in arm.auxiliary.active()] == ["sero"]
    assert arm.auxiliary.sero == SeroConfig(w_min=0.01, weight=0.05)
    assert (arm.run.seed, arm.objective) == (7, base.objective)
    assert ARM_WEIGHTS == (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


def test_a_shop_is_swept_on_its_own_splits(shop_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    few = {"eval.tasks": 2}
    found = _sweep(shop_run, out, iterations=1, weights=(0.1,), overrides=few)
    assert [(row["split"], row["n"]) for row in found["rows"]] == [("val", 2), ("test", 2)]
    assert RunFolder(arm_folder(out, 0.1, 0)).roots.exists()


@pytest.mark.parametrize("changes", [{"iterations": 0}, {"seeds": ()}, {"weights": ()}])
def test_a_sweep_of_nothing_is_refused(
    home_run: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="needs an iteration, a seed and a weight"):
        _sweep(home_run, tmp_path / "sweep", **changes)
    assert not (tmp_path / "sweep").exists()
