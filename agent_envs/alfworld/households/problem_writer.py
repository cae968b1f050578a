"""Generated households as game files: PDDL problem, goal, task sentence, walkthrough.

Symbols, facts and goals are spelled as in the public games (ALFWorld, arXiv:2010.03768), so that
every engine that reads those reads these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from agent_envs.alfworld.compile import domain_text, grammar_text
from agent_envs.alfworld.households.class_tables import class_tables
from agent_envs.alfworld.households.placement import Household, Task, classes_present
from agent_envs.alfworld.households.shortest import Stop, commands
from agent_envs.alfworld.model import TaskType

Payload = dict[str, Any]

SENTENCES = {
    TaskType.PICK: ("put a {o} in {r}", "put some {o} on {r}"),
    TaskType.LOOK: ("look at {o} under the {r}", "examine the {o} with the {r}"),
    TaskType.CLEAN: ("put a clean {o} in {r}", "clean some {o} and put it in {r}"),
    TaskType.HEAT: ("put a hot {o} in {r}", "heat some {o} and put it in {r}"),
    TaskType.COOL: ("put a cool {o} in {r}", "cool some {o} and put it in {r}"),
    TaskType.TWO: ("put two {o} in {r}", "find two {o} and put them in {r}"),
}
"""The wordings of each task type, without the full stop that the grammar adds."""

_MADE = {
    TaskType.CLEAN: ("cleanable", "isClean"),
    TaskType.HEAT: ("heatable", "isHot"),
    TaskType.COOL: ("coolable", "isCool"),
}
_PLAN_NAMES = {
    "take": "PickupObject",
    "move": "PutObject",
    "use": "ToggleObject",
    "clean": "CleanObject",
    "heat": "HeatObject",
    "cool": "CoolObject",
}


def payload(household: Household, stops: Sequence[Stop], sentence: str, name: str) -> Payload:
    """The JSON object of a ``game.tw-pddl`` file.

    Args:
        household: the game.
        stops: a plan that wins it; becomes the walkthrough.
        sentence: the task sentence without its full stop.
        name: the trial's name, which the problem is called after.
    """
    before, _, after = grammar_text().partition("UNKNOWN GOAL")
    return {
        "pddl_domain": domain_text(),
        "grammar": before + sentence + after,
        "pddl_problem": problem_text(household, name),
        "solvable": True,
        "walkthrough": list(commands(household, stops)),
    }


def sentence(task: Task, wording: int) -> str:
    """The task in words, in the given one of its wordings."""
    return SENTENCES[task.type][wording].format(o=task.object.lower(), r=task.target.lower())


def traj_data(household: Household, stops: Sequence[Stop], name: str, number: int) -> Payload:
    """The JSON object of a ``traj_data.json`` file, with the fields that ALFWorld reads."""
    task, layout = household.task, household.layout
    look = task.type is TaskType.LOOK
    return {
        "task_id": name,
        "task_type": str(task.type),
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": task.object,
            "parent_target": "" if look else task.target,
            "toggle_target": task.target if look else "",
        },
        "turk_annotations": {"anns": []},
        "scene": {
            "floor_plan": f"FloorPlan{layout.scene}",
            "random_seed": number,
            "scene_num": layout.scene,
        },
        "plan": {"high_pddl": list(_high_level(household, stops))},
    }


def _high_level(household: Household, stops: Sequence[Stop]) -> Iterator[Payload]:
    at = -1
    for receptacle, verb, thing in stops:
        r = household.layout.receptacles[receptacle]
        place, what = r.cls.lower(), thing.split("_bar_", 1)[0].lower()
        if r.loc != at:
            at = r.loc
            yield _discrete("GotoLocation", place)
        yield _discrete(_PLAN_NAMES[verb], *((what, place) if verb == "move" else (what,)))
    yield _discrete("NoOp")


def _discrete(action: str, *args: str) -> Payload:
    return {"discrete_action": {"action": action, "args": list(args)}}


def problem_text(household: Household, name: str) -> str:
    """The PDDL problem of a household."""
    return (
        f"\n(define (problem plan_{name})\n(:domain alfred)\n(:objects\n"
        + _lines(_declarations(household))
        + _type_declarations()
        + "        )\n\n(:init\n"
        + _lines(f"({fact})" for fact in _facts(household))
        + f"        )\n\n        (:goal\n{goal_text(household.task)}\n        )\n    )\n"
    )


def _lines(items: Iterable[str]) -> str:
    return "".join([f"        {item}\n" for item in items])


@lru_cache(maxsize=1)
def _type_declarations() -> str:
    """All types of the domain's world: some rules name a type that a room may not have."""
    tables = class_tables()
    return _lines(f"{cls}Type - otype" for cls in tables.object_types) + _lines(
        f"{cls}Type - rtype" for cls in tables.receptacle_types
    )


