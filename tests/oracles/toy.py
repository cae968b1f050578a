"""Toy households for the oracle tests: random ones, odder than any real game, and given ones.

Also the slow, independent answer that the planner is compared with: breadth-first search over
the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from agent_envs.alfworld import engine
from agent_envs.alfworld.compile import compile_game, domain_text, grammar_text
from agent_envs.alfworld.goals import won
from agent_envs.alfworld.model import Game, PrivilegedView, State, TaskType

OBJ, REC = "Mug", "Cabinet"
_SENTENCE = "put some mug on cabinet"


@dataclass
class Rec:
    """A receptacle: PDDL type without the suffix, location number, what it can hold."""

    kind: str
    loc: int
    holds: tuple[str, ...] = ()
    openable: bool = False
    opened: bool = False


@dataclass
class Obj:
    """An object: type without suffix, indices of the receptacles that list it, PDDL flags."""

    kind: str
    places: tuple[int, ...] = ()
    flags: tuple[str, ...] = ("pickupable",)


@dataclass
class House:
    task: TaskType
    recs: list[Rec]
    objs: list[Obj]
    agent: int = 0
    locations: int = 0
    held: int | None = None
    more: list[str] = field(default_factory=list)

    def payload(self) -> dict[str, object]:
        """A game file's content with the real domain and grammar."""
        locs = max([self.agent, self.locations - 1, *(rec.loc for rec in self.recs)]) + 1
        rec_ids = [f"{rec.kind}_bar_{i:02d}" for i, rec in enumerate(self.recs)]
        obj_ids = [f"{obj.kind}_bar_{i:02d}" for i, obj in enumerate(self.objs)]
        loc_ids = [f"loc_bar_{i}" for i in range(locs)]
        rec_types = {rec.kind for rec in self.recs} | {REC}
        obj_types = {obj.kind for obj in self.objs} | {OBJ, "DeskLamp"}
        facts = [f"atLocation agent1 {loc_ids[self.agent]}", *self.more]
        # a location exists for the game if it occurs in a fact
        for i, rec in enumerate(self.recs):
            facts.append(f"receptacleType {rec_ids[i]} {rec.kind}Type")
            facts.append(f"receptacleAtLocation {rec_ids[i]} {loc_ids[rec.loc]}")
            if rec.openable:
                facts.append(f"openable {rec_ids[i]}")
                if rec.opened:
                    facts.append(f"opened {rec_ids[i]}")
        pairs = {(rec.kind, kind) for rec in self.recs for kind in rec.holds if kind in obj_types}
        facts += [f"canContain {rec}Type {kind}Type" for rec, kind in sorted(pairs)]
        for i, obj in enumerate(self.objs):
            facts.append(f"objectType {obj_ids[i]} {obj.kind}Type")
            facts += [f"{flag} {obj_ids[i]}" for flag in obj.flags]
            for place in obj.places:
                facts.append(f"inReceptacle {obj_ids[i]} {rec_ids[place]}")
                facts.append(f"objectAtLocation {obj_ids[i]} {loc_ids[self.recs[place].loc]}")
        if self.held is not None:
            facts += [f"holds agent1 {obj_ids[self.held]}", "holdsAny agent1"]
        declared = (
            ["agent1 - agent"]
            + [f"{name} - object" for name in obj_ids]
            + [f"{name} - receptacle" for name in rec_ids]
            + [f"{name} - location" for name in loc_ids]
            + [f"{name}Type - otype" for name in sorted(obj_types)]
            + [f"{name}Type - rtype" for name in sorted(rec_types)]
        )
        problem = (
            "(define (problem toy) (:domain alfred) (:objects "
            + " ".join(declared)
            + ") (:init "
            + " ".join(f"({fact})" for fact in dict.fromkeys(facts))
            + f") (:goal {_goal(self.task)}))"
        )
        return {
            "pddl_domain": domain_text(),
            "grammar": grammar_text(_SENTENCE),
            "pddl_problem": problem,
            "solvable": True,
        }

    def game(self) -> Game:
        return compile_game(self.payload())


_DONE: Mapping[TaskType, tuple[str, str]] = {
    TaskType.CLEAN: ("cleanable", "isClean"),
    TaskType.HEAT: ("heatable", "isHot"),
    TaskType.COOL: ("coolable", "isCool"),
}


def _goal(task: TaskType) -> str:
    kind = f"(objectType ?o {OBJ}Type)"
    where = f"(inReceptacle ?o ?r) (receptacleType ?r {REC}Type)"
    if task is TaskType.LOOK:
        return (
            "(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and "
            "(objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o - object ?a - agent) (and {kind} (holds ?a ?o))))"
        )
    if task is TaskType.TWO:
        return (
            f"(exists (?r - receptacle) (exists (?o1 - object) (and "
            f"(objectType ?o1 {OBJ}Type) (receptacleType ?r {REC}Type) (inReceptacle ?o1 ?r) "
            f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 {OBJ}Type) "
            f"(receptacleType ?r {REC}Type) (inReceptacle ?o2 ?r))))))"
        )
    extra = "".join(f" ({name} ?o)" for name in _DONE.get(task, ()))
    return f"(exists (?r - receptacle) (exists (?o - object) (and {kind}{extra} {where})))"


