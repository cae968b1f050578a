"""What a player of ALFWorld can know: a value folded from the texts that it read.

Every reply names what it is about, so that almost all is folded from the texts alone. A refusal
("Nothing happens.") gives no reason; what follows from it is drawn from the command and from what
was believed until then. Commands that were bound to be refused teach nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from agent_envs.alfworld.generations import MOVE, PUT
from agent_envs.alfworld.text import EMPTY_HANDED, REFUSAL
from agent_envs.alfworld.words import class_of
from agent_envs.frozen import FrozenDict
from oracles.alfworld_request import LAMP
from oracles.base import History

_NAME = r"(\S+ \d+)"
_THING = re.compile(rf"\ba {_NAME}")
_BARE = re.compile(_NAME)
_TASK = re.compile(r"Your task is to: ([^\n]*)")
_AROUND = re.compile(r"you see ([^\n]*)\.\n")
_FACING = re.compile(r"You are facing the (.*?)\. Next to it")
_ARRIVE = re.compile(rf"You arrive at {_NAME}\. ")
_ON = re.compile(rf"On the {_NAME}, you see (.*)\.$")
_INSIDE = re.compile(rf"The {_NAME} is open\. In it, you see (.*)\.$")
_CLOSED = re.compile(rf"The {_NAME} is closed\.$")
_CLOSE = re.compile(rf"You close the {_NAME}\.$")
_TAKE = re.compile(rf"You pick up the {_NAME} from the {_NAME}\.$")
_PUT = re.compile(rf"You (?:move|put) the {_NAME} (?:to|in/on) the {_NAME}\.$")
_TREAT = re.compile(rf"You (clean|heat|cool) the {_NAME} using the {_NAME}\.$")
_ACTED = re.compile(rf"(?:from|to|in/on|using|open|close) the {_NAME}\.(?: |$)")
_LIT = re.compile(rf"You turn on the {_NAME}\.$")
_CARRY = re.compile(rf"You are carrying: a {_NAME}\.$")
_QUALITY = re.compile(rf"This is a ([a-z ]+) {_NAME}\.$")
_BURNS = re.compile(rf"This {_NAME} is on\.$")

_TWO_NAMES = re.compile(rf"(take|clean|heat|cool|move|put) {_NAME} (?:from|with|to|in/on) {_NAME}$")
_ONE_NAME = re.compile(rf"(go to|open|use) {_NAME}$")
TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""Verb -> class of the receptacles that do it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read and done so far. Names as the game spells them ("mug 1")."""

    sentence: str | None = None
    """The task; None: it was not in what was read."""
    recs: tuple[str, ...] = ()
    """All receptacles, as the first observation lists them."""
    here: tuple[str, ...] = ()
    """Receptacles known to be where the player stands; empty: in the middle of the room."""
    held: str | None = None
    inside: FrozenDict = field(default_factory=FrozenDict)
    """Receptacle -> frozenset of the objects that are in it, as far as is known."""
    looked: frozenset[str] = frozenset()
    """Receptacles of which `inside` is complete. Into others something was only put or taken."""
    opened: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    """Receptacles with doors, as they were left."""
    spots: FrozenDict = field(default_factory=FrozenDict)
    """Receptacle -> frozenset of all that are known to stand at its spot, itself included."""
    surveyed: frozenset[str] = frozenset()
    """Receptacles of which `spots` is known to be complete."""
    apart: frozenset[frozenset[str]] = frozenset()
    """Pairs that are known to stand at different spots."""
    clean: frozenset[str] = frozenset()
    hot: frozenset[str] = frozenset()
    cool: frozenset[str] = frozenset()
    lit: frozenset[str] = frozenset()
    """Objects to which this was done, or read when they were examined."""
    futile: frozenset[str] = frozenset()
    """Commands that were refused though nothing known spoke against them."""
    suspect: str | None = None
    """A ``take`` that was refused: it is futile, or the hands are full without anyone's knowing
    (a record that begins in the middle). Only ``inventory`` can tell."""
    generation: str = MOVE.name
    """Whose verbs the game takes (`agent_envs.alfworld.generations`)."""

    def spot(self, rec: str) -> frozenset[str]:
        """The receptacles known to stand where `rec` does."""
        found: frozenset[str] = self.spots.get(rec, frozenset((rec,)))
        return found

    def visible(self, rec: str) -> bool:
        """Whether what is in `rec` is known now to lie open."""
        return rec in self.opened or (rec in self.inside and rec not in self.closed)


def fold(seen: Seen, command: str | None, text: str, valid: bool = True) -> Seen:
    """What is known after `text` came in answer to `command`.

    Args:
        seen: what was known before.
        command: None for the first text of an episode.
        text: the observation.
        valid: False: the environment did not accept the command.
    """
    text = text.rstrip()
    if command is not None and (not valid or text == REFUSAL):
        return _refused(seen, command.strip())
    task = _TASK.search(text)
    if task is not None:
        return _begun(text, task[1])
    seen = _moved(seen, text)
    if match := _ACTED.search(text):
        seen = _stands(seen, match[1])
    if match := _TAKE.search(text):
        left = seen.inside.get(match[2], frozenset()) - {match[1]}
        return replace(seen, held=match[1], inside=_with(seen.inside, match[2], left))
    if match := _PUT.search(text):
        now = seen.inside.get(match[2], frozenset()) | {match[1]}
        seen = replace(seen, held=None, inside=_with(seen.inside, match[2], now))
        return replace(seen, generation=PUT.name if text.startswith("You put") else MOVE.name)
    if match := _TREAT.search(text):
        return _treated(seen, match[1], match[2])
    if match := _LIT.search(text) or _BURNS.search(text):
        return replace(seen, lit=seen.lit | {match[1]})
    if match := _CARRY.search(text):
        return replace(seen, held=match[1], suspect=None)
    if text == EMPTY_HANDED:
        futile = seen.futile.union({seen.suspect} if seen.suspect else ())
        return replace(seen, held=None, suspect=None, futile=futile)
    if match := _CLOSE.search(text):
        closed = seen.closed | {match[1]}
        return replace(seen, closed=closed, opened=seen.opened - {match[1]})
    if match := _QUALITY.search(text):
        words = match[1].split()
        for word, verb in (("clean", "clean"), ("hot", "heat"), ("cool", "cool"), ("cold", "cool")):
            if word in words:
                seen = _treated(seen, verb, match[2])
        return seen
    return _read(seen, text)


