"""An explorer for ALFWorld: it plays well with what a player can know, from anywhere in an episode.

Not privileged: it reads the task sentence, the observations, and the record of the student's steps
(`oracles.alfworld_seen`). It looks where the wanted things usually are (`oracles.alfworld_prior`),
remembers what it saw on the way, and takes nothing that it does not want.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agent_envs.alfworld.model import TaskType
from agent_envs.alfworld.words import class_of
from oracles.alfworld_as_seen import may_stand_here
from oracles.alfworld_prior import (
    fits,
    has_door,
    known_object,
    known_receptacle,
    likelihood,
)
from oracles.alfworld_request import LAMP, Request, read_request
from oracles.alfworld_seen import TOOLS, Seen, fold, fold_history, put_command
from oracles.base import Decision, History, PlanStatus

_VERBS = {TaskType.CLEAN: "clean", TaskType.HEAT: "heat", TaskType.COOL: "cool"}


@dataclass(frozen=True, slots=True)
class Exploration:
    """Where an explorer stands: what is known, up to the answer to `command`."""

    seen: Seen
    command: str | None
    """The last command, whose answer comes next; None at the start of an episode."""
    valid: bool = True
    """Whether the environment accepted `command`, as far as is known."""
    rechecked: bool = False
    """Whether what is behind doors was forgotten once, to be looked at again."""


class _Stop(Exception):
    """There is no way on; the message says why."""

    def __init__(self, status: PlanStatus, detail: str = "") -> None:
        super().__init__(detail)
        self.status = status


class _NotFound(_Stop):
    """Everything was searched."""


class ALFWorldExplorer:
    """Finds, treats and places things by looking around.

    The same seed and the same texts give the same commands.

    Args:
        budget_s: not needed, an answer takes about a millisecond; for `trainer.worlds.oracles`.
        seed: decides between receptacles that are equally good.
        risk: ``go to`` a receptacle at the player's own spot is refused, and nothing says which
            ones stand together but ``look``. Where the chance is above `risk`, the explorer looks
            first, which costs a step. 0: for classes ever seen together, 1: never.
    """

    privileged = False

    def __init__(self, budget_s: float | None = None, *, seed: int = 0, risk: float = 0.02) -> None:
        self.budget_s = budget_s
        self.seed = seed
        self.risk = risk

    def start(self, view: Any, history: History) -> Exploration:
        """Fold what the student saw and did."""
        return Exploration(*fold_history(history))

    def act(self, state: Exploration, view: Any, observation: str) -> tuple[Decision, Exploration]:
        """The next command, with the current observation as the answer to the last one."""
        seen = fold(state.seen, state.command, observation, state.valid)
        rechecked = state.rechecked
        try:
            try:
                command = self._next(seen)
            except _NotFound:
                doors = seen.opened | seen.closed
                if rechecked or not doors:
                    raise
                # Nothing moves by itself, but a record may be wrong about what was put where.
                seen, rechecked = replace(seen, looked=seen.looked - doors), True
                command = self._next(seen)
        except _Stop as stop:
            return Decision(stop.status, None, str(stop)), replace(state, seen=seen)
        return Decision(PlanStatus.FOUND, command), Exploration(seen, command, True, rechecked)

    def _next(self, seen: Seen) -> str:
        names = sorted({*seen.recs, *seen.inside})
        order = np.random.default_rng(self.seed).permutation(len(names))
        ranks = {name: int(place) for name, place in zip(names, order, strict=True)}
        return _Errand(seen, _request(seen), ranks, self.risk).command()


def _request(seen: Seen) -> Request:
    if seen.sentence is None:
        raise _Stop(PlanStatus.UNSUPPORTED, "no observation so far has the task sentence")
    if not seen.recs:
        raise _Stop(PlanStatus.UNSUPPORTED, "the first observation lists no receptacles")
    request = read_request(seen.sentence)
    if request is None:
        raise _Stop(PlanStatus.UNSUPPORTED, f"the task is not worded as usual: {seen.sentence!r}")
    if not known_object(request.obj):
        raise _Stop(PlanStatus.UNSUPPORTED, f"{request.obj!r} is no class of objects")
    if request.rec is not None and not known_receptacle(request.rec):
        raise _Stop(PlanStatus.UNSUPPORTED, f"{request.rec!r} is no class of receptacles")
    return request


@dataclass(frozen=True, slots=True)
class _Errand:
    """One decision: `command` gives the next step for `want`, given what is `seen`."""

    seen: Seen
    want: Request
    ranks: Mapping[str, int]
    risk: float

    def command(self) -> str:
        """The next command.

        Raises:
            _Stop: there is nothing to do, or nothing that helps.
        """
        seen, want = self.seen, self.want
        if seen.suspect is not None:
            return "inventory"
        if want.kind is TaskType.LOOK:
            return self._look()
        targets = self._of_class(want.rec)
        if not targets:
            raise _Stop(PlanStatus.UNSOLVABLE, f"there is no {want.rec} in the room")
        two = want.kind is TaskType.TWO
        for rec in targets:
            if sum(map(self._finished, self._matching(rec))) > two:
                raise _Stop(PlanStatus.ALREADY_DONE)
        held = seen.held
        if held is not None and (class_of(held) != want.obj or self._hopeless(held)):
            return self._drop(held)
        target = self._target(targets)
        if held is None:
            return self._fetch(self._matching(target) if two else [])
        if not self._finished(held):
            return self._treat(held)
        return self._at(target) or put_command(seen, held, target)

    # ------------------------------------------------------------------ parts of a task

    def _look(self) -> str:
        seen = self.seen
        lamps = [
            (obj in seen.lit, rec, obj)
            for rec, objs in seen.inside.items()
            for obj in sorted(objs)
            if class_of(obj) == LAMP and f"use {obj}" not in seen.futile
        ]
        if seen.held is None:
            return self._fetch((), near=frozenset(rec for _, rec, _ in lamps))
        if class_of(seen.held) != self.want.obj:
            return self._drop(seen.held)
        if not lamps:
            return self._search(LAMP)
        lit, rec, lamp = min(lamps, key=lambda lamp: (self._way(lamp[1]) - lamp[0], lamp[1:]))
        way = self._at(rec, see=False)
        if way is None and lit:
            raise _Stop(PlanStatus.ALREADY_DONE)
        return way or f"use {lamp}"

    def _fetch(self, settled: Collection[str], near: frozenset[str] | None = None) -> str:
        """Take a wanted object that is none of `settled`, or search for one.

        Args:
            near: receptacles with a lamp, for a task that needs one; None: it needs none.
        """
        seen = self.seen
        known = [
            (rec, obj)
            for rec in seen.inside
            for obj in self._matching(rec)
            if obj not in settled
            and f"take {obj} from {rec}" not in seen.futile
            and not self._hopeless(obj)
        ]
        if not known:
            objs = [self.want.obj]
            if near is not None and not near:
                objs.append(LAMP)
            return self._search(*objs)

        def key(option: tuple[str, str]) -> tuple[Any, ...]:
            rec, obj = option
            steps = self._cost(rec) + 2 * (not self._finished(obj))
            if near and near.isdisjoint(seen.spot(rec)):
                steps += 1
            return steps, self.ranks[rec], obj

        rec, obj = min(known, key=key)
        return self._at(rec) or f"take {obj} from {rec}"

    def _search(self, *objs: str) -> str:
        """Look into the receptacle with the most to be expected for a step."""
        seen, want = self.seen, self.want
        # objects at the target of a simple task would have ended the episode
        done = want.rec if want.kind is TaskType.PICK else None

        def gain(rec: str) -> float:
            kind = class_of(rec)
            expected = sum(likelihood(obj, kind) for obj in objs) if kind != done else 0.0
            return expected / max(self._cost(rec), 1)

        unseen = [rec for rec in seen.recs if rec not in seen.looked]
        if not unseen:
            raise _NotFound(
                PlanStatus.UNSOLVABLE,
                f"every receptacle was looked into, and there is no {objs[0]} left to take or use",
            )
        rec = min(unseen, key=lambda rec: (-gain(rec), self.ranks[rec]))
        return self._at(rec) or f"examine {rec}"

    def _treat(self, held: str) -> str:
        verb = _VERBS[self.want.kind]
        tools = self._of_class(TOOLS[verb])
        if not tools:
            raise _Stop(PlanStatus.UNSOLVABLE, f"there is no {TOOLS[verb]} in the room")
        tool = min(tools, key=lambda rec: (self._way(rec), self.ranks[rec]))
        return self._at(tool, see=False) or f"{verb} {held} with {tool}"

    def _drop(self, held: str) -> str:
        """Put down what is of no use, where it fits."""
        kind = class_of(held)
        usual = [rec for rec in self.seen.recs if fits(kind, class_of(rec)) is not False]
        places = [rec for rec in usual if self._takes(rec, held)]
        if usual and not places:
            # this house is unlike the public ones
            places = [rec for rec in self.seen.recs if self._takes(rec, held)]
        if not places:
            raise _Stop(
                PlanStatus.UNSOLVABLE, f"hands are full: no receptacle in the room takes {held}"
            )
        rec = min(places, key=lambda rec: (self._cost(rec), self.ranks[rec]))
        return self._at(rec) or put_command(self.seen, held, rec)

    # ------------------------------------------------------------------ what is known

    def _of_class(self, kind: str | None) -> list[str]:
        return [rec for rec in self.seen.recs if class_of(rec) == kind]

    def _matching(self, rec: str) -> list[str]:
        """Objects of the wanted class in `rec`, as last seen."""
        return sorted(o for o in self.seen.inside.get(rec, ()) if class_of(o) == self.want.obj)

    def _finished(self, obj: str) -> bool:
        """Whether nothing is left to be done to `obj` but to place it."""
        seen = self.seen
        treated = {TaskType.CLEAN: seen.clean, TaskType.HEAT: seen.hot, TaskType.COOL: seen.cool}
        return self.want.kind not in treated or obj in treated[self.want.kind]

    def _hopeless(self, obj: str) -> bool:
        """Whether the game refused to treat `obj`, or to have it at any target."""
        futile, verb = self.seen.futile, _VERBS.get(self.want.kind)
        if verb and any(f"{verb} {obj} with {t}" in futile for t in self._of_class(TOOLS[verb])):
            return True
        targets = self._of_class(self.want.rec)
        return bool(targets) and not any(self._takes(rec, obj) for rec in targets)

    def _takes(self, rec: str, obj: str) -> bool:
        """Whether the game did not refuse to put `obj` there."""
        return put_command(self.seen, obj, rec) not in self.seen.futile

    def _target(self, targets: Sequence[str]) -> str:
        """Where to place: beside the first of two, else where it takes the fewest steps.

        With empty hands, and one of two in several places, the farthest: the others are taken.
        """
        held = self.seen.held
        first = self.want.kind is TaskType.TWO

        def key(rec: str) -> tuple[Any, ...]:
            started = first and any(obj != held for obj in self._matching(rec))
            steps = self._cost(rec) if held is not None else -self._cost(rec)
            return not started, steps, self.ranks[rec]

        return min((r for r in targets if held is None or self._takes(r, held)), key=key)

    # ------------------------------------------------------------------ moving about

    def _at(self, rec: str, see: bool = True) -> str | None:
        """The next command on the way to `rec`, and if `see` to what is in it; None: arrived."""
        seen = self.seen
        if rec not in seen.here:
            return "look" if self._doubtful(rec) else f"go to {rec}"
        if not see:
            return None
        if rec in seen.closed:
            return f"open {rec}"
        if rec in seen.inside:
            return None
        command, door = f"open {rec}", has_door(class_of(rec))
        untried = rec not in seen.opened and command not in seen.futile
        return command if untried and 0 < door >= 1 - self.risk else f"examine {rec}"

    def _way(self, rec: str) -> int:
        """Steps to stand at `rec`."""
        return 0 if rec in self.seen.here else 1 + self._doubtful(rec)

    def _cost(self, rec: str) -> float:
        """Steps to see into `rec`, as far as can be expected."""
        seen, steps = self.seen, float(self._way(rec))
        if rec in seen.closed:
            return steps + 1
        if rec in seen.inside:
            return steps
        if rec in seen.opened:
            return max(steps, 1)
        return max(steps, 1) + has_door(class_of(rec)) if steps else 1.5

    def _doubtful(self, rec: str) -> bool:
        """Whether `rec` may well stand right here, so that it cannot be gone to."""
        return may_stand_here(self.seen, rec, self.risk)
