"""A small real `TextEnv` for tests: rooms in a row, a lamp to light, and dice that use the RNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from agent_envs.core import TextEnv
from agent_envs.errors import SnapshotMismatch, TaskNotFound

ENV_ID = "TestLamp-v0"


class LampEnv(TextEnv):
    """Walk to the room of the lamp and switch it on. The task id ends in the lamp's room.

    ``roll`` draws from the env's generator and shows the sum of all rolls, so any slip of the
    generator's state is visible in the text. The first observation is drawn as well.
    """

    env_id = ENV_ID

    def __init__(
        self,
        n_tasks: int = 12,
        n_rooms: int = 6,
        revision: str = "lamp-1",
        max_steps: int | None = 50,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_steps=max_steps, render_mode=render_mode)
        self._n_rooms = n_rooms
        self._ids = tuple(f"house{i}/lamp{i % n_rooms}" for i in range(n_tasks))
        self._revision = revision
        self._lamp = 0
        self._state = (0, 0, False)  # room, sum of rolls, lit

    def _task_ids(self) -> Sequence[str]:
        return self._ids

    def _load(self, task_id: str) -> None:
        if task_id not in self._ids:
            raise TaskNotFound.among(task_id, self._ids, self.env_id)
        self._lamp = int(task_id.rpartition("lamp")[2])

    def _begin(self) -> str:
        self._state = (int(self.np_random.integers(self._n_rooms)), 0, False)
        return f"Welcome! ‘Café™’\tYou are in room {self._state[0]}.\n"

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        room, total, lit = self._state
        if command not in self._admissible():
            return "Nothing happens.", 0.0, None, self._score, False
        if command == "light the lamp":
            self._state = (room, total, True)
            return "The lamp is on.", 1.0, "success", 1.0, True
        if command == "roll":
            total += int(self.np_random.integers(1, 7))
            self._state = (room, total, lit)
            return f"The dice make {total} so far.", 0.25, None, 0.0, True
        room += 1 if command == "go east" else -1
        self._state = (room, total, lit)
        return f"You are in room {room}.", 0.0, None, 0.5 if room == self._lamp else 0.0, True

    def _admissible(self) -> tuple[str, ...]:
        room = self._state[0]
        ways = ("go east",) * (room < self._n_rooms - 1) + ("go west",) * (room > 0)
        return (*ways, *(("light the lamp",) if room == self._lamp else ()), "roll")

    def _engine_state(self) -> tuple[Any, ...]:
        return self._state

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        if len(state) != 3 or [type(x) for x in state] != [int, int, bool]:
            raise SnapshotMismatch(f"{state!r} is no state of {task_id}.")
        if not 0 <= state[0] < self._n_rooms or state[1] < 0:
            raise SnapshotMismatch(f"{state!r} is not possible in {task_id}.")
        self._load(task_id)
        self._state = state

    def _info_static(self) -> Mapping[str, Any]:
        return {
            "task_type": "lamp",
            "split": "train",
            "goal": f"light the lamp in room {self._lamp}.",
            "action_templates": (),
            "provenance": {"engine": "lamp", "data_revision": self._revision},
        }

    @property
    def data_revision(self) -> str:
        return self._revision


if ENV_ID not in gymnasium.registry:
    gymnasium.register(ENV_ID, entry_point=f"{__name__}:LampEnv")
