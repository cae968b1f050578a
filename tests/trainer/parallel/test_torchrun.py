"""The command as it is documented, started by torchrun."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.short_runs import run_config
from trainer import loop
from trainer.config import resolve


@pytest.mark.skipif(
    "trainer_type" not in inspect.signature(loop.train).parameters,
    reason="this version of the loop makes one kind of trainer",
)
def test_torchrun_starts_the_command(tmp_path: Path) -> None:
    import yaml

    config = run_config(tmp_path, run__iterations=1, parallel__mode="ddp")
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(resolve(config)))
    out = tmp_path / "run"
    words = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "trainer.cli.main", "train", str(file), "--out", str(out), "--json",
    ]  # fmt: skip
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert (figures["run"], figures["iterations"]) == (str(out), 1)
    assert done.stdout.count('"iterations"') == 1
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
    assert not list(scratch.glob("sero-rank-*"))