def _declarations(household: Household) -> Iterator[str]:
    layout = household.layout
    yield "agent1 - agent"
    for thing in household.things:
        yield f"{thing.id} - object"
    for item in layout.scenery:
        yield f"{item.id} - object"
    for r in layout.receptacles:
        yield f"{r.id} - receptacle"
    for loc in (*layout.locations, household.start, *_spots(household)):
        yield f"{loc} - location"


def _spots(household: Household) -> list[str]:
    """Locations of things that are nothing else's, each once."""
    used = {thing.spot for thing in household.things if thing.spot is not None}
    return sorted(used - {*household.layout.locations, household.start})


def _facts(household: Household) -> Iterator[str]:
    layout, tables = household.layout, class_tables()
    receptacles = layout.receptacles
    for r in receptacles:
        yield f"receptacleType {r.id} {r.cls}Type"
        yield f"receptacleAtLocation {r.id} {layout.locations[r.loc]}"
        if r.openable:
            yield f"openable {r.id}"
    present = list(classes_present(household))
    for cls in layout.by_class:
        held = tables.can.get(cls, frozenset())
        for o in present:
            if o in held:
                yield f"canContain {cls}Type {o}Type"
    yield f"atLocation agent1 {household.start}"
    for thing in household.things:
        yield f"objectType {thing.id} {thing.cls}Type"
        for name in sorted(tables.properties.get(thing.cls, ())):
            yield f"{name} {thing.id}"
        for place in thing.where:
            yield f"inReceptacle {thing.id} {receptacles[place].id}"
        yield f"objectAtLocation {thing.id} {household.location(thing)}"
        if thing.cool:
            yield f"isCool {thing.id}"
        if thing.inside is not None:
            yield f"inReceptacleObject {thing.id} {thing.inside}"
    for item in layout.scenery:
        yield f"objectType {item.id} {item.cls}Type"
        for name in sorted(tables.properties.get(item.cls, ())):
            yield f"{name} {item.id}"
        yield f"objectAtLocation {item.id} {layout.locations[item.loc]}"


@lru_cache(maxsize=1024)
def goal_text(task: Task) -> str:
    """The goal formula of a task."""
    if task.type is TaskType.LOOK:
        return f"""\
             (and
                 (exists (?ot - object
                          ?r - receptacle
                          ?a - agent
                          ?l - location)
                     (and
                         (objectType ?ot {task.target}Type)
                         (toggleable ?ot)
                         (isToggled ?ot)
                         (receptacleAtLocation ?r ?l)
                         (atLocation ?a ?l)
                         (inReceptacle ?ot ?r)
                     )
                 )
                 (exists (?o - object
                          ?a - agent)
                     (and
                         (objectType ?o {task.object}Type)
                         (holds ?a ?o)
                     )
                 )
             )"""
    if task.type is TaskType.TWO:
        return f"""\
            (and
                (exists (?r - receptacle)
                    (exists (?o1 - object)
                        (and
                            (objectType ?o1 {task.object}Type)
                            (receptacleType ?r {task.target}Type)
                            (inReceptacle ?o1 ?r)
                            (exists (?o2 - object)
                                (and
                                    (not (= ?o1 ?o2))
                                    (objectType ?o2 {task.object}Type)
                                    (receptacleType ?r {task.target}Type)
                                    (inReceptacle ?o2 ?r)
                                )
                            )
                        )
                    )
                )
            )"""
    able = made = ""
    if task.type in _MADE:
        able, made = (f"({word} ?o)\n{' ' * 28}" for word in _MADE[task.type])
    return f"""\
            (and
                (exists (?r - receptacle)
                    (exists (?o - object)
                        (and
                            {able}(objectType ?o {task.object}Type)
                            (receptacleType ?r {task.target}Type)
                            {made}(inReceptacle ?o ?r)
                        )
                    )
                )
            )"""
