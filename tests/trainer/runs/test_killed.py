"""A run that is killed with SIGKILL at any point goes on to where an unbroken one ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import ROOT, full_count
from tests.trainer import small
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from trainer.config import resolve
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.runs.checkpoint import load_checkpoint
from trainer.runs.folder import RunFolder
from trainer.runs.resume import clear_strays

# Three iterations, a checkpoint after each, an evaluation after every second one, and only the
# best and the last checkpoint are kept, so that some are removed on the way.
SETTINGS: dict[str, Any] = {
    "run__iterations": 3,
    "run__checkpoint_every": 1,
    "run__keep": "best+last",
    "eval__every": 2,
    "eval__initial": True,
    "eval__tasks": 2,
    "rollout__rollouts": 2,
    "env__max_steps": 4,
    "auxiliary__sero": {},
    "objective__name": "ppo",
}
QUICK = ["info@1", "save_file@4", "save_rename@9", "eval_write@2", "torn_log@4"]
FULL = [
    *QUICK,
    *(f"start@{n}" for n in (1,)),
    *(f"collect@{n}" for n in (1, 2, 3)),
    *(f"update@{n}" for n in (1, 2, 5)),
    *(f"turns@{n}" for n in (1, 3)),
    *(f"save_file@{n}" for n in (1, 2, 3, 5, 6)),
    *(f"save_json@{n}" for n in (1, 2, 3)),
    *(f"manifest@{n}" for n in (1, 2, 3, 4)),
    *(f"save_sync@{n}" for n in (1, 4, 9, 12, 27)),
    *(f"save_rename@{n}" for n in range(1, 23) if n != 9),
    "remove@1",
    *(f"eval@{n}" for n in (1, 2, 3)),
    *(f"eval_write@{n}" for n in (1, 3)),
    *(f"status@{n}" for n in (1, 2, 4, 5)),
    *(f"log@{n}" for n in (1, 2, 3, 6)),
    *(f"torn_log@{n}" for n in (1, 3)),
]


def _outcome(folder: Path) -> dict[str, Any]:
    """All that two runs of one config have in common, bit for bit."""
    checkpoint = load_checkpoint(max((folder / "checkpoints").glob("*")))
    return {
        "state": checkpoint.state,
        "files": {
            path.name: path.read_bytes() for path in sorted(checkpoint.path.glob("*.safetensors"))
        },
        "checkpoints": sorted(path.name for path in (folder / "checkpoints").iterdir()),
        "metrics": untimed(read_metrics(folder / "metrics.jsonl")),
        "roots": (folder / "roots.jsonl").read_text(),
        "sampled": sampled(folder),
        "eval": {path.name: path.read_text() for path in sorted((folder / "eval").iterdir())},
        "status": json.loads((folder / "status.json").read_text()),
        "strays": sorted(p.name for p in folder.rglob(".*")),
    }


def test_o25_a_run_killed_at_any_point_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    config = run_config(tmp_path, **SETTINGS)
    train(config, tmp_path / "whole")
    expected = _outcome(tmp_path / "whole")
    assert expected["strays"] == []
    assert len(expected["checkpoints"]) in (1, 2)
    points = FULL[: full_count(len(QUICK), len(FULL))]
    assert len(set(points)) == len(points), "a point names a folder, which holds one run"
    (tmp_path / "config.json").write_text(json.dumps(resolve(config)))
    program = subprocess.run(
        [sys.executable, str(ROOT / "tests/trainer/killed_runs.py"), str(tmp_path), *points],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=60 * len(points) + 120,
        check=False,
    )
    assert program.returncode == 0, program.stderr
    lines = [json.loads(line) for line in program.stdout.splitlines()]
    assert [line["point"] for line in lines] == points
    for line in lines:
        point = line["point"]
        assert line["killed"] != 0, f"{point}: the run was over before it was killed"
        assert line["killed"] == -9, f"{point}: the run failed before: {line['killed_said']}"
        assert line["resumed"] == 0, f"{point}: {line['resumed_said']}"
        found = _outcome(tmp_path / point)
        for name, value in expected.items():
            assert found[name] == value, f"{point}: other {name}"
    assert small.same(trained(tmp_path / points[0]), trained(tmp_path / "whole"))


def test_what_a_killed_run_left_half_written_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    strays = [
        ".run.json.a1b2c3d_",
        ".status.json.abcdefgh",
        "checkpoints/.000003.abcdefgh",
        "turns/.000003.parquet.abcdefgh",
        "eval/.000003_valid_seen.json.abcdefgh",
    ]
    kept = [
        "run.json",
        ".git",
        ".gitignore",
        ".notes.json.abcdefgh",
        "checkpoints/000002",
        "checkpoints/.old.abcdefgh",
        "eval/later/.000003_valid_seen.json.abcdefgh",
        "turns/000003.parquet",
    ]
    for name in (*strays, *kept):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if path.parent.name == "checkpoints" or name == ".git":
            (path / "inside").mkdir(parents=True)
        else:
            path.write_text(name)
    clear_strays(RunFolder(tmp_path))
    assert [name for name in strays if (tmp_path / name).exists()] == []
    assert [name for name in kept if not (tmp_path / name).exists()] == []
    clear_strays(RunFolder(tmp_path / "not there"))
