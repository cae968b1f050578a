"""An oracle that plays given commands: walkthroughs, recorded episodes, people's trajectories.

What is played, and in which task, are values of the caller; `oracles.recordings` reads them from
files and games.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from oracles.base import Decision, History, PlanStatus

TaskOf = Callable[[Any], str | None]
"""Privileged view -> task id; None for a task that it does not know."""
OnDeviation = Literal["stop", "restart"]


@dataclass(frozen=True, slots=True)
class ScriptState:
    """How far a script is played."""

    script: tuple[str, ...]
    place: int
    """Of the next command."""
    problem: str = ""
    """Why it cannot be played."""


class ScriptedOracle:
    """Plays the script of the episode's task from where the student's history has got to.

    The history has to be a beginning of the script, command by command as they are spelt. A
    refused command changes nothing and is passed over, unless the script has the same one there.
    It is privileged: the view tells which task is played, and a script knows how it is solved.

    FOUND does not promise that the script reaches the goal. OVER_BUDGET: more commands are left
    than steps. UNSUPPORTED: no script for the task, the script is played to its end, or the student
    has deviated from it.

    Args:
        scripts: task id -> commands.
        task_of: the task of a view.
        on_deviation: what to do where the history is not a beginning of the script. "stop":
            UNSUPPORTED, with the step and both commands. "restart": play the script from its first
            command, from wherever the student is. That may do something else than it did from the
            start; where a command of it is not admissible any more, a branch stops and is invalid.

    Raises:
        ValueError: an unknown `on_deviation`, or a script that is one text.
    """

    privileged = True

    def __init__(
        self,
        scripts: Mapping[str, Sequence[str]],
        task_of: TaskOf,
        *,
        on_deviation: OnDeviation = "stop",
    ) -> None:
        if on_deviation not in ("stop", "restart"):
            raise ValueError(f"on_deviation must be 'stop' or 'restart', found {on_deviation!r}")
        for task_id, script in scripts.items():
            if isinstance(script, str):
                raise ValueError(f"the script of {task_id!r} is a text; give a list of commands")
        self.scripts = {task_id: tuple(script) for task_id, script in scripts.items()}
        self.task_of = task_of
        self.on_deviation = on_deviation

    def start(self, view: Any, history: History) -> ScriptState:
        """Find the script and the place in it."""
        task_id = self.task_of(view)
        script = None if task_id is None else self.scripts.get(task_id)
        if script is None:
            what = "this task" if task_id is None else f"task {task_id!r}"
            return ScriptState((), 0, f"there is no script for {what}")
        place = 0
        for step, item in enumerate(history):
            if place < len(script) and item.action == script[place]:
                place += 1
            elif item.command_valid:
                if self.on_deviation == "restart":
                    return ScriptState(script, 0)
                expected = repr(script[place]) if place < len(script) else "nothing more"
                return ScriptState(
                    script,
                    place,
                    f"step {step} of the history is {item.action!r}, the script has {expected}",
                )
        return ScriptState(script, place)

    def act(self, state: ScriptState, view: Any, observation: str) -> tuple[Decision, ScriptState]:
        """The next command of the script."""
        script, place = state.script, state.place
        if state.problem:
            return Decision(PlanStatus.UNSUPPORTED, None, state.problem), state
        if place >= len(script):
            detail = f"all {len(script)} commands of the script are played"
            return Decision(PlanStatus.UNSUPPORTED, None, detail), state
        following = ScriptState(script, place + 1)
        left, steps = len(script) - place, getattr(view, "steps_left", None)
        if steps is not None and left > steps:
            detail = f"the script has {left} commands left, {steps} may be taken"
            return Decision(PlanStatus.OVER_BUDGET, script[place], detail), following
        return Decision(PlanStatus.FOUND, script[place]), following
