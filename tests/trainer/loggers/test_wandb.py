"""Weights & Biases: its files without a network where the package is there, its calls elsewhere."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import run_python, unavailable
from trainer.config import load_config
from trainer.loggers.base import LoggerError
from trainer.loggers.registry import open_run_log
from trainer.loggers.wandb import answers

CONFIG = {"log.to": "wandb", "log.project": "rooms", "run.iterations": "6"}


class _Client(SimpleNamespace):
    """Stands in for the module: keeps the arguments of `init` and every call of the run."""

    def __init__(self) -> None:
        super().__init__(calls=[], error=None)

    Settings = staticmethod(dict)

    def init(self, **arguments: Any) -> Any:
        self.calls.append(("init", arguments))
        if self.error is not None:
            raise self.error
        return SimpleNamespace(
            log=lambda numbers, step: self.calls.append(("log", step, numbers)),
            finish=lambda exit_code: self.calls.append(("finish", exit_code)),
        )


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> _Client:
    module = _Client()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return module


def _begun(client: _Client, folder: Path, first: int = 0) -> dict[str, Any]:
    with open_run_log(load_config({}, CONFIG), folder, folder / "m.jsonl", first=first) as log:
        log.iteration({"iteration": first, "loss/policy": 0.5})
    arguments: dict[str, Any] = client.calls[0][1]
    return arguments


def test_calls_of_a_run(client: _Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.loggers.wandb.answers", lambda url: False)
    begun = _begun(client, tmp_path)
    assert (begun["project"], begun["name"], begun["mode"]) == ("rooms", tmp_path.name, "offline")
    assert begun["config"]["run"]["iterations"] == 6
    assert begun["settings"]["console"] == "off"
    assert begun["settings"]["disable_git"] is begun["settings"]["disable_code"] is True
    assert client.calls[1:] == [
        ("log", 1, {"iteration": 0, "loss/policy": 0.5}),
        ("finish", 0),
    ]


@pytest.mark.parametrize(
    ("mode", "up", "expected"),
    [(None, True, "online"), (None, False, "offline"), ("offline", True, "offline"),
     ("online", False, "online"), ("disabled", True, "disabled")],
)  # fmt: skip
def test_the_mode_follows_the_network_unless_it_is_set(
    client: _Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str | None, up: bool,
    expected: str,
) -> None:  # fmt: skip
    asked: list[str] = []
    monkeypatch.setenv("WANDB_BASE_URL", "http://tracker:8080")
    monkeypatch.setattr("trainer.loggers.wandb.answers", lambda url: asked.append(url) or up)
    if mode is not None:
        monkeypatch.setenv("WANDB_MODE", mode)
    assert _begun(client, tmp_path)["mode"] == expected
    assert asked == ([] if mode else ["http://tracker:8080"])


def test_a_resumed_run_is_cut_back_online_and_appended_to_offline(
    client: _Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    number = _begun(client, tmp_path)["id"]
    client.calls.clear()
    resumed = _begun(client, tmp_path, first=3)
    assert resumed["resume_from"] == f"{number}?_step=3"
    assert not {"id", "resume"} & set(resumed)
    client.calls.clear()
    monkeypatch.setenv("WANDB_MODE", "offline")
    resumed = _begun(client, tmp_path, first=3)
    assert (resumed["id"], resumed["resume"]) == (number, "allow")


def test_a_client_that_does_not_start_is_a_typed_error(client: _Client, tmp_path: Path) -> None:
    client.error = RuntimeError("api_key not configured (no-tty)")
    with pytest.raises(LoggerError, match=r"api_key not configured.*WANDB_MODE=offline"):
        _begun(client, tmp_path)


def test_a_run_that_ends_by_an_error_is_marked_failed(client: _Client, tmp_path: Path) -> None:
    config = load_config({}, CONFIG)
    with pytest.raises(ZeroDivisionError), open_run_log(config, tmp_path, tmp_path / "m.jsonl"):
        raise ZeroDivisionError
    assert client.calls[-1] == ("finish", 1)


def test_whether_a_server_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert answers(f"http://127.0.0.1:{port}/api")
    assert not answers(f"http://127.0.0.1:{port}/api", patience_s=0.5)
    assert not answers("no url")


_RUN = """
import sys
from pathlib import Path
from trainer.config import load_config
from trainer.loggers.registry import open_run_log
folder = Path(sys.argv[1])
config = load_config({}, {"log.to": "wandb", "run.iterations": "6"})
for first, last in ((0, 3), (2, 4)):
    with open_run_log(config, folder, folder / "m.jsonl", first=first) as log:
        for i in range(first, last):
            log.iteration({"iteration": i, "loss/policy": 0.5 + i})
        assert len(log.trackers) == 1
"""


def test_the_real_package_writes_files_offline(tmp_path: Path) -> None:
    if importlib.util.find_spec("wandb") is None:
        unavailable("wandb", "the package is not installed")
    told = run_python(_RUN, str(tmp_path), env={"WANDB_MODE": "offline"})
    assert told == "", "standard output is the command's own"
    files = sorted((tmp_path / "logs/wandb").glob("offline-run-*/run-*.wandb"))
    number = (tmp_path / "logs/id").read_text().strip()
    assert [file.name for file in files] == [f"run-{number}.wandb"] * 2
    for file in files:
        data = file.read_bytes()
        assert b"loss/policy" in data
        assert b"j\x01-" in data  # in the place of the host's name
        assert f"j{chr(len(socket.gethostname()))}{socket.gethostname()}".encode() not in data
