"""A run that an error ends says so, and says the same when it is resumed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.lamp_world import OpenLampEnv
from tests.trainer.worlds.test_user_env import _config
from trainer.config import Config
from trainer.loop import train
from trainer.report.data import how_it_ended
from trainer.report.run import read_run
from trainer.runs.status import read_status
from trainer.worlds.named import NamedError

PLACES = "tests.trainer.runs.test_failed"


class Spoilt(OpenLampEnv):
    """A lamp that goes wrong at the second step of its second task."""

    def __init__(self, max_steps: int | None = 50) -> None:
        super().__init__(n_tasks=2, max_steps=max_steps)

    def wrong(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        return answer

    def _apply(self, command: str) -> Any:
        answer = super()._apply(command)
        bad = self._task_id == "house1/lamp1" and self._taken == 1
        return self.wrong(answer) if bad else answer


class NanReward(Spoilt):
    def wrong(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        return (answer[0], math.nan, *answer[2:])


class HalfPair(Spoilt):
    def wrong(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        return ("bad \ud800 text", *answer[1:])


class Exits(Spoilt):
    def wrong(self, answer: tuple[Any, ...]) -> tuple[Any, ...]:
        raise SystemExit(0)


class BadGoal(OpenLampEnv):
    def __init__(self, max_steps: int | None = 50) -> None:
        super().__init__(n_tasks=2, max_steps=max_steps)

    def _info_static(self) -> Any:
        return {**super()._info_static(), "goal": "\udfff"}


CASES = {
    "NanReward": "a reward that is no finite number: found nan",
    "HalfPair": r"an observation that is no text: .* half of a surrogate pair",
    "Exits": "SystemExit: 0",
}


def _run_config(tmp_path: Path, name: str, pool: str) -> Config:
    more: dict[str, Any] = {"eval.splits": [], "rollout.tasks": 2, "env.pool": pool}
    if pool == "process":
        more["env.workers"] = 1
    return _config(tmp_path, f"{PLACES}:{name}", **more)


@pytest.mark.parametrize("pool", ["serial", "process"])
@pytest.mark.parametrize("name", CASES)
def test_it_names_environment_task_and_step(name: str, pool: str, tmp_path: Path) -> None:
    config = _run_config(tmp_path, name, pool)
    words = rf"^env\.id={PLACES}:{name}: step .*{CASES[name]}"
    place = r".* It was in task 'house1/lamp1', step 2\.(\n|$)"
    told = []
    for again in (False, True) if pool == "serial" else (False,):
        with pytest.raises(NamedError, match=words + place) as found:
            train(config, tmp_path / "run", resume=again)
        told.append(str(found.value))
        assert json.loads((tmp_path / "run/status.json").read_text())["stop"] == "failed"
    assert len(set(told)) == 1


def test_text_that_cannot_be_written_is_refused_when_tasks_are_opened(tmp_path: Path) -> None:
    with pytest.raises(NamedError, match=r"info\['goal'\] that is no text.*in task 'house0/lamp0'"):
        train(_run_config(tmp_path, "BadGoal", "serial"), tmp_path / "run")


def test_any_error_marks_the_run_until_it_goes_on(tmp_path: Path) -> None:
    config = _config(tmp_path, "tests.trainer.lamp_world:OpenLampEnv", **{"eval.splits": []})

    def fails(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "run", on_iteration=fails)
    report = read_run(tmp_path / "run", title="", lead="")
    assert report.stop.startswith("broken off after 1 of 2 iterations: an error")
    folder = train(config, tmp_path / "run", resume=True).folder
    assert (read_status(folder) or {})["stop"] == "finished"


def test_how_it_ended_tells_an_interrupt_from_an_error() -> None:
    assert how_it_ended(1, 4, "interrupted") == "interrupted after 1 of 4 iterations"
    assert how_it_ended(1, 4, "failed").startswith("broken off after 1 of 4 iterations")
