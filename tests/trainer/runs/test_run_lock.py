"""A run folder belongs to one process at a time, and what keeps it from being written is said."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

from tests.trainer.short_runs import run_config, untimed
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.runs.folder import RunFolderError
from trainer.runs.lock import held, writable

HOLD = """
import sys
from pathlib import Path
from trainer.runs.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def _holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that trains in the folder, as far as the folder is concerned."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    whole = train(config, tmp_path / "whole")
    run = tmp_path / "a run"
    run.mkdir()
    with _holder(run) as other:
        with pytest.raises(RunFolderError, match=rf"in use by process {other.pid} on"):
            train(config, run)
        assert [path.name for path in run.iterdir()] == [".lock"]
        other.kill()  # a lock is gone with its process
    train(config, run, until=1)
    before = sorted(path for path in run.rglob("*"))
    with _holder(run) as other:
        # Its half-written checkpoint: a second run would clear it as one that was left behind.
        stray = run / "checkpoints" / ".000002.abcdefgh"
        stray.mkdir()
        with pytest.raises(RunFolderError, match="in use by process"):
            train(config, run, resume=True)
        assert stray.exists()
        apart = (stray, run / ".lock")
        assert sorted(path for path in run.rglob("*") if path not in apart) == before
        other.kill()
    train(config, run, resume=True)
    assert not stray.exists()
    assert untimed(read_metrics(run / "metrics.jsonl")) == untimed(whole.metrics)
    assert not (run / ".lock").exists()


def test_a_child_of_a_killed_run_does_not_keep_the_folder(tmp_path: Path) -> None:
    """Workers may outlive their run by a moment."""
    with held(tmp_path):
        end, kept = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(kept)
            os.read(end, 1)
            os._exit(0)
        os.close(end)
    try:
        with _holder(tmp_path) as other:
            other.kill()
    finally:
        os.close(kept)
        os.waitpid(child, 0)


def test_a_full_disk_is_said_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    whole = train(config, tmp_path / "whole")
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").symlink_to("/dev/full")  # every write fails as on a full disk
    with pytest.raises(RunFolderError, match=r"cannot be written: No space left") as caught:
        train(config, run)
    assert "--resume" in str(caught.value)
    (run / "metrics.jsonl").unlink()
    train(config, run, resume=True)
    assert untimed(read_metrics(run / "metrics.jsonl")) == untimed(whole.metrics)


def test_weights_that_do_not_fit_are_said_and_leave_the_checkpoints(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__checkpoint_every=1)
    run = tmp_path / "run"
    train(config, run, until=1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(RunFolderError, match=r"cannot be written: File too large"):
            train(config, run, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["000001"]
    assert train(config, run, resume=True).iterations == 2


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match=r"file cannot be written: File exists"):
        train(config, tmp_path / "file")
    with pytest.raises(RunFolderError, match=r"cannot be written: Not a directory"):
        train(config, tmp_path / "file" / "run")


def test_only_what_concerns_the_folder_is_told_of_it(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), writable(tmp_path / "run"):
        raise PermissionError(errno.EACCES, "no", str(tmp_path / "games"))
    with pytest.raises(ConnectionRefusedError), writable(tmp_path / "run"):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "no")
    with pytest.raises(RunFolderError, match=r"Permission denied"), writable(tmp_path / "run"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "run/x"))
    with pytest.raises(SafetensorError, match="header"), writable(tmp_path / "run"):
        raise SafetensorError("invalid header")


def test_a_resume_with_another_config_says_what_differs(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    train(config, tmp_path / "run", until=1)
    other = config.replace(**{"optim.lr": 0.5, "rollout.tasks": 3, "run.keep": "last"})
    with pytest.raises(RunFolderError) as caught:
        train(other, tmp_path / "run", resume=True)
    told = str(caught.value).partition("Only")[0]
    assert "optim.lr=0.01, now 0.5" in told
    assert "rollout.tasks=2, now 3" in told
    assert "run.keep" not in told
