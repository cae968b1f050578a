"""Somebody's own game with its own oracle, made ready for `sero bench oracle`.

`Jugs` stands for any game that can only be started and told commands: it cannot save its state.
`JugsEnv` puts it behind the environment contract (docs/environments.md). Its snapshots are the
commands so far, and a restore plays them again.

    sero bench oracle --env examples.third_party_env:make --policy random \
        --oracle examples.third_party_env:Oracle --roots 64
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agent_envs import SnapshotMismatch, TaskNotFound, TextEnv
from oracles.base import Decision, History, PlanStatus

VERBS = ("fill", "empty", "pour out of")
COMMANDS = tuple(f"{verb} the {jug} jug" for jug in ("small", "large") for verb in VERBS)
NUMBERS = ((3, 5, 4), (2, 5, 1), (3, 7, 5), (4, 7, 6), (3, 8, 7), (5, 8, 2), (5, 9, 3))
PUZZLES = {f"jugs-{small}-{large}-{wanted}": (small, large, wanted)
           for small, large, wanted in NUMBERS}  # fmt: skip


class View(NamedTuple):
    """The true state: water and room of the small and of the large jug, and what is wanted."""

    water: tuple[int, int]
    room: tuple[int, int]
    wanted: int


def after(view: View, command: str) -> View:
    """The state after one of `COMMANDS`."""
    jug, verb = divmod(COMMANDS.index(command), 3)
    water, other = list(view.water), 1 - jug
    moved = min(water[jug], view.room[other] - water[other]) if verb == 2 else 0
    water[jug] = (view.room[jug], 0, water[jug] - moved)[verb]
    water[other] += moved
    return view._replace(water=(water[0], water[1]))


class Jugs:
    """The game: get `wanted` litres into one of two jugs."""

    def __init__(self, small: int, large: int, wanted: int) -> None:
        self.view = View((0, 0), (small, large), wanted)

    def tell(self, command: str) -> str:
        self.view = after(self.view, command)
        return "The small jug holds {} litres, the large one {}.".format(*self.view.water)


class JugsEnv(TextEnv):
    """`Jugs` behind the contract; a subclass of `TextEnv` brings the hooks below."""

    data_revision = "jugs-1"

    def __init__(self, max_steps: int | None = 14) -> None:
        super().__init__(max_steps=max_steps)
        self._game = Jugs(1, 1, 1)
        self._told: tuple[str, ...] = ()

    def privileged(self) -> View:
        return self._game.view

    def _task_ids(self) -> Sequence[str]:
        return tuple(PUZZLES)

    def _load(self, task_id: str) -> None:
        if task_id not in PUZZLES:
            raise TaskNotFound.among(task_id, PUZZLES, self.env_id)

    def _begin(self) -> str:
        assert self._task_id is not None
        self._game, self._told = Jugs(*PUZZLES[self._task_id]), ()
        small, large = self._game.view.room
        return f"Here are two empty jugs, for {small} and for {large} litres, and a tap."

    def _apply(self, command: str) -> tuple[str, float, str | None, float, bool]:
        if command not in COMMANDS:
            return "You cannot do that.", 0.0, None, 0.0, False
        text, self._told = self._game.tell(command), (*self._told, command)
        won = self._game.view.wanted in self._game.view.water
        return text, float(won), "success" if won else None, float(won), True

    def _admissible(self) -> tuple[str, ...]:
        return COMMANDS

    def _engine_state(self) -> tuple[Any, ...]:
        return (self._told,)

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        self._load(task_id)
        if len(state) != 1 or type(state[0]) is not tuple or not set(state[0]) <= set(COMMANDS):
            raise SnapshotMismatch(f"{state!r} does not hold commands of the jugs.")
        game = Jugs(*PUZZLES[task_id])
        for command in state[0]:
            game.tell(command)
        self._game, self._told = game, state[0]

    def _info_static(self) -> Mapping[str, Any]:
        return {
            "task_type": "jugs",
            "split": "train",
            "goal": f"Get {self._game.view.wanted} litres into one of the jugs.",
            "action_templates": (),
            "provenance": {"engine": "jugs", "data_revision": self.data_revision},
        }


def make() -> JugsEnv:
    """A new environment."""
    return JugsEnv()


class Oracle:
    """The first command of a shortest way, found by trying all of them."""

    privileged = True

    def start(self, view: View, history: History) -> None:
        return None

    def act(self, state: None, view: View, observation: str) -> tuple[Decision, None]:
        ways: deque[tuple[View, str | None]] = deque([(view, None)])
        seen = {view}
        while ways:
            here, first = ways.popleft()
            for command in COMMANDS:
                there = after(here, command)
                if there.wanted in there.water:
                    return Decision(PlanStatus.FOUND, first or command), None
                if there not in seen:
                    seen.add(there)
                    ways.append((there, first or command))
        return Decision(PlanStatus.UNSOLVABLE, None, "no way leads there"), None
