"""TensorBoard's own reader finds what was logged; needs the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support import unavailable
from trainer.config import load_config
from trainer.loggers.registry import open_run_log

CONFIG = {"log.to": "tensorboard", "run.iterations": "6"}


def _reader(folder: Path) -> Any:
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        unavailable("tensorboard", str(error))
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return reader


def _values(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in _reader(folder).Scalars(name)]


def _part(folder: Path, first: int, last: int, scale: float) -> None:
    config = load_config({}, CONFIG)
    with open_run_log(config, folder, folder / "metrics.jsonl", first=first) as log:
        for iteration in range(first, last):
            log.iteration({"iteration": iteration, "loss/policy": scale * iteration, "x": None})


def test_numbers_and_the_config_are_read_back(tmp_path: Path) -> None:
    _reader(tmp_path)
    config = load_config({}, CONFIG)
    with open_run_log(config, tmp_path, tmp_path / "metrics.jsonl") as log:
        log.evaluation(0, {"val": {"success": 0.25, "n": 4}})
        log.iteration({"iteration": 0, "loss/policy": 0.5, "x": None})
        # Before it is closed: a run that is killed leaves what it had.
        assert _values(tmp_path / "logs/tensorboard", "loss/policy") == [(1, 0.5)]
    folder = tmp_path / "logs/tensorboard"
    assert _values(folder, "eval/val/success") == [(0, 0.25)]
    reader = _reader(folder)
    assert "x" not in reader.Tags()["scalars"]
    (event,) = reader.Tensors("config/text_summary")
    (text,) = event.tensor_proto.string_val
    assert json.loads(text.decode())["run"]["iterations"] == 6


def test_a_resumed_run_replaces_what_lies_beyond_the_resume_point(tmp_path: Path) -> None:
    _reader(tmp_path)
    _part(tmp_path, 0, 4, 1.0)
    _part(tmp_path, 2, 6, 10.0)
    assert _values(tmp_path / "logs/tensorboard", "loss/policy") == [
        (1, 0.0), (2, 1.0), (3, 20.0), (4, 30.0), (5, 40.0), (6, 50.0),
    ]  # fmt: skip
