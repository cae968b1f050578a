"""The world of ALFWorld as far as a player has seen it, to be planned in like a true one.

`believed` makes a game and a state from what was read (`oracles.alfworld_seen`) and nothing else,
so that a plan made in it cannot depend on anything unseen. The first observation lists all
receptacles; the rest was seen or not:

- An object exists where it was seen last, and nowhere if it never was.
- Receptacles stand apart unless something read says that they share a spot.
- A receptacle that was not looked at has a door, and that shut, if most of its class do.
- What fits where, can be taken, treated and lit is as usual for the classes of the public games
  (`oracles.alfworld_prior`), but for what was refused.

What the shortest plan in this world relies on without its having been seen is looked up before a
command that would be refused if it were otherwise (`checked`).
"""

from __future__ import annotations

from collections.abc import Iterable

from agent_envs.alfworld.generations import GENERATIONS
from agent_envs.alfworld.model import Game, Goal, PrivilegedView, State, TaskType
from agent_envs.alfworld.words import class_of, make_words
from oracles.alfworld_prior import fits, has_door, together
from oracles.alfworld_request import LAMP, Request, read_request
from oracles.alfworld_seen import TOOLS, Seen, fold, fold_history, put_command
from oracles.base import History

_TREATS = {TaskType.CLEAN: "clean", TaskType.HEAT: "heat", TaskType.COOL: "cool"}
_MIDDLE = 0  # the location in the middle of the room, where no receptacle stands


class NotSeen(Exception):
    """What was seen is too little to plan with; the message says what is missing."""


def seen_so_far(history: History, observation: str) -> Seen:
    """What a student knows who made `history` and now reads `observation`."""
    seen, command, valid = fold_history(history)
    return fold(seen, command, observation, valid)


def believed(seen: Seen) -> PrivilegedView:
    """The world that was seen, in the form of a view; `steps_left` is None, as it is not known.

    Raises:
        NotSeen: the task or the room were not read, or the task is not worded as usual.
    """
    if seen.sentence is None or not seen.recs:
        raise NotSeen("no observation so far has the task sentence and lists the receptacles")
    request = read_request(seen.sentence)
    if request is None:
        raise NotSeen(f"the task is not worded as usual: {seen.sentence!r}")
    objs = _objects(seen)
    index = {name: i for i, name in enumerate(objs)}
    game = _game(seen, request, objs, index)
    contents = tuple(_mask(index, seen.inside.get(rec, ())) for rec in seen.recs)
    opened = sum(1 << i for i, rec in enumerate(seen.recs) if rec in seen.opened)
    state = State(
        loc=game.rec_loc[game.rec_index[seen.here[0]]] if seen.here else _MIDDLE,
        held=-1 if seen.held is None else index[seen.held],
        contents=contents,
        at=(0,) * len(game.locs),
        opened=opened & game.openable,
        clean=_mask(index, seen.clean),
        hot=_mask(index, seen.hot),
        cool=_mask(index, seen.cool),
        sliced=0,
        toggled=_mask(index, seen.lit),
        on=0,
        removed=(0,) * len(seen.recs),
    )
    return PrivilegedView(game, state, None)


def missing(view: PrivilegedView) -> str:
    """What has to be seen before there can be a plan in a believed world that has none."""
    game, state = view.game, view.state
    goal, held = game.goal, state.held
    useful = held >= 0 and bool(goal.objects >> held & 1)
    if held >= 0 and not useful and not any(mask >> held & 1 for mask in game.can_hold):
        return f"nothing that was seen is known to take {game.objs[held]!r}, which is in hand"
    present = 1 << held if useful else 0
    for mask in state.contents:
        present |= mask & goal.objects
    if not present:
        return "no wanted object has been seen yet"
    if goal.kind is TaskType.LOOK and not goal.lamps:
        return "no desk lamp has been seen yet"
    if goal.kind is TaskType.TWO and not present & (present - 1):
        return "only one of the two wanted objects has been seen yet"
    if goal.kind is not TaskType.LOOK and not goal.receptacles:
        return "no receptacle of the wanted class is listed"
    return "what has been seen does not suffice for a plan"


def checked(seen: Seen, command: str, risk: float) -> str:
    """`command`, or what to look up before it: ``look``, ``examine ...`` or ``inventory``.

    Args:
        risk: a command is not looked into if the chance of its refusal is at most this.
    """
    if seen.suspect is not None:
        return "inventory"
    verb, _, rest = command.partition(" ")
    if verb == "go":
        return "look" if may_stand_here(seen, rest.removeprefix("to "), risk) else command
    if verb == "open":
        sure = rest in seen.closed or 0 < has_door(class_of(rest)) >= 1 - risk
        return command if sure else f"examine {rest}"
    if verb == "put" or verb == "move":
        rec = " ".join(rest.split(" ")[-2:])
        return command if seen.visible(rec) else f"examine {rec}"
    return command


def may_stand_here(seen: Seen, rec: str, risk: float) -> bool:
    """Whether ``go to`` `rec` may be refused because `rec` is right here, at a chance above `risk`.

    Nothing but ``look`` tells which receptacles stand at one spot.
    """
    if not seen.here or seen.here[0] in seen.surveyed or rec in seen.surveyed:
        return False
    classes = tuple(sorted(map(class_of, seen.recs)))
    return any(
        frozenset((rec, other)) not in seen.apart
        and together(class_of(rec), class_of(other), classes) > risk
        for other in seen.here
    )


