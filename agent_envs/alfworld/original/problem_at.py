"""A game file that begins where an episode of another one stands, for planners of the original.

The problem is written from the tables of a `Game`, so it says the same as the game's own problem
with other facts where the state has moved on. Its types are made up: things that may be put into
the same receptacles share one, and so do receptacles that take the same things.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent_envs.alfworld.generations import MOVE, domain_text, grammar_text
from agent_envs.alfworld.model import Game, State, TaskType, bits

_AGENT = "agent1"
# Named by the rules of the domain, so they are declared whether or not a room has such things.
_SINK, _MICROWAVE, _FRIDGE = "SinkBasinType", "MicrowaveType", "FridgeType"
_KNIFE, _LAMP = "KnifeType", "DeskLampType"
_FIXED_OTYPES = (_KNIFE, "ButterKnifeType", _LAMP)
_FIXED_RTYPES = (_SINK, "SinkType", _MICROWAVE, _FRIDGE)
_WANTED, _TARGET = "wantedType", "targetType"
_DONE_TO = {
    TaskType.CLEAN: ("cleanable", "isClean"),
    TaskType.HEAT: ("heatable", "isHot"),
    TaskType.COOL: ("coolable", "isCool"),
}


def payload_at(game: Game, state: State) -> Mapping[str, Any]:
    """The JSON object of a game file whose start is `state`, with rules of ALFWorld 0.4.

    What was taken out of which receptacle (`State.removed`), which only texts show, is left out.
    """
    sentence = game.task_sentence.rstrip(".")
    return {
        "pddl_domain": domain_text(MOVE.name),
        "grammar": grammar_text(sentence, MOVE.name),
        "pddl_problem": _problem(game, state),
        "walkthrough": [],
        "solvable": True,
    }


def _problem(game: Game, state: State) -> str:
    return (
        "(define (problem plan_state)\n(:domain alfred)\n(:objects\n"
        + _lines(_declarations(game))
        + ")\n(:init\n"
        + _lines(f"({fact})" for fact in _facts(game, state))
        + f")\n(:goal {_goal(game)})\n)\n"
    )


def _lines(items: Iterable[str]) -> str:
    return "".join(f"    {item}\n" for item in items)


def _declarations(game: Game) -> Iterator[str]:
    yield f"{_AGENT} - agent"
    yield from (f"{name} - object" for name in game.obj_ids)
    yield from (f"{name} - receptacle" for name in game.rec_ids)
    yield from (f"{name} - location" for name in game.locs)
    yield from (f"{name} - otype" for name in (*_FIXED_OTYPES, _WANTED))
    yield from (f"{name} - rtype" for name in (*_FIXED_RTYPES, _TARGET))
    yield from (f"obj{number}Type - otype" for number in range(len(set(_fits_into(game)))))
    yield from (f"rec{number}Type - rtype" for number in range(len(set(game.can_hold))))


def _fits_into(game: Game) -> list[int]:
    """Per object: mask of the receptacles that take it."""
    return [
        sum(1 << rec for rec, mask in enumerate(game.can_hold) if mask >> obj & 1)
        for obj in range(len(game.objs))
    ]


def _numbers(masks: Iterable[int]) -> dict[int, int]:
    return {mask: number for number, mask in enumerate(dict.fromkeys(masks))}


def _facts(game: Game, state: State) -> Iterator[str]:
    objs, recs = game.obj_ids, game.rec_ids
    fits = _fits_into(game)
    obj_types, rec_types = _numbers(fits), _numbers(game.can_hold)
    for rec, name in enumerate(recs):
        yield f"receptacleType {name} rec{rec_types[game.can_hold[rec]]}Type"
        if game.rec_loc[rec] >= 0:
            yield f"receptacleAtLocation {name} {game.locs[game.rec_loc[rec]]}"
        yield from (f"inReceptacle {objs[obj]} {name}" for obj in bits(state.contents[rec]))
    for obj, name in enumerate(objs):
        yield f"objectType {name} obj{obj_types[fits[obj]]}Type"
        yield from (f"inReceptacleObject {objs[inner]} {name}" for inner in game.inner[obj])
    for row, rec_type in rec_types.items():
        for column, obj_type in obj_types.items():
            if row >> fits.index(column) & 1:
                yield f"canContain rec{rec_type}Type obj{obj_type}Type"
    for loc, mask in enumerate(state.at):
        yield from (f"objectAtLocation {objs[obj]} {game.locs[loc]}" for obj in bits(mask))
    yield f"atLocation {_AGENT} {game.locs[state.loc]}"
    if state.held >= 0:
        yield f"holds {_AGENT} {objs[state.held]}"
        yield f"holdsAny {_AGENT}"
    yield from _flags(game, state)
    for kind, mask in (
        (_WANTED, game.goal.objects),
        (_KNIFE, game.knife),
        (_LAMP, game.goal.lamps),
    ):
        yield from (f"objectType {objs[obj]} {kind}" for obj in bits(mask))
    target = game.goal.receptacles if game.goal.kind is not TaskType.LOOK else 0
    rooms = ((_TARGET, target), (_SINK, game.sinks), (_MICROWAVE, game.microwaves))
    for kind, mask in (*rooms, (_FRIDGE, game.fridges)):
        yield from (f"receptacleType {recs[rec]} {kind}" for rec in bits(mask))


def _flags(game: Game, state: State) -> Iterator[str]:
    for name, mask in (("openable", game.openable), ("opened", state.opened)):
        yield from (f"{name} {game.rec_ids[rec]}" for rec in bits(mask))
    for name, mask in (
        ("pickupable", game.pickupable),
        ("cleanable", game.cleanable),
        ("heatable", game.heatable),
        ("coolable", game.coolable),
        ("toggleable", game.toggleable),
        ("sliceable", game.sliceable),
        ("isReceptacleObject", game.receptacle_object),
        ("isClean", state.clean),
        ("isHot", state.hot),
        ("isCool", state.cool),
        ("isSliced", state.sliced),
        ("isToggled", state.toggled),
        ("isOn", state.on),
    ):
        yield from (f"{name} {game.obj_ids[obj]}" for obj in bits(mask))


def _goal(game: Game) -> str:
    kind = game.goal.kind
    if kind is TaskType.LOOK:
        return (
            "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
            f"(objectType ?ot {_LAMP}) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {_WANTED}) (holds ?a ?o))))"
        )
    placed = f"(objectType ?o {_WANTED}) (receptacleType ?r {_TARGET}) (inReceptacle ?o ?r)"
    if kind is TaskType.TWO:
        return (
            f"(and (exists (?r - receptacle) (exists (?o - object) (and {placed} "
            f"(exists (?o2 - object) (and (not (= ?o ?o2)) (objectType ?o2 {_WANTED}) "
            f"(receptacleType ?r {_TARGET}) (inReceptacle ?o2 ?r)))))))"
        )
    able, done = _DONE_TO.get(kind, ("", ""))
    extra = f" ({able} ?o) ({done} ?o)" if able else ""
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {placed}{extra}))))"
