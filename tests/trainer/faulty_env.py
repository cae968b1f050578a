"""Somebody's environment with a fault that is chosen while it runs, for tests of what is said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from tests.trainer.lamp_world import OpenLampEnv

FAULT = "SERO_TEST_FAULT"
"""Environment variable with the file that names the fault of this moment."""


def told() -> str:
    """What is to be wrong now."""
    file = Path(os.environ.get(FAULT, ""))
    return file.read_text(encoding="utf-8") if file.is_file() else ""


class Faulty(OpenLampEnv):
    """A lamp with one thing wrong."""

    def __init__(self, max_steps: int | None = 50) -> None:
        super().__init__(n_tasks=2, max_steps=max_steps)

    @property
    def fault(self) -> str:
        return told()

    def _begin(self) -> str:
        if self.fault == "reset raises":
            raise ZeroDivisionError("no dice")
        if self.fault == "reset reads":
            Path("/no such file").read_text(encoding="utf-8")
        text: Any = super()._begin()
        return None if self.fault == "reset text" else text  # type: ignore[return-value]

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        text, reward, end, score, valid = super()._apply(command)
        if self.fault == "step raises":
            raise KeyError("room")
        if self.fault == "step exits":
            raise SystemExit(3)
        wrong: dict[str, Any] = {"nan": float("nan"), "none": None, "str": "1.0", "inf": np.inf}
        kind, _, value = self.fault.partition("=")
        if kind == "reward":
            reward = wrong[value]
        if kind == "score":
            score = wrong[value]
        if self.fault == "step text":
            text = 7  # type: ignore[assignment]
        return text, reward, end, score, valid

    def step(self, action: str) -> Any:
        found = super().step(action)
        if self.fault == "step tuple":
            return found[:4]
        if self.fault == "step list":
            return list(found)
        if self.fault == "step flag":
            return (*found[:2], "no", *found[3:])
        return found

    def _info(self) -> Any:
        info = super()._info()
        if self.fault == "info none":
            return None
        if self.fault == "info score":
            del info["score"], info["goal"]
        if self.fault == "info commands":
            info["admissible_actions"] = [*info["admissible_actions"]]
        return info

    def _info_static(self) -> Mapping[str, Any]:
        goal: dict[str, Any] = {"goal=none": None, "goal=number": 3}
        found = dict(super()._info_static())
        return found | ({"goal": goal[self.fault]} if self.fault in goal else {})

    def _engine_state(self) -> tuple[Any, ...]:
        if self.fault == "snapshot raises":
            raise OSError("no place for it")
        if self.fault == "snapshot list":
            return list(self._state)  # type: ignore[return-value]
        return self._state

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        if self.fault == "restore raises":
            raise IndexError("of a room")
        super()._set_engine_state(task_id, state)


class Wrapped(gymnasium.Wrapper[str, str, str, str]):
    """A wrapper of theirs with a fault of its own."""

    def reset(self, **kwargs: Any) -> Any:
        found = self.env.reset(**kwargs)
        if told() == "wrapper reset":
            raise RuntimeError("wrapped badly")
        return found

    def step(self, action: str) -> Any:
        found = self.env.step(action)
        if told() == "wrapper raises":
            raise RuntimeError("wrapped badly")
        return found[:3] if told() == "wrapper tuple" else found


def wrapped(max_steps: int = 50) -> Any:
    return Wrapped(Faulty(max_steps))
