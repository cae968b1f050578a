"""Which commands of a branch in ALFWorld give away where a hidden thing is.

A player that has not seen what it wants has to search: it picks a place of which it does not know
what is in it, looks, and picks the next one. Each pick is a guess, and some guesses are right. An
oracle that knows the house guesses right each time. So a pick is counted as leaked iff

1. a thing that the task needs is in none of the places that the record has shown, nor in the
   hands: the wanted object (the second one for two), or the desk lamp for a task under it;
2. its place was not looked into before, and the task does not lead there anyway, as to a
   receptacle of the goal's class with a wanted object in the hands;
3. what was needed turns out to be there, and it is the branch's first look at an unseen place
   since the last such find (or since the root): no guess before it was wrong;
4. it was not the one place to begin with: by the public games' class figures
   (`oracles.alfworld_prior`), another unseen place is at least as likely to have what is needed.

A pick is one command: the ``go to``, or the ``open`` or ``examine`` of a place where the player
stood. The ``open`` after a ``go to`` to a closed door belongs to the same pick. A player without
privilege has leaks as well, as often as its first guess happens to be right against the odds; the
figure of an oracle is to be read beside that of `oracles.alfworld_explorer`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agent_envs.alfworld.model import TaskType
from agent_envs.alfworld.words import class_of
from oracles.alfworld_prior import likelihood
from oracles.alfworld_request import LAMP, Request, read_request
from oracles.alfworld_seen import Seen, fold, fold_history
from oracles.branch import Branch
from oracles.leak_audit import Leak

DESTINATION = "unseen_destination"
"""Kind of a ``go to``."""
CONTAINER = "unseen_container"
"""Kind of an ``open`` or ``examine`` of a place where the player stood already."""

_PICK = re.compile(r"(go to|open|examine) (\S+ \d+)")


class _Choice(NamedTuple):
    """A pick of a place that was not looked into."""

    k: int
    rec: str
    likeliest: bool
    """Whether it was the one place to begin with."""


def leaks(branch: Branch) -> list[Leak] | None:
    """The leaked picks of a branch; None if its task sentence is not worded as usual."""
    seen, command, valid = fold_history(branch.history)
    found: list[Leak] = []
    request: Request | None = None
    choice: _Choice | None = None
    misses = 0
    for k, step in enumerate(branch.steps):
        seen = fold(seen, command, step.observation, valid)
        command, valid = step.action, step.command_valid
        if k == 0:
            request = read_request(branch.goal if seen.sentence is None else seen.sentence)
        if request is None:
            return None
        needed = _needed(request, seen)
        pick = _PICK.fullmatch(command.strip())
        if pick is None:
            continue
        rec = pick[2]
        if rec in seen.looked or not needed or _on_the_way(request, seen, rec):
            continue
        if choice is None or choice.rec != rec:
            choice = _Choice(k, rec, _is_likeliest(needed, seen, rec))
        after = fold(seen, command, step.next_observation, valid)
        if rec not in after.looked:
            continue
        there = after.inside[rec] - _known(seen)
        hits = sorted(obj for obj in there if class_of(obj) in needed)
        if hits and not misses and not choice.likeliest:
            found.append(_leak(branch, choice, needed, hits))
        misses = 0 if hits else misses + 1
    return found


def _leak(branch: Branch, choice: _Choice, needed: tuple[str, ...], hits: list[str]) -> Leak:
    picked = branch.steps[choice.k].action
    kind = DESTINATION if picked.strip().startswith("go to") else CONTAINER
    why = (
        f"no {' or '.join(needed)} had been seen that is still needed, and the first place "
        f"looked into, {choice.rec}, has {', '.join(hits)}"
    )
    return Leak(choice.k, kind, why)


def _known(seen: Seen) -> frozenset[str]:
    """All objects of which it is known where they are."""
    held = frozenset(() if seen.held is None else (seen.held,))
    return held.union(*seen.inside.values())


def _needed(request: Request, seen: Seen) -> tuple[str, ...]:
    """Classes of which more is needed than the record has shown."""
    classes = [class_of(obj) for obj in _known(seen)]
    number = 2 if request.kind is TaskType.TWO else 1
    needed = [request.obj] if classes.count(request.obj) < number else []
    if request.kind is TaskType.LOOK and LAMP not in classes:
        needed.append(LAMP)
    return tuple(needed)


def _on_the_way(request: Request, seen: Seen, rec: str) -> bool:
    """Whether the task leads to `rec` anyway, with what is held."""
    carries = seen.held is not None and class_of(seen.held) == request.obj
    return carries and class_of(rec) == request.rec


def _is_likeliest(needed: tuple[str, ...], seen: Seen, rec: str) -> bool:
    """Whether no other place that was not looked into is as likely to have what is needed."""

    def expected(place: str) -> float:
        return sum(likelihood(obj, class_of(place)) for obj in needed)

    others = [place for place in seen.recs if place != rec and place not in seen.looked]
    return all(expected(place) < expected(rec) for place in others)
