"""Playing several envs at once and one after another, in comparable form; faulty envs for pools."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from tests.agent_envs.kinds import KINDS, command
from tests.agent_envs.lamp_env import LampEnv

Answer = tuple[Any, float, bool, bool, dict[str, Any]]


def arguments(kind: str, **kwargs: Any) -> dict[str, Any]:
    """The id and the keyword arguments of an env of `kind`."""
    env_id, defaults = KINDS[kind]
    return {"env_id": env_id, **defaults, **kwargs}


def row(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """The info of one sub-env, taken out of the arrays of all."""
    found = {}
    for key, value in infos.items():
        if key.startswith("_") or not infos[f"_{key}"][index]:
            continue
        one = row(value, index) if isinstance(value, dict) else value[index]
        found[key] = one.item() if isinstance(one, np.generic) else one
    return found


def play_singles(kind: str, n: int, steps: int, **kwargs: Any) -> list[list[Answer]]:
    """Each of `n` envs alone: an episode from seed i, again and again on a task of its own."""
    return [play_single(kind, index, steps, **kwargs) for index in range(n)]


def play_single(
    kind: str, index: int, steps: int, *, choose: bool = True, **kwargs: Any
) -> list[Answer]:
    """What env `index` of `play_singles` answers; without `choose` it follows its schedule."""
    chosen = arguments(kind, **kwargs)
    env = gymnasium.make(chosen.pop("env_id"), **chosen)
    ids = env.unwrapped.task_ids
    observation, info = env.reset(seed=index)
    answers: list[Answer] = [(observation, 0.0, False, False, info)]
    for step in range(steps):
        if answers[-1][2] or answers[-1][3]:
            options = {"task_id": ids[(index + step) % len(ids)]} if choose else None
            observation, info = env.reset(options=options)
            answers.append((observation, 0.0, False, False, info))
        else:
            answers.append(env.step(command(info, 3 * index + step)))
            info = answers[-1][4]
    env.close()
    return answers


def play_together(vec: Any, steps: int) -> list[list[Answer]]:
    """The same in a vector env whose sub-envs do not restart by themselves.

    A round moves the sub-envs with a running episode and then restarts the others, so that each
    sub-env does in each round what it does alone in each step.
    """
    n, ids = vec.num_envs, vec.get_attr("task_ids")[0]
    observations, infos = vec.reset(seed=0)
    answers = [[(observations[i], 0.0, False, False, row(infos, i))] for i in range(n)]
    for step in range(steps):
        live = vec.live.copy()
        if live.any():
            actions = [
                command(answers[i][-1][4], 3 * i + step) if live[i] else None for i in range(n)
            ]
            # In a vector env None skips; an action that is no text is refused like any other.
            actions = [7 if a is None and live[i] else a for i, a in enumerate(actions)]
            observations, rewards, terminated, truncated, infos = vec.step(actions)
            for i in np.flatnonzero(live):
                flags = bool(terminated[i]), bool(truncated[i])
                answers[i].append((observations[i], float(rewards[i]), *flags, row(infos, i)))
        if not live.all():
            tasks = [None if live[i] else ids[(i + step) % len(ids)] for i in range(n)]
            options = {"reset_mask": ~live, "task_ids": tasks}
            observations, infos = vec.reset(options=options)
            for i in np.flatnonzero(~live):
                answers[i].append((observations[i], 0.0, False, False, row(infos, i)))
    return answers


class Accident(Exception):
    """An error with a type of its own."""


class TwoPart(Exception):
    """An error that cannot be built again from its message alone."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(f"{one} and {two}")


class Unreadable:
    """Can be sent, and fails where it arrives."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


class FaultyEnv(LampEnv):
    """A lamp env with commands that go wrong. `fault` says what goes wrong at the start."""

    def __init__(self, fault: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.closings = 0
        self.unsendable = lambda: None
        if fault == "raise":
            raise Accident("no lamp oil")
        if fault == "die":
            os._exit(5)
        if fault == "sleep":
            time.sleep(60)

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if command == "die":
            os._exit(7)
        if command == "sleep":
            time.sleep(60)
        if command == "accident":
            raise Accident("the lamp fell", 3)
        if command == "two":
            raise TwoPart("oil", "fire")
        if command == "parse":
            json.loads("{")
        if command == "decode":
            b"\xff".decode()
        if command == "read":
            Path("/no/such/file").read_text()
        return super()._apply(command)

    def get_unreadable(self) -> Any:
        """Something that the other process cannot read."""
        return Unreadable()

    def get_unsendable(self) -> Any:
        """Something that cannot go to another process."""
        return self.unsendable


FAULTY = "TestFaulty-v0"
if FAULTY not in gymnasium.registry:
    gymnasium.register(FAULTY, entry_point=f"{__name__}:FaultyEnv")


class EchoEnv(LampEnv):
    """Answers with the command itself."""

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        return command, 0.0, None, 0.0, True


if "TestEcho-v0" not in gymnasium.registry:
    gymnasium.register("TestEcho-v0", entry_point=f"{__name__}:EchoEnv")
