"""A state of the native ALFWorld engine as a planning task in the game's own PDDL domain.

The tables of a `Game` have types only where they matter, so every receptacle and every object gets
a type of its own here, which says what fits where; the goal names one more type, of what is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from agent_envs.alfworld.generations import domain_text
from agent_envs.alfworld.model import Game, State, TaskType, bits
from oracles.pddl.conditions import ROOT, And, Atom, Condition, Equal, Exists, Fact, Not
from oracles.pddl.task import Task, read_domain

_AGENT = "agent1"
_OBJECT, _RECEPTACLE, _LAMP = "wanted otype", "wanted rtype", "lamp otype"  # no PDDL can spell them
_DONE = {TaskType.CLEAN: "isclean", TaskType.HEAT: "ishot", TaskType.COOL: "iscool"}


def native_task(game: Game, state: State) -> Task:
    """The task of reaching the goal of `game` from `state`."""
    task = _still(game)
    return task.from_facts(task.init | frozenset(_changing(game, state)))


@lru_cache(maxsize=8)
def _still(game: Game) -> Task:
    """The task with what never changes."""
    domain = read_domain(domain_text(game.generation))
    objects = {_AGENT: "agent"}
    objects.update(dict.fromkeys(game.locs, "location"))
    objects.update(dict.fromkeys(game.rec_ids, "receptacle"))
    objects.update(dict.fromkeys(game.obj_ids, "object"))
    for number in range(len(game.recs)):
        objects[_rtype(number)] = "rtype"
    for number in range(len(game.objs)):
        objects[_otype(number)] = "otype"
    objects.update(dict.fromkeys((_OBJECT, _LAMP), "otype"))
    objects[_RECEPTACLE] = "rtype"
    for name in sorted(domain.mentioned):  # types by which the rules know sinks, knives, ...
        objects.setdefault(name, ROOT)
    facts = frozenset(_lasting(game))
    return Task(domain, objects, facts, _goal(game), {name: name for name in objects})


def _lasting(game: Game) -> Iterator[Fact]:
    for rec, name in enumerate(game.rec_ids):
        yield "receptacletype", name, _rtype(rec)
        if game.rec_loc[rec] >= 0:
            yield "receptacleatlocation", name, game.locs[game.rec_loc[rec]]
        for obj in bits(game.can_hold[rec]):
            yield "cancontain", _rtype(rec), _otype(obj)
    for obj, name in enumerate(game.obj_ids):
        yield "objecttype", name, _otype(obj)
    for predicate in ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable"):
        for obj in bits(getattr(game, predicate)):
            yield predicate, game.obj_ids[obj]
    for rec in bits(game.openable):
        yield "openable", game.rec_ids[rec]
    for obj in bits(game.knife):
        yield "objecttype", game.obj_ids[obj], "knifetype"
    for kind, mask in (
        ("sinkbasintype", game.sinks),
        ("microwavetype", game.microwaves),
        ("fridgetype", game.fridges),
        (_RECEPTACLE, game.goal.receptacles),
    ):
        for rec in bits(mask):
            yield "receptacletype", game.rec_ids[rec], kind
    for kind, mask in ((_OBJECT, game.goal.objects), (_LAMP, game.goal.lamps)):
        for obj in bits(mask):
            yield "objecttype", game.obj_ids[obj], kind


def _changing(game: Game, state: State) -> Iterator[Fact]:
    yield "atlocation", _AGENT, game.locs[state.loc]
    if state.held >= 0:
        yield "holds", _AGENT, game.obj_ids[state.held]
        yield "holdsany", _AGENT
    for rec, mask in enumerate(state.contents):
        for obj in bits(mask):
            yield "inreceptacle", game.obj_ids[obj], game.rec_ids[rec]
    for loc, mask in enumerate(state.at):
        for obj in bits(mask):
            yield "objectatlocation", game.obj_ids[obj], game.locs[loc]
    for rec in bits(state.opened):
        yield "opened", game.rec_ids[rec]
    for predicate, mask in (
        ("isclean", state.clean),
        ("ishot", state.hot),
        ("iscool", state.cool),
        ("issliced", state.sliced),
        ("istoggled", state.toggled),
        ("ison", state.on),
    ):
        for obj in bits(mask):
            yield predicate, game.obj_ids[obj]


def _goal(game: Game) -> Condition:
    kind = game.goal.kind
    if kind is TaskType.LOOK:
        lit = (
            Atom("objecttype", ("?t", _LAMP)),
            Atom("istoggled", ("?t",)),
            Atom("receptacleatlocation", ("?r", "?l")),
            Atom("atlocation", (_AGENT, "?l")),
            Atom("inreceptacle", ("?t", "?r")),
        )
        held = Atom("objecttype", ("?o", _OBJECT)), Atom("holds", (_AGENT, "?o"))
        places = ("?t", "object"), ("?r", "receptacle"), ("?l", "location"), ("?o", "object")
        return Exists(places, And((*lit, *held)))
    there = _in_place("?o")
    made = _DONE.get(kind)
    parts: tuple[Condition, ...] = there if made is None else (*there, Atom(made, ("?o",)))
    variables = [("?r", "receptacle"), ("?o", "object")]
    if kind is TaskType.TWO:
        parts = (*parts, *_in_place("?p"), Not(Equal("?o", "?p")))
        variables.append(("?p", "object"))
    where = Atom("receptacletype", ("?r", _RECEPTACLE))
    return Exists(tuple(variables), And((where, *parts)))


def _in_place(variable: str) -> tuple[Condition, ...]:
    return Atom("objecttype", (variable, _OBJECT)), Atom("inreceptacle", (variable, "?r"))


def _rtype(number: int) -> str:
    return f"rtype {number}"


def _otype(number: int) -> str:
    return f"otype {number}"