# ------------------------------------------------------------------ the tables of the game


def _game(seen: Seen, request: Request, objs: tuple[str, ...], index: dict[str, int]) -> Game:
    recs = seen.recs
    rec_index = {name: i for i, name in enumerate(recs)}
    rec_loc, recs_at = _spots(seen, rec_index)
    sinks, microwaves, fridges = (
        sum(1 << i for i, rec in enumerate(recs) if class_of(rec) == TOOLS[verb])
        for verb in ("clean", "heat", "cool")
    )
    wanted = _mask(index, (obj for obj in objs if class_of(obj) == request.obj))
    wanted &= ~_untreatable(seen, request, index)
    lamps = _mask(index, (obj for obj in objs if class_of(obj) == LAMP))
    lamps &= ~_mask(index, (c.removeprefix("use ") for c in seen.futile if c.startswith("use ")))
    fixed = {" ".join(c.split(" ")[1:3]) for c in seen.futile if c.startswith("take ")}
    treatable = (1 << len(objs)) - 1
    goal_recs = tuple(
        i for i, rec in enumerate(recs) if request.rec is None or class_of(rec) == request.rec
    )
    goal = Goal(
        request.kind,
        wanted,
        sum(1 << i for i in goal_recs),
        lamps if request.kind is TaskType.LOOK else 0,
    )
    locs = tuple(f"spot {i}" for i in range(len(recs_at)))
    return Game(
        revision="",
        generation=seen.generation,
        task_type=request.kind,
        task_sentence=seen.sentence or "",
        recs=recs,
        rec_ids=recs,
        rec_class=tuple(map(class_of, recs)),
        rec_loc=rec_loc,
        locs=locs,
        recs_at=recs_at,
        objs=objs,
        obj_ids=objs,
        obj_class=tuple(map(class_of, objs)),
        openable=sum(1 << i for i, rec in enumerate(recs) if _has_door(seen, rec)),
        pickupable=treatable & ~_mask(index, fixed),
        cleanable=treatable,
        heatable=treatable,
        coolable=treatable,
        toggleable=lamps,
        sliceable=0,
        receptacle_object=0,
        knife=0,
        can_hold=tuple(_room_for(seen, rec, request, objs) for rec in recs),
        sinks=sinks,
        microwaves=microwaves,
        fridges=fridges,
        inner=((),) * len(objs),
        start=State(_MIDDLE, -1, (), (), 0, 0, 0, 0, 0, 0, 0, ()),
        goal=goal,
        goal_recs=goal_recs,
        walkthrough=None,
        solvable=True,
        obj_index=index,
        rec_index=rec_index,
        words=make_words(GENERATIONS[seen.generation], objs, recs, None, rec_loc, recs_at),
    )


def _objects(seen: Seen) -> tuple[str, ...]:
    """All objects seen, in the order of a game's ids as far as names tell: numbers run down."""
    names = {name for objs in seen.inside.values() for name in objs}
    if seen.held is not None:
        names.add(seen.held)

    def key(name: str) -> tuple[str, int]:
        kind, _, number = name.rpartition(" ")
        return kind, -int(number)

    return tuple(sorted(names, key=key))


def _spots(
    seen: Seen, rec_index: dict[str, int]
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Location of each receptacle, and receptacles at each location."""
    loc: dict[str, int] = {}
    at: list[tuple[int, ...]] = [()]
    for rec in seen.recs:
        if rec in loc:
            continue
        spot = seen.spot(rec).intersection(rec_index)
        loc.update(dict.fromkeys(spot, len(at)))
        at.append(tuple(sorted(rec_index[name] for name in spot)))
    return tuple(loc[rec] for rec in seen.recs), tuple(at)


def _has_door(seen: Seen, rec: str) -> bool:
    """Whether `rec` is to be opened before anything is put there, or was."""
    if rec in seen.opened or rec in seen.closed:
        return True
    return (
        rec not in seen.inside
        and f"open {rec}" not in seen.futile
        and has_door(class_of(rec)) >= 0.5
    )


def _room_for(seen: Seen, rec: str, request: Request, objs: tuple[str, ...]) -> int:
    """Mask of the objects that may be put into `rec`, as far as is known."""
    kind, mask = class_of(rec), 0
    for i, obj in enumerate(objs):
        asked = kind == request.rec and class_of(obj) == request.obj
        usual = asked or fits(class_of(obj), kind) is not False
        if usual and put_command(seen, obj, rec) not in seen.futile:
            mask |= 1 << i
    return mask


def _untreatable(seen: Seen, request: Request, index: dict[str, int]) -> int:
    """Mask of the objects that a tool refused to clean, heat or cool."""
    verb = _TREATS.get(request.kind)
    if verb is None:
        return 0
    refused = (c.removeprefix(f"{verb} ") for c in seen.futile if c.startswith(f"{verb} "))
    return _mask(index, (c.partition(" with ")[0] for c in refused))


def _mask(index: dict[str, int], names: Iterable[str]) -> int:
    mask = 0
    for name in names:
        if name in index:
            mask |= 1 << index[name]
    return mask
