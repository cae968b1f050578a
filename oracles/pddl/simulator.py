"""What an action needs and does: PDDL's own meaning, on sets of facts.

Plans are checked with it before they are given to anybody, so a planner that reads a rule
differently is found out, and the state that a command leads to is known without asking the game.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from oracles.pddl.conditions import (
    And,
    Atom,
    Condition,
    Effect,
    Equal,
    Exists,
    Fact,
    ForAll,
    Not,
    Or,
    Parameters,
)
from oracles.pddl.task import Task

Facts = frozenset[Fact]
Binding = Mapping[str, str]


def holds(task: Task, facts: Facts, condition: Condition, binding: Binding | None = None) -> bool:
    """Whether `condition` is so; `binding` gives the objects that its free variables stand for."""
    bound = binding or {}
    match condition:
        case Atom(predicate, args):
            return (predicate, *[bound.get(arg, arg) for arg in args]) in facts
        case Equal(left, right):
            return bound.get(left, left) == bound.get(right, right)
        case Not(part):
            return not holds(task, facts, part, bound)
        case And(parts):
            return all(holds(task, facts, part, bound) for part in parts)
        case Or(parts):
            return any(holds(task, facts, part, bound) for part in parts)
        case Exists(parameters, part):
            return any(True for _ in solutions(task, facts, parameters, part, bound))
        case ForAll(parameters, part):
            against = solutions(task, facts, parameters, _negated(part), bound)
            return not any(True for _ in against)


def solutions(
    task: Task, facts: Facts, parameters: Parameters, condition: Condition, binding: Binding
) -> Iterator[Binding]:
    """Every way to bind `parameters` in which `condition` holds, `binding` included.

    Facts propose the values: trying all objects would take hours where a goal has four variables.
    """
    own = dict(parameters)
    outer = {name: value for name, value in binding.items() if name not in own}
    yield from _joined(task, facts, own, list(_conjuncts(condition)), outer)


def won(task: Task, facts: Facts) -> bool:
    """Whether the goal is so."""
    return holds(task, facts, task.goal)


def applied(task: Task, facts: Facts, operator: Fact) -> Facts | None:
    """The facts after an operator (action and arguments); None if it is not possible.

    As PDDL has it, conditions of effects look at the facts before, and what one effect makes so
    another cannot undo.
    """
    action = task.domain.actions.get(operator[0])
    if action is None or len(operator) - 1 != len(action.parameters):
        return None
    binding: dict[str, str] = {}
    for (name, kind), value in zip(action.parameters, operator[1:], strict=True):
        own = task.objects.get(value)
        if own is None or not task.is_a(own, kind):
            return None
        binding[name] = value
    if not holds(task, facts, action.precondition, binding):
        return None
    added: set[Fact] = set()
    removed: set[Fact] = set()
    for effect in action.effects:
        for atom in _changes(task, facts, effect, binding):
            (added if effect.becomes else removed).add(atom)
    return (facts - removed) | added


def broken_at(task: Task, operators: Iterable[Fact]) -> int | None:
    """The first step of a plan that is not possible, or its length if the goal is not reached.

    None: the plan is right.
    """
    facts: Facts | None = task.init
    number = 0
    for number, operator in enumerate(operators, 1):
        assert facts is not None
        facts = applied(task, facts, operator)
        if facts is None:
            return number - 1
    return None if won(task, facts if facts is not None else frozenset()) else number


def read_by_rules(task: Task) -> frozenset[str]:
    """The predicates that some condition reads: two states that agree on them play alike."""
    found: set[str] = set()
    _predicates(task.goal, found)
    for action in task.domain.actions.values():
        _predicates(action.precondition, found)
        for effect in action.effects:
            _predicates(effect.condition, found)
    return frozenset(found)


def _changes(task: Task, facts: Facts, effect: Effect, binding: Binding) -> Iterator[Fact]:
    for more in solutions(task, facts, effect.parameters, effect.condition, binding):
        yield (effect.atom.predicate, *[more.get(arg, arg) for arg in effect.atom.args])


def _joined(
    task: Task, facts: Facts, left: dict[str, str], parts: list[Condition], bound: dict[str, str]
) -> Iterator[Binding]:
    """Bind the variables `left` (name -> type) so that all `parts` hold."""
    waiting = []
    for part in parts:
        if _variables(part) & left.keys():
            waiting.append(part)
        elif not holds(task, facts, part, bound):
            return
    if not left:
        yield bound
        return
    atoms = [part for part in waiting if isinstance(part, Atom)]
    known = _by_predicate(facts)
    if not atoms:
        name = next(iter(left))
        rest = {other: kind for other, kind in left.items() if other != name}
        for value in task.members(left[name]):
            yield from _joined(task, facts, rest, waiting, {**bound, name: value})
        return
    # the atom with the fewest variables open, then the one with the fewest facts
    atom = min(
        atoms,
        key=lambda one: (len(left.keys() & set(one.args)), len(known.get(one.predicate, ()))),
    )
    waiting.remove(atom)
    for values in known.get(atom.predicate, ()):
        more = _matched(task, left, atom.args, values, bound)
        if more is not None:
            rest = {name: kind for name, kind in left.items() if name not in more}
            yield from _joined(task, facts, rest, waiting, more)


def _matched(
    task: Task, left: dict[str, str], args: Fact, values: Fact, bound: dict[str, str]
) -> dict[str, str] | None:
    more = dict(bound)
    for arg, value in zip(args, values, strict=True):
        if arg in left and arg not in more:
            if not task.is_a(task.objects[value], left[arg]):
                return None
            more[arg] = value
        elif more.get(arg, arg) != value:
            return None
    return more


@lru_cache(maxsize=8)
def _by_predicate(facts: Facts) -> dict[str, list[Fact]]:
    found: dict[str, list[Fact]] = {}
    for fact in sorted(facts):
        found.setdefault(fact[0], []).append(fact[1:])
    return found


def _conjuncts(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, And):
        for part in condition.parts:
            yield from _conjuncts(part)
    else:
        yield condition


def _negated(condition: Condition) -> Condition:
    match condition:
        case Not(part):
            return part
        case Or(parts):
            return And(tuple(map(_negated, parts)))
        case And(parts):
            return Or(tuple(map(_negated, parts)))
        case _:
            return Not(condition)


@lru_cache(maxsize=4096)
def _variables(condition: Condition) -> frozenset[str]:
    """The free ones."""
    match condition:
        case Atom(_, args):
            return frozenset(arg for arg in args if arg[0] == "?")
        case Equal(left, right):
            return frozenset(arg for arg in (left, right) if arg[0] == "?")
        case Not(part):
            return _variables(part)
        case And(parts) | Or(parts):
            return frozenset().union(*map(_variables, parts))
        case Exists(parameters, part) | ForAll(parameters, part):
            return _variables(part) - {name for name, _ in parameters}


def _predicates(condition: Condition, found: set[str]) -> None:
    match condition:
        case Atom(predicate, _):
            found.add(predicate)
        case Not(part) | Exists(_, part) | ForAll(_, part):
            _predicates(part, found)
        case And(parts) | Or(parts):
            for part in parts:
                _predicates(part, found)
        case Equal():
            pass
