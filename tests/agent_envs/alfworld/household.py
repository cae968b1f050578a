"""A household written by hand in which every oddity of the game can be met.

Places: the start (nothing there); the desks, where two desks and a drawer share one spot; the
fridge; the microwave; the sink; the bathtub; a shelf.
"""

from __future__ import annotations

from typing import Any

from agent_envs.alfworld.compile import compile_game, domain_text, grammar_text
from agent_envs.alfworld.engine import step
from agent_envs.alfworld.model import Game, State

PLACES = {  # receptacle: (location, type, openable)
    "Desk_bar_A": ("loc_bar_desks", "DeskType", False),
    "Desk_bar_B": ("loc_bar_desks", "DeskType", False),
    "Drawer_bar_A": ("loc_bar_desks", "DrawerType", True),
    "Fridge_bar_A": ("loc_bar_fridge", "FridgeType", True),
    "Microwave_bar_A": ("loc_bar_microwave", "MicrowaveType", True),
    "Sink_bar_A_bar_SinkBasin": ("loc_bar_sink", "SinkBasinType", False),
    "Bathtub_bar_A_bar_BathtubBasin": ("loc_bar_bath", "BathtubBasinType", False),
    "Shelf_bar_A": ("loc_bar_shelf", "ShelfType", False),
}
THINGS = {  # object: (type, receptacles, recorded location or None, properties)
    "Mug_bar_A": ("MugType", ["Desk_bar_A"], "loc_bar_desks", "cleanable heatable coolable"),
    "Mug_bar_B": ("MugType", ["Fridge_bar_A"], "loc_bar_fridge", "cleanable heatable coolable"),
    "Mug_bar_C": ("MugType", [], None, ""),  # never placed, but it takes a number
    "Bowl_bar_A": ("BowlType", ["Desk_bar_A"], "loc_bar_desks", "cleanable isReceptacleObject"),
    "Pen_bar_A": ("PenType", ["Desk_bar_B", "Shelf_bar_A"], "loc_bar_desks", ""),
    "Apple_bar_A": (
        "AppleType",
        ["Fridge_bar_A"],
        "loc_bar_fridge",
        "sliceable cleanable heatable",
    ),
    "Knife_bar_A": ("KnifeType", ["Shelf_bar_A"], "loc_bar_shelf", "cleanable"),
    "ButterKnife_bar_A": ("ButterKnifeType", ["Drawer_bar_A"], "loc_bar_desks", ""),
    "DeskLamp_bar_A": ("DeskLampType", ["Desk_bar_B"], "loc_bar_desks", "toggleable"),
    "CellPhone_bar_A": ("CellPhoneType", ["Drawer_bar_A"], "loc_bar_desks", "toggleable"),
    "TeddyBear_bar_A": ("TeddyBearType", ["Shelf_bar_A"], "loc_bar_shelf", ""),
}
FIXED = ("DeskLamp_bar_A", "Mug_bar_C")  # cannot be taken
EXTRA = ("(isCool Mug_bar_B)", "(isCool Apple_bar_A)", "(inReceptacleObject Pen_bar_A Bowl_bar_A)")
NOT_CONTAINED = ("TeddyBearType",)  # no receptacle takes it back

PUT = """(:goal (and (exists (?r - receptacle) (exists (?o - object) (and
    (inReceptacle ?o ?r) (objectType ?o {obj}) (receptacleType ?r {rec}))))))"""
TREAT = """(:goal (and (exists (?r - receptacle) (exists (?o - object) (and
    ({able} ?o) (objectType ?o {obj}) (receptacleType ?r {rec}) ({done} ?o)
    (inReceptacle ?o ?r))))))"""
TWO = """(:goal (and (exists (?r - receptacle) (exists (?o1 - object) (and
    (objectType ?o1 {obj}) (receptacleType ?r {rec}) (inReceptacle ?o1 ?r)
    (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 {obj})
        (receptacleType ?r {rec}) (inReceptacle ?o2 ?r))))))))"""
LOOK = """(:goal (and
    (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
        (objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot)
        (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
    (exists (?o - object ?a - agent) (and (objectType ?o {obj}) (holds ?a ?o)))))"""


def problem(goal: str, extra: tuple[str, ...] = EXTRA) -> str:
    """The PDDL problem with one goal."""
    rec_types = sorted({kind for _, kind, _ in PLACES.values()})
    obj_types = sorted({kind for kind, _, _, _ in THINGS.values()})
    locations = sorted({loc for loc, _, _ in PLACES.values()} | {"loc_bar_start"})
    objects = ["agent1 - agent"]
    objects += [f"{name} - object" for name in THINGS]
    objects += [f"{name} - receptacle" for name in PLACES]
    objects += [f"{name} - location" for name in locations]
    objects += [f"{name} - otype" for name in obj_types]
    objects += [f"{name} - rtype" for name in rec_types]
    facts = ["(atLocation agent1 loc_bar_start)", *extra]
    for rec, (loc, kind, openable) in PLACES.items():
        facts += [f"(receptacleAtLocation {rec} {loc})", f"(receptacleType {rec} {kind})"]
        facts += [f"(openable {rec})"] if openable else []
    for obj, (kind, recs, loc, properties) in THINGS.items():
        facts.append(f"(objectType {obj} {kind})")
        facts += [f"(inReceptacle {obj} {rec})" for rec in recs]
        facts += [f"(objectAtLocation {obj} {loc})"] if loc else []
        facts += [f"({name} {obj})" for name in properties.split()]
        facts += [] if obj in FIXED else [f"(pickupable {obj})"]
    facts += [
        f"(canContain {rec} {obj})"
        for rec in rec_types
        for obj in obj_types
        if obj not in NOT_CONTAINED
    ]
    lines = "\n".join
    return (
        f"(define (problem toy)\n(:domain alfred)\n(:objects\n{lines(objects)}\n)\n"
        f"(:init\n{lines(facts)}\n)\n{goal}\n)"
    )


def payload(
    goal: str = PUT.format(obj="MugType", rec="ShelfType"),
    task: str = "put some mug on shelf",
    generation: str = "move",
    **changes: Any,
) -> dict[str, Any]:
    """The JSON object of the toy's game file."""
    return {
        "pddl_domain": domain_text(generation),
        "grammar": grammar_text(task, generation),
        "pddl_problem": problem(goal),
        "solvable": True,
        "walkthrough": None,
        **changes,
    }


def toy(goal: str = PUT.format(obj="MugType", rec="ShelfType"), generation: str = "move") -> Game:
    """The toy, compiled."""
    return compile_game(payload(goal, generation=generation))


def play(game: Game, *commands: str, state: State | None = None) -> tuple[State, str]:
    """Carry out accepted commands; the last state and text."""
    text = ""
    state = game.start if state is None else state
    for command in commands:
        state, text, accepted = step(game, state, command)
        assert accepted, f"{command!r} was refused"
    return state, text


def refused(game: Game, state: State, command: str) -> bool:
    """Whether a command is refused, with the one text for it and nothing changed."""
    after, text, accepted = step(game, state, command)
    assert accepted or (after == state and text == "Nothing happens.")
    return not accepted
