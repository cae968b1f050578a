"""Trackio: its database where the package is there, its calls elsewhere."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import run_python, unavailable
from trainer.config import load_config
from trainer.loggers.base import LoggerError
from trainer.loggers.registry import open_run_log

CONFIG = {"log.to": "trackio", "log.project": "rooms", "run.iterations": "6"}


def test_calls_of_a_run_and_of_its_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Any] = []

    def init(**arguments: Any) -> Any:
        print("* a greeting")
        calls.append(arguments)
        return SimpleNamespace(
            log=lambda numbers, step: calls.append((step, numbers)),
        )

    module = SimpleNamespace(init=init, finish=lambda: calls.append("finish"))
    monkeypatch.setitem(sys.modules, "trackio", module)
    folder = tmp_path / "first"
    for first in (0, 3):
        config = load_config({}, CONFIG)
        with open_run_log(config, folder, tmp_path / "m.jsonl", first=first) as log:
            log.iteration({"iteration": first, "x": 1.5})
    begun, resumed = calls[0], calls[3]
    assert calls[1:3] == [(1, {"iteration": 0, "x": 1.5}), "finish"]
    assert begun["project"] == "rooms"
    assert begun["name"] == resumed["name"] != "first"
    assert begun["name"].startswith("first-")
    assert (begun["resume"], resumed["resume"]) == ("never", "allow")
    assert begun["config"]["run"]["iterations"] == 6
    assert capsys.readouterr().out == ""


def test_a_client_that_does_not_start_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**arguments: Any) -> Any:
        raise OSError("read-only")

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    with pytest.raises(LoggerError, match=r"read-only.*TRACKIO_DIR"):
        open_run_log(load_config({}, CONFIG), tmp_path, tmp_path / "m.jsonl")


_RUN = """
import sys
from pathlib import Path
from trainer.config import load_config
from trainer.loggers.registry import open_run_log
folder = Path(sys.argv[1])
config = load_config({}, {"log.to": "trackio", "log.project": "rooms", "run.iterations": "6"})
for first, last in ((0, 2), (2, 4)):
    with open_run_log(config, folder, folder / "m.jsonl", first=first) as log:
        for i in range(first, last):
            log.iteration({"iteration": i, "loss/policy": 0.5 + i})
        assert len(log.trackers) == 1
from trackio.sqlite_storage import SQLiteStorage
import json
(record,) = SQLiteStorage.get_run_records("rooms")
logs = SQLiteStorage.get_logs("rooms", record["name"])
print(json.dumps([[row["step"], row["loss/policy"]] for row in logs]))
"""


def test_the_real_package_keeps_the_numbers(tmp_path: Path) -> None:
    if importlib.util.find_spec("trackio") is None:
        unavailable("trackio", "the package is not installed")
    environment = {"TRACKIO_DIR": str(tmp_path / "t"), "HF_HUB_OFFLINE": "1"}
    told = run_python(_RUN, str(tmp_path / "first"), env=environment).splitlines()
    assert len(told) == 1, "standard output is the command's own"
    assert json.loads(told[0]) == [[1, 0.5], [2, 1.5], [3, 2.5], [4, 3.5]]
