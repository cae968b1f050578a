"""The six goals of ALFWorld: reading their formulas, deciding whether a state fulfils them.

All are conjunctions under existential quantifiers, so a formula is read as a set of literals
whose variables are renamed apart, and then compared with the six known sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent_envs.alfworld.model import Game, Goal, State, TaskType
from agent_envs.alfworld.pddl import Tree, read_typed_list
from agent_envs.errors import UnsupportedGame

__all__ = ["Goal", "GoalTerms", "parse_goal", "won"]

# Members of an Enum class are slow to look up, and `won` runs on every step.
_LOOK, _CLEAN, _HEAT, _COOL, _TWO = (
    TaskType.LOOK,
    TaskType.CLEAN,
    TaskType.HEAT,
    TaskType.COOL,
    TaskType.TWO,
)
_DONE_TO = {
    TaskType.CLEAN: ("cleanable", "isclean"),
    TaskType.HEAT: ("heatable", "ishot"),
    TaskType.COOL: ("coolable", "iscool"),
}
_LAMP = "desklamptype"


@dataclass(frozen=True, slots=True)
class GoalTerms:
    """What a formula asks for: its kind and the PDDL types of object and receptacle."""

    kind: TaskType
    object_type: str
    receptacle_type: str | None
    """None for `TaskType.LOOK`, where any receptacle may hold the lamp."""


def won(game: Game, state: State) -> bool:
    """Whether `state` fulfils the goal of `game`. Recomputed from the state alone."""
    goal = game.goal
    kind = goal.kind
    if kind is _LOOK:
        held = state.held
        if held < 0 or not goal.objects >> held & 1:
            return False
        lit = goal.lamps & state.toggled
        if not lit:
            return False
        contents = state.contents
        return any(contents[rec] & lit for rec in game.recs_at[state.loc])
    wanted = goal.objects
    if kind is _CLEAN:
        wanted &= state.clean
    elif kind is _HEAT:
        wanted &= state.hot
    elif kind is _COOL:
        wanted &= state.cool
    if not wanted:
        return False
    contents = state.contents
    if kind is _TWO:
        for rec in game.goal_recs:
            there = contents[rec] & wanted
            if there & (there - 1):  # more than one bit
                return True
        return False
    for rec in game.goal_recs:  # noqa: SIM110 - any() costs twice as much, on every step
        if contents[rec] & wanted:
            return True
    return False


def parse_goal(tree: Tree) -> GoalTerms:
    """Recognise one of the six goal formulas.

    Raises:
        UnsupportedGame: any other formula; the message names the part that does not fit.
    """
    literals: set[tuple[str, ...]] = set()
    _flatten(tree, {}, {}, literals)
    by_head: dict[str, set[tuple[str, ...]]] = {}
    for literal in literals:
        by_head.setdefault(literal[0], set()).add(literal[1:])
    for terms, expected in _candidates(by_head):
        if expected == literals:
            return terms
    raise UnsupportedGame(
        "The goal is none of ALFWorld's six formulas; its conditions are "
        + ", ".join(sorted("(" + " ".join(literal) + ")" for literal in literals))
        + "."
    )


def _flatten(
    tree: Tree,
    scope: Mapping[str, str],
    counts: dict[str, int],
    literals: set[tuple[str, ...]],
) -> None:
    """Collect the literals below `tree`, each variable renamed to ``type#number``."""
    if not tree or not isinstance(tree[0], str):
        raise UnsupportedGame(f"Goal: expected a condition, found {tree!r}.")
    head, rest = tree[0], tree[1:]
    if head == "and":
        for part in rest:
            _flatten(_sub(part), scope, counts, literals)
    elif head == "exists":
        if len(rest) != 2:
            raise UnsupportedGame(f"Goal: expected (exists (variables) condition): {tree!r}.")
        inside = dict(scope)
        for variable, kind in read_typed_list(_sub(rest[0])).items():
            counts[kind] = counts.get(kind, 0) + 1
            inside[variable] = f"{kind}#{counts[kind]}"
        _flatten(_sub(rest[1]), inside, counts, literals)
    elif head == "not":
        if len(rest) != 1 or len(_sub(rest[0])) != 3 or _sub(rest[0])[0] != "=":
            raise UnsupportedGame(f"Goal: only (not (= ?a ?b)) may be negated: {tree!r}.")
        literals.add(("!=", *sorted(scope.get(str(v), str(v)) for v in _sub(rest[0])[1:])))
    elif head in ("or", "forall", "imply", "when", "="):
        raise UnsupportedGame(f"Goal: {head!r} is not supported.")
    else:
        literals.add((head, *(scope.get(str(symbol), str(symbol)) for symbol in rest)))


def _sub(part: str | Tree) -> Tree:
    if isinstance(part, str):
        raise UnsupportedGame(f"Goal: expected a condition in parentheses, found {part!r}.")
    return part


def _candidates(
    by_head: Mapping[str, set[tuple[str, ...]]],
) -> list[tuple[GoalTerms, set[tuple[str, ...]]]]:
    """The readings that the types named in a formula allow, each with its exact literals."""
    readings: list[tuple[GoalTerms, set[tuple[str, ...]]]] = []
    types = {(pair[0], pair[1]) for pair in by_head.get("objecttype", ()) if len(pair) == 2}
    rec_types = {pair[1] for pair in by_head.get("receptacletype", ()) if len(pair) == 2}
    if "istoggled" in by_head:
        for lamp, item in (("object#1", "object#2"), ("object#2", "object#1")):
            for a1, a2 in (("agent#1", "agent#2"), ("agent#2", "agent#1"), ("agent#1", "agent#1")):
                for variable, kind in types:
                    if variable != item:
                        continue
                    readings.append(
                        (
                            GoalTerms(TaskType.LOOK, kind, None),
                            {
                                ("objecttype", lamp, _LAMP),
                                ("toggleable", lamp),
                                ("istoggled", lamp),
                                ("receptacleatlocation", "receptacle#1", "location#1"),
                                ("atlocation", a1, "location#1"),
                                ("inreceptacle", lamp, "receptacle#1"),
                                ("objecttype", item, kind),
                                ("holds", a2, item),
                            },
                        )
                    )
        return readings
    if len(rec_types) != 1 or len({kind for _, kind in types}) != 1:
        return readings
    rec_type = rec_types.pop()
    kind = next(kind for _, kind in types)
    base: set[tuple[str, ...]] = {
        ("objecttype", "object#1", kind),
        ("receptacletype", "receptacle#1", rec_type),
        ("inreceptacle", "object#1", "receptacle#1"),
    }
    readings.append((GoalTerms(TaskType.PICK, kind, rec_type), base))
    for task, (able, done) in _DONE_TO.items():
        extra: set[tuple[str, ...]] = {(able, "object#1"), (done, "object#1")}
        readings.append((GoalTerms(task, kind, rec_type), base | extra))
    second: set[tuple[str, ...]] = {
        ("objecttype", "object#2", kind),
        ("inreceptacle", "object#2", "receptacle#1"),
        ("!=", "object#1", "object#2"),
    }
    readings.append((GoalTerms(TaskType.TWO, kind, rec_type), base | second))
    return readings