def random_house(task: TaskType, seed: int) -> House:
    """A house of 3 to 6 receptacles at few locations, with every oddity the rules allow.

    Receptacles share locations, objects are listed in several receptacles, a bystander may fit
    nowhere, tools and targets may be missing.
    """
    rng = Random(f"{task}/{seed}")
    tool = {
        TaskType.CLEAN: "SinkBasin",
        TaskType.HEAT: "Microwave",
        TaskType.COOL: "Fridge",
    }.get(task)
    locations = rng.randint(2, 4)
    holds = {
        kind: tuple(
            name for name in (OBJ, "Pen", "DeskLamp") if rng.random() < (0.85, 0.5, 0.1)[i % 3]
        )
        for i, kind in enumerate((REC, "Drawer", "Shelf", "SinkBasin", "Microwave", "Fridge"))
    }
    holds[REC] = (OBJ, *(("Pen",) if rng.random() < 0.6 else ()))
    kinds = [REC, *rng.choices([REC, "Drawer", "Shelf"], k=rng.randint(2, 3))]
    if tool is not None and rng.random() < 0.95:
        kinds += [tool] * rng.choice((1, 1, 2))
    recs = []
    for kind in kinds:
        openable = kind in ("Microwave", "Fridge") or rng.random() < 0.5
        recs.append(
            Rec(kind, rng.randint(0, locations), holds[kind], openable, rng.random() < 0.25)
        )
    able, done = _DONE.get(task, ("", ""))
    objs = []
    for _ in range(rng.choice((1, 2, 2, 3) if task is TaskType.TWO else (1, 1, 2))):
        flags = [name for name in ("pickupable", able) if name and rng.random() < 0.95]
        if done and rng.random() < 0.15:
            flags.append(done)
        # mostly outside the targets, or little would be left to do
        others = [i for i, rec in enumerate(recs) if rec.kind != REC]
        anywhere = rng.random() < 0.25 or not others
        objs.append(Obj(OBJ, _places(rng, range(len(recs)) if anywhere else others), tuple(flags)))
    objs += [Obj("Pen", _places(rng, range(len(recs)))) for _ in range(rng.randint(0, 1))]
    if task is TaskType.LOOK:
        objs += [
            Obj(
                "DeskLamp",
                _places(rng, range(len(recs))),
                ("toggleable", *(("pickupable",) if rng.random() < 0.3 else ())),
            )
            for _ in range(rng.choice((1, 1, 2)))
        ]
    held = rng.randrange(len(objs)) if rng.random() < 0.25 else None
    if rng.random() < 0.35:
        # Hands full of a pen, hardly anything open: where to drop it matters most.
        held = len(objs)
        objs.append(Obj("Pen"))
        for rec in recs:
            rec.openable, rec.opened = rng.random() < 0.9, rng.random() < 0.1
    return House(task, recs, objs, agent=rng.randint(0, locations), held=held)


def _places(rng: Random, recs: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(rng.sample(recs, min(len(recs), rng.choice((1, 1, 1, 2, 3))))))


def random_walk(game: Game, rng: Random, steps: int) -> State:
    """A state reached by `steps` random admissible commands that may change the world."""
    state = game.start
    for _ in range(steps):
        state, _, _ = engine.step(game, state, rng.choice(world_changing(game, state)))
    return state


def world_changing(game: Game, state: State) -> list[str]:
    """The admissible commands but those that only describe."""
    idle = ("look", "inventory", "help", "examine ")
    found = [c for c in engine.admissible(game, state) if not c.startswith(idle)]
    return found or ["look"]


def shortest_length(
    game: Game,
    state: State,
    limit: int | None = None,
    simplify: Callable[[State], State] | None = None,
) -> int | None:
    """Commands to the nearest state that fulfils the goal, by breadth-first search.

    Args:
        limit: give up after this depth and return None. None: search until nothing is left.
        simplify: maps states that the goal and the rules cannot tell apart to one.
    """
    simplify = simplify or bare
    frontier = [simplify(state)]
    seen = set(frontier)
    depth = 0
    while frontier:
        if any(won(game, node) for node in frontier):
            return depth
        if depth == limit:
            return None
        depth += 1
        following = []
        for node in frontier:
            for command in world_changing(game, node):
                child = simplify(engine.step(game, node, command)[0])
                if child not in seen:
                    seen.add(child)
                    following.append(child)
        frontier = following
    return None


def bare(state: State) -> State:
    """Drop what no goal reads and no condition but slicing needs."""
    return state._replace(
        at=(0,) * len(state.at), removed=(0,) * len(state.removed), on=0, sliced=0
    )


def view(game: Game, state: State | None = None, steps_left: int | None = None) -> PrivilegedView:
    """What the planner is shown; the start of the game if no state is given."""
    return PrivilegedView(game, game.start if state is None else state, steps_left)


def run_plan(game: Game, state: State, actions: tuple[str, ...]) -> State:
    """Carry out `actions`; each must be admissible and accepted, and only the last may win."""
    for action in actions:
        assert not won(game, state)
        assert action in engine.admissible(game, state)
        state, _, accepted = engine.step(game, state, action)
        assert accepted
    return state
