"""One-turn tasks on ALFWorld's prompts, whose reward both sides of a comparison can pay.

A task shows what an episode of the household begins with. The first command ends it and is paid
by its text alone: a number that differs between any two replies of a group, so that no group is
without advantages and each side learns from every reply.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agent_envs.alfworld.games import GameSet
from agent_envs.core import TextEnv
from agent_envs.errors import MissingData, SnapshotMismatch, TaskNotFound
from agent_envs.prompting import get_template
from trainer.config.warmstart import WarmstartConfig
from trainer.supervised.demonstrations import demonstrate, demonstration_texts

__all__ = ["OneTurnEnv", "texts_of", "write_tasks"]


def write_tasks(games: GameSet, task_ids: Sequence[str], path: Path) -> None:
    """Writes what the first turns of these games show."""
    import gymnasium

    env = gymnasium.make("SeroALFWorld-v0", data=games, split=None)
    rows = []
    for task_id in task_ids:
        observation, info = env.reset(options={"task_id": task_id})
        rows.append(
            {
                "goal": info["goal"],
                "observation": observation,
                "admissible": list(info["admissible_actions"]),
            }
        )
    env.close()
    path.write_text(json.dumps(rows), encoding="utf-8")


def texts_of(games: GameSet, task_ids: Sequence[str]) -> list[str]:
    """Prompts and replies of demonstrations in these games, for a tokenizer to learn from."""
    import gymnasium

    env = gymnasium.make("SeroALFWorld-v0", data=games, split=None)
    with closing(env):
        shown = [demonstrate(env, task_id, WarmstartConfig()) for task_id in task_ids]
    return list(demonstration_texts(shown, get_template("compact")))


class OneTurnEnv(TextEnv):
    """The tasks of a file that `write_tasks` wrote.

    Args:
        data: path of the file.

    Raises:
        MissingData: no such file is named.
    """

    env_id = "trainer.bench.train_world:OneTurnEnv"

    def __init__(self, data: str | None = None, max_steps: int | None = 1) -> None:
        super().__init__(max_steps=max_steps)
        if data is None:
            raise MissingData(f"{self.env_id} needs env.data: a file of first turns.")
        self._rows = json.loads(Path(data).read_text(encoding="utf-8"))
        self._places = {f"first/{i}": i for i in range(len(self._rows))}
        self._row: Mapping[str, Any] = self._rows[0]

    def _task_ids(self) -> Sequence[str]:
        return tuple(self._places)

    def _load(self, task_id: str) -> None:
        if task_id not in self._places:
            raise TaskNotFound.among(task_id, tuple(self._places), self.env_id)
        self._row = self._rows[self._places[task_id]]

    def _begin(self) -> str:
        return str(self._row["observation"])

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        return "Done.", zlib.crc32(command.encode()) % 1000 / 1000, None, 0.0, True

    def _admissible(self) -> tuple[str, ...]:
        return tuple(self._row["admissible"])

    def _engine_state(self) -> tuple[Any, ...]:
        return ()

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        if state != ():
            raise SnapshotMismatch(f"{state!r} is no state of {task_id}.")
        self._load(task_id)

    def _info_static(self) -> Mapping[str, Any]:
        return {
            "task_type": "first turn",
            "split": "train",
            "goal": self._row["goal"],
            "action_templates": (),
            "provenance": {"engine": "one turn", "data_revision": self.data_revision},
        }

    @property
    def data_revision(self) -> str:
        return "first turns 1"
