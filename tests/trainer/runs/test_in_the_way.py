"""What keeps a run from its files is said by name, with what the folder holds."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.trainer.short_runs import run_config
from trainer.loop import train
from trainer.report.run import read_evaluations, read_run
from trainer.runs.folder import RunFolder, RunFolderError
from trainer.runs.lock import writable

FILES = ("metrics.jsonl", "roots.jsonl", "status.json", "report.html", "run.json", "warmstart.json")


@pytest.mark.parametrize("name", FILES)
def test_a_folder_with_the_name_of_a_file_is_refused_before_any_work(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "run" / name).mkdir(parents=True)
    with pytest.raises(RunFolderError, match=rf"Is a directory \(.*/{name}\)") as caught:
        train(run_config(tmp_path), tmp_path / "run")
    assert "Move what is in the way" in str(caught.value)
    assert not (tmp_path / "run/initial").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json"])
def test_so_it_is_when_a_run_goes_on(name: str, tmp_path: Path) -> None:
    config = run_config(tmp_path, run__checkpoint_every=1)
    train(config, tmp_path / "run", until=1)
    kept = (tmp_path / "run" / name).read_bytes()
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).mkdir()
    words = r"Its checkpoints are whole, the last is of iteration 1\..*--resume"
    with pytest.raises(RunFolderError, match=words):
        train(config, tmp_path / "run", resume=True)
    (tmp_path / "run" / name).rmdir()
    (tmp_path / "run" / name).write_bytes(kept)
    assert train(config, tmp_path / "run", resume=True).iterations == 2


def test_a_place_of_an_evaluation_that_is_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "run/eval/000002_valid_seen.json").mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"cannot be written: .*000002_valid_seen\.json"):
        train(run_config(tmp_path), tmp_path / "run")


def _refusal(folder: Path, number: int = errno.EACCES) -> str:
    with pytest.raises(RunFolderError) as caught, writable(folder):
        raise OSError(number, "no", str(folder / "x"))
    return str(caught.value)


def test_what_the_folder_holds_is_told_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert "Nothing was trained there." in _refusal(folder)
    assert "--resume" not in _refusal(folder)
    folder.mkdir()
    assert "checkpoints" not in _refusal(folder)
    (folder / "run.json").write_text("{}")
    assert "holds no checkpoint yet." in _refusal(folder)
    assert "begin again there (--resume)" in _refusal(folder)
    (folder / "checkpoints/000004").mkdir(parents=True)
    assert "Its checkpoints are whole, the last is of iteration 4." in _refusal(folder)
    assert "Make room" in _refusal(folder, errno.ENOSPC)
    assert "Move what is in the way" in _refusal(folder, errno.EISDIR)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(RunFolderError, match=r"run\.json cannot be read: Is a directory"):
        RunFolder(tmp_path).read_config()
    (tmp_path / "run.json").rmdir()
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(RunFolderError, match=r"run\.json is corrupt"):
        RunFolder(tmp_path).read_config()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"iteration": 0}', "\x00"])
def test_a_damaged_evaluation_is_named(text: str, tmp_path: Path) -> None:
    train(run_config(tmp_path), tmp_path / "run")
    (file,) = (tmp_path / "run/eval").glob("*.json")
    assert len(read_evaluations(RunFolder(tmp_path / "run"))) == 1
    file.write_text(text)
    with pytest.raises(RunFolderError, match=rf"{file.name} cannot be read as an evaluation"):
        read_run(tmp_path / "run", title="", lead="")
    file.unlink()
    assert read_run(tmp_path / "run", title="", lead="").evaluations == []
