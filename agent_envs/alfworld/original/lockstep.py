"""The native engine beside the original one: do both say the same, step for step?

The original is either running (`lockstep`) or was recorded (`agent_envs.alfworld.original.verify`);
`Follower` does the comparison for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, State
from agent_envs.alfworld.original.lockstep_walks import situations
from agent_envs.alfworld.text import intro


class Moment(Protocol):
    """What the original shows at one point of an episode."""

    @property
    def observation(self) -> str: ...

    @property
    def admissible(self) -> Sequence[str]: ...

    @property
    def won(self) -> bool: ...


class Original(Protocol):
    """The original engine with one game: a `TextWorldGame`, or a stand-in for it."""

    def reset(self) -> Moment: ...

    def step(self, command: str, /) -> Moment: ...


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between the engines."""

    task_id: str
    step: int
    """0 is the reset."""
    action: str | None
    what: str
    """``"observation"``, ``"admissible"`` (commands or their order), ``"won"``, ``"accepted"``
    (ours takes a command that the original did not list before, or the reverse) or ``"game"``
    (it cannot be loaded)."""
    expected: object
    found: object


class Follower:
    """Plays one game natively and compares each point with the original's.

    `state` is the native state after the last comparison.
    """

    def __init__(self, task_id: str, game: Game) -> None:
        self.task_id, self.game = task_id, game
        self.state: State = game.start
        self.accepted = True
        self._number = -1
        self._listed: Sequence[str] | None = None  # before the step; None where lists differed

    def compare(self, action: str | None, moment: Moment) -> list[Mismatch]:
        """Carry out `action` (None: reset) and list what differs from the original's `moment`."""
        game, listed = self.game, self._listed
        if action is None:
            self.state, text, self.accepted = game.start, intro(game, game.start), True
        else:
            self.state, text, self.accepted = step(game, self.state, action)
        self._number += 1
        commands = list(admissible(game, self.state))
        expected = list(moment.admissible)
        self._listed = expected if expected == commands else None
        pairs: list[tuple[str, object, object]] = [
            ("observation", moment.observation, text),
            ("admissible", expected, commands),
            ("won", moment.won, won(game, self.state)),
        ]
        if action is not None and listed is not None:
            # the original does not say whether it accepts a command, but it lists what it would
            pairs.append(("accepted", action.strip() in listed, self.accepted))
        return [
            Mismatch(self.task_id, self._number, action, what, theirs, ours)
            for what, theirs, ours in pairs
            if theirs != ours
        ]


@dataclass(frozen=True, slots=True)
class LockstepResult:
    """What a walk through both engines compared; `differences` is empty if they agree."""

    steps: int
    """Commands carried out; the reset is compared as well."""
    differences: tuple[Mismatch, ...]
    situations: Counter[str]
    """How many of the steps met what (see `lockstep_walks.situations`)."""


def lockstep(
    task_id: str,
    game: Game,
    original: Original,
    choose: Callable[[State], str],
    steps: int,
) -> LockstepResult:
    """Walk `steps` commands through both engines and compare after each.

    Args:
        task_id: how differences name the game.
        game: the compiled game.
        original: the original engine with the same game.
        choose: the next command, given the native state; e.g. a `MixedWalk`.
        steps: how many commands.

    Stops at the first step that differs: from there on, the two are in different states.
    """
    follower = Follower(task_id, game)
    met: Counter[str] = Counter()
    differences = follower.compare(None, original.reset())
    done = 0
    while not differences and done < steps:
        before = follower.state
        command = choose(before)
        differences = follower.compare(command, original.step(command))
        met.update(situations(game, before, command, follower.state, follower.accepted))
        done += 1
    return LockstepResult(done, tuple(differences), met)