def fold_history(history: History) -> tuple[Seen, str | None, bool]:
    """What was known before the last command of `history`, that command, and whether it counted.

    The answer to the last command is not part of a record; it is the current observation.
    """
    seen, command, valid = Seen(), None, True
    for item in history:
        seen = fold(seen, command, item.observation, valid)
        command, valid = item.action, item.command_valid
    return seen, command, valid


def _begun(text: str, sentence: str) -> Seen:
    around = _AROUND.search(text)
    listed = around[1] if around else ""
    return _moved(Seen(sentence=sentence.strip(), recs=tuple(_THING.findall(listed))), text)


def _moved(seen: Seen, text: str) -> Seen:
    """Where the player stands, as far as `text` tells."""
    if facing := _FACING.search(text):
        names = _BARE.findall(facing[1])
        seen = _joined(seen, names)
        return replace(seen, here=tuple(names), surveyed=seen.surveyed.union(names))
    arrival = _ARRIVE.match(text)
    if arrival is None:
        return seen
    place = arrival[1]
    if place in seen.recs or class_of(place) != "loc":
        rec = place
    else:
        # the older games name the location, and the receptacle in what follows
        seen = replace(seen, generation=PUT.name)
        found = _BARE.search(text, arrival.end())
        if found is None:
            return replace(seen, here=())
        rec = found[1]
    apart = {frozenset((rec, other)) for other in seen.here}
    return replace(seen, here=tuple(sorted(seen.spot(rec))), apart=seen.apart | apart)


def _stands(seen: Seen, rec: str) -> Seen:
    """`rec` turned out to be where the player is."""
    if rec in seen.here:
        return seen
    seen = _joined(seen, (*seen.here, rec))
    return replace(seen, here=tuple(sorted(seen.spot(rec))))


def _joined(seen: Seen, names: list[str] | tuple[str, ...]) -> Seen:
    """All of `names` stand at one spot."""
    spot = frozenset(names).union(*(seen.spot(name) for name in names))
    return replace(seen, spots=FrozenDict({**seen.spots, **dict.fromkeys(spot, spot)}))


def _read(seen: Seen, text: str) -> Seen:
    """What the text of a receptacle says."""
    if match := _INSIDE.search(text):
        seen = _stands(seen, match[1])
        seen = replace(seen, opened=seen.opened | {match[1]}, closed=seen.closed - {match[1]})
    elif match := _CLOSED.search(text):
        seen = _stands(seen, match[1])
        closed = seen.closed | {match[1]}
        return replace(seen, closed=closed, opened=seen.opened - {match[1]})
    else:
        match = _ON.search(text)
    if match is None:
        return seen
    seen, objs = _stands(seen, match[1]), frozenset(_THING.findall(match[2]))
    return replace(seen, inside=_with(seen.inside, match[1], objs), looked=seen.looked | {match[1]})


def _treated(seen: Seen, verb: str, obj: str) -> Seen:
    one = {obj}
    if verb == "clean":
        return replace(seen, clean=seen.clean | one)
    if verb == "heat":
        return replace(seen, hot=seen.hot | one, cool=seen.cool - one)
    return replace(seen, cool=seen.cool | one, hot=seen.hot - one)


def _refused(seen: Seen, command: str) -> Seen:
    """What a refusal tells, if the command should have been possible."""
    one = _ONE_NAME.match(command)
    if one is not None and one[1] == "go to":
        if one[2] in seen.recs and one[2] not in seen.here:
            return _stands(seen, one[2])  # the only reason
        return seen
    if _possible(seen, command):
        if command.startswith("take "):
            return replace(seen, suspect=command)
        return replace(seen, futile=seen.futile | {command})
    return seen


def _possible(seen: Seen, command: str) -> bool:
    """Whether nothing known speaks against `command`, so that its refusal is news."""
    if one := _ONE_NAME.match(command):
        if one[1] == "open":
            return one[2] in seen.here and one[2] not in seen.opened
        return class_of(one[2]) == LAMP and any(one[2] in seen.inside.get(r, ()) for r in seen.here)
    two = _TWO_NAMES.match(command)
    if two is None or two[3] not in seen.here:
        return False
    verb, obj, rec = two.groups()
    if verb == "take":
        there = obj in seen.inside.get(rec, ()) and seen.visible(rec)
        return there and seen.held is None
    if obj != seen.held:
        return False
    if verb in TOOLS:
        return class_of(rec) == TOOLS[verb]
    return seen.visible(rec) and command == put_command(seen, obj, rec)


def put_command(seen: Seen, obj: str, rec: str) -> str:
    """The command that puts down `obj`, in the words of the game's generation."""
    verb, joint = (PUT if seen.generation == PUT.name else MOVE).put
    return f"{verb} {obj} {joint} {rec}"


def _with(inside: FrozenDict, rec: str, objs: frozenset[str]) -> FrozenDict:
    return FrozenDict({**inside, rec: objs})
