"""What an oracle is: decisions and plans with a status, and the protocols that return them.

An oracle proposes commands in a running episode. It is closed loop: it is asked once per step and
sees what the environment answered. Failure kinds are data: "no plan" is a `PlanStatus`, never an
empty tuple or a filler command, and asking never changes the environment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypedDict, TypeVar, runtime_checkable


class PlanStatus(StrEnum):
    """Why an oracle answered as it did."""

    FOUND = "found"
    ALREADY_DONE = "already_done"
    """The goal holds: there is nothing to do."""
    UNSOLVABLE = "unsolvable"
    """Proven: no sequence of commands reaches the goal. The reason is in `detail`."""
    TIMEOUT = "timeout"
    """The search budget ran out. Says nothing about solvability."""
    UNSUPPORTED = "unsupported"
    """Something the oracle does not model; named in `detail`."""
    OVER_BUDGET = "over_budget"
    """A plan exists and is attached whole, but it is longer than the remaining steps."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer of an oracle.

    `action` is the command to run for `PlanStatus.FOUND`, the first command of a plan that is too
    long for `PlanStatus.OVER_BUDGET`, and None for every other status.
    """

    status: PlanStatus
    action: str | None
    detail: str = ""
    thought: str | None = None
    """What an oracle that writes its thoughts says about the command, for a student to learn; so
    it must hold nothing that the student cannot know. None: it has no thoughts."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A sequence of commands; empty unless the status is FOUND or OVER_BUDGET."""

    status: PlanStatus
    actions: tuple[str, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """One step as the student saw it, refused commands included."""

    observation: str
    """The text the student read before it acted."""
    action: str
    command_valid: bool
    """Whether the environment accepted the command."""


History = tuple[HistoryItem, ...]
"""The student's own record from the start of the episode, oldest first."""


class Message(TypedDict):
    """One chat message for a text model."""

    role: str
    content: str


TextModel = Callable[[list[Message]], str]
"""A language model as oracles and analysers need it: messages in, reply text out."""

S = TypeVar("S")


@runtime_checkable
class Oracle(Protocol[S]):
    """Proposes the next command; its own state is a value that the caller threads through.

    `view` is what the environment's ``privileged()`` returned if `privileged` is true, and None
    otherwise. `history` is the student's record up to, and excluding, the current observation; an
    oracle that sees only what the student saw folds its state from it. That state belongs to the
    oracle and never enters a snapshot of the environment.
    """

    privileged: bool

    def start(self, view: Any, history: History) -> S:
        """Begin at the current point of an episode."""
        ...

    def act(self, state: S, view: Any, observation: str) -> tuple[Decision, S]:
        """Decide on the next command, given the current observation."""
        ...


@runtime_checkable
class Planner(Oracle[S], Protocol[S]):
    """An oracle that can also lay out the whole way."""

    def plan(self, view: Any, horizon: int | None, budget_s: float | None) -> Plan:
        """All commands from `view` to the goal.

        Args:
            view: the environment's privileged value.
            horizon: steps that may be taken; a longer plan is OVER_BUDGET. None: no limit.
            budget_s: seconds that the search may take, then TIMEOUT. None: no limit.
        """
        ...
