"""What a condition means, beside plain enumeration of all objects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from random import Random

import pytest

from oracles.pddl.conditions import (
    And,
    Atom,
    Condition,
    Equal,
    Exists,
    Fact,
    ForAll,
    Not,
    Or,
)
from oracles.pddl.simulator import applied, holds
from oracles.pddl.task import Task, read_task
from tests.oracles.pddl.toys import LINE, line

KINDS = {"x": "thing", "y": "thing", "p": "place", "q": "place"}


def plainly(
    task: Task, facts: frozenset[Fact], condition: Condition, bound: Mapping[str, str]
) -> bool:
    """The definition, word for word."""
    match condition:
        case Atom(predicate, args):
            return (predicate, *[bound.get(arg, arg) for arg in args]) in facts
        case Equal(left, right):
            return bound.get(left, left) == bound.get(right, right)
        case Not(part):
            return not plainly(task, facts, part, bound)
        case And(parts):
            return all(plainly(task, facts, part, bound) for part in parts)
        case Or(parts):
            return any(plainly(task, facts, part, bound) for part in parts)
        case Exists(parameters, part) | ForAll(parameters, part):
            values = product(*[list(task.members(kind)) for _, kind in parameters])
            names = [name for name, _ in parameters]
            answers = [
                plainly(task, facts, part, {**bound, **dict(zip(names, chosen, strict=True))})
                for chosen in values
            ]
            return any(answers) if isinstance(condition, Exists) else all(answers)


def formula(rng: Random, depth: int, scope: tuple[str, ...]) -> Condition:
    """A random one over the variables in `scope`, and some new ones."""
    things = ["?x", "?y", "a"] if not scope else list(scope)
    kind = rng.randrange(7) if depth else 0
    if kind == 1:
        return Not(formula(rng, depth - 1, scope))
    if kind in (2, 3):
        parts = tuple(formula(rng, depth - 1, scope) for _ in range(rng.randint(0, 3)))
        return And(parts) if kind == 2 else Or(parts)
    if kind >= 4:
        names = rng.sample(sorted(KINDS), rng.randint(1, 2))
        parameters = tuple((f"?{name}", rng.choice((KINDS[name], "object"))) for name in names)
        inner = formula(rng, depth - 1, (*scope, *[name for name, _ in parameters]))
        return Exists(parameters, inner) if kind < 6 else ForAll(parameters, inner)
    terms = [*things, "u", "a", "b"]
    pair = rng.choice(terms), rng.choice(terms)
    return Equal(*pair) if rng.random() < 0.2 else Atom(rng.choice(("at", "next")), pair)


@pytest.mark.parametrize("seed", range(20))
def test_conditions_mean_what_their_definition_says(seed: int) -> None:
    rng = Random(seed)
    task = read_task(LINE, line(("u", "v"), ("a", "b", "c"), "(at u b)"))
    every = [("at", x, p) for x in "uv" for p in "abc"]
    every += [("next", p, q) for p in "abc" for q in "abc"]
    answers = set()
    for _ in range(100):
        facts = frozenset(fact for fact in every if rng.random() < 0.4)
        condition = formula(rng, 4, ("?x", "?p"))
        bound = {"?x": rng.choice("uv"), "?p": rng.choice("abc")}
        answer = plainly(task, facts, condition, bound)
        assert holds(task, facts, condition, bound) == answer
        answers.add(answer)
    assert answers == {True, False}


def test_operators_that_are_not_possible_do_nothing() -> None:
    task = read_task(LINE, line(("u", "v"), ("a", "b"), "(at u b)"))
    after = applied(task, task.init, ("move", "u", "a", "b"))
    assert after == (task.init - {("at", "u", "a")}) | {("at", "u", "b")}
    for operator in (
        ("move", "u", "b", "a"),  # it is not there
        ("move", "a", "a", "b"),  # no thing
        ("move", "u", "a"),
        ("move", "u", "a", "z"),
        ("fly", "u", "a", "b"),
    ):
        assert applied(task, task.init, operator) is None


def test_what_an_effect_adds_is_not_removed_by_another() -> None:
    domain = LINE.replace(":parameters (?x - thing ?a ?b", ":parameters (?x - thing ?b ?a", 1)
    domain = domain.replace("(next ?a ?b))", "(at ?x ?b))", 1)
    task = read_task(domain, line(("u",), ("a", "b"), "(at u b)"))
    assert applied(task, task.init, ("move", "u", "a", "a")) == task.init
