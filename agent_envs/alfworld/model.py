"""Value types of the native ALFWorld engine: tasks, states, goals and compiled games.

A `Game` holds the immutable tables of one household and task; a `State` is one point of an
episode. Objects, receptacles and locations are numbered by position, and sets of them are
integers used as bit masks: bit ``i`` stands for index ``i``. The rules that connect the two are
in `agent_envs.alfworld.engine`; they are described in docs/alfworld.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class TaskType(StrEnum):
    """The six kinds of task of ALFWorld (Shridhar et al. 2021, arXiv:2010.03768)."""

    PICK = "pick_and_place_simple"
    LOOK = "look_at_obj_in_light"
    CLEAN = "pick_clean_then_place_in_recep"
    HEAT = "pick_heat_then_place_in_recep"
    COOL = "pick_cool_then_place_in_recep"
    TWO = "pick_two_obj_and_place"


class State(NamedTuple):
    """One state of the world. Immutable, hashable, nested tuples of integers only."""

    loc: int
    """Index of the agent's location."""
    held: int
    """Index of the object in the agent's hand, or -1."""
    contents: tuple[int, ...]
    """Per receptacle: mask of the objects in it. An object may be in several at once."""
    at: tuple[int, ...]
    """Per location: mask of the objects that the engine records as being there."""
    opened: int
    """Mask over receptacles."""
    clean: int
    hot: int
    cool: int
    sliced: int
    toggled: int
    on: int
    """This and the five above: masks over objects."""
    removed: tuple[int, ...]
    """Per receptacle: mask of the objects taken from it and not put back into it."""


@dataclass(frozen=True, slots=True)
class Goal:
    """When a game is won, with every condition that never changes already applied.

    `objects` may only hold objects of the wanted class that also have the wanted affordance
    (cleanable, heatable, coolable); `receptacles` only receptacles of the wanted class (for
    `TaskType.LOOK`: all of them); `lamps` is empty but for `TaskType.LOOK`.
    """

    kind: TaskType
    objects: int
    receptacles: int
    lamps: int = 0


@dataclass(slots=True, eq=False, repr=False)
class Words:
    """Strings and look-up tables of one game, laid out for the engine's inner loop.

    All are constant but `memo`: commands by what is around the agent, dropped when it is full.
    """

    commands: dict[str, tuple[int, int]]
    """Commands that name at most one thing -> (operation, index)."""
    two_names: dict[str, tuple[int, str]]
    """Verb -> (operation, preposition) of commands like ``take mug 1 from desk 2``."""
    put: tuple[str, str]
    """The pieces of the command that puts down: ``"move "`` and ``" to "``."""
    put_reply: tuple[str, str]
    """The pieces of its answer, before the object and between object and receptacle."""
    anywhere: tuple[str, ...]
    """The commands that always apply: ``help`` (where there is one), ``inventory``, ``look``."""
    arrive: tuple[str, ...]
    """Per receptacle: ``"You arrive at desk 1. "`` (or ``"... loc 12. "``)."""
    go_to: Mapping[int, tuple[str, ...]]
    """Per location: the sorted ``go to`` commands there."""
    local_mask: tuple[int, ...]
    """Per location: mask of the receptacles there."""
    a_obj: tuple[str, ...]
    """``"a mug 1"``, per object."""
    on_rec: tuple[str, ...]
    in_rec: tuple[str, ...]
    closed_rec: tuple[str, ...]
    """Beginnings of a receptacle's text (on it, open), and its whole text when closed."""
    memo: dict[tuple[int, ...], tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Game:
    """The immutable tables of one compiled game; compared and hashed by identity.

    Names (``"desk 2"``) are what the player reads, ids are the lower-cased PDDL symbols, and both
    are listed in the order of the ids, which is the order in which texts list things.
    """

    revision: str
    """SHA-256 (hex) over domain, grammar and problem text."""
    generation: str
    """Name of the rules and wording (`agent_envs.alfworld.generations`): ``"move"`` is ALFWorld
    0.4 (``move X to Y``), ``"put"`` the one before it (``put X in/on Y``)."""
    task_type: TaskType
    task_sentence: str
    """What the player is asked, e.g. ``"put two cd in safe."``."""

    recs: tuple[str, ...]
    rec_ids: tuple[str, ...]
    rec_class: tuple[str, ...]
    rec_loc: tuple[int, ...]
    locs: tuple[str, ...]
    recs_at: tuple[tuple[int, ...], ...]
    """Per location: the receptacles there, in id order."""
    objs: tuple[str, ...]
    obj_ids: tuple[str, ...]
    obj_class: tuple[str, ...]

    openable: int
    """Mask over receptacles."""
    pickupable: int
    cleanable: int
    heatable: int
    coolable: int
    toggleable: int
    sliceable: int
    receptacle_object: int
    knife: int
    """This and the seven above: masks over objects."""
    can_hold: tuple[int, ...]
    """Per receptacle: mask of the objects that may be put there."""
    sinks: int
    microwaves: int
    fridges: int
    """Masks over receptacles of the types that clean, heat and cool."""
    inner: tuple[tuple[int, ...], ...]
    """Per object: the objects fixed inside it (these never change)."""

    start: State
    goal: Goal
    goal_recs: tuple[int, ...]
    """The indices in `goal.receptacles`."""
    walkthrough: tuple[str, ...] | None
    solvable: bool

    obj_index: dict[str, int] = field(repr=False)
    """Object name -> index. Treat as read-only."""
    rec_index: dict[str, int] = field(repr=False)
    """Receptacle name -> index. Treat as read-only."""
    words: Words = field(repr=False)
    """Private to the engine."""

    def __copy__(self) -> Game:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Game:
        """Copies share the tables: nothing in a game ever changes."""
        return self


@dataclass(frozen=True, slots=True)
class PrivilegedView:
    """What an oracle may see and a student may not: the rules, the true state, the budget."""

    game: Game
    state: State
    steps_left: int | None


def bits(mask: int) -> Iterator[int]:
    """Indices of the bits set in `mask`, ascending.

    >>> list(bits(0b1101))
    [0, 2, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
