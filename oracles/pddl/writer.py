"""A task as texts with names that no planner can misread, and the way back from them.

Planners write everything in lower case, and some stumble over symbols that begin with a digit or
hold a comma; so every name is replaced by a letter and a number. The goal becomes the precondition
of one last action, so that a goal with quantifiers or `or` needs no derived facts, which admissible
heuristics cannot read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oracles.pddl.conditions import (
    ROOT,
    And,
    Atom,
    Condition,
    Effect,
    Equal,
    Exists,
    ForAll,
    Not,
    Or,
    Parameters,
)
from oracles.pddl.task import Task

_FINISH = "finish"


@dataclass(frozen=True, slots=True)
class SafeTask:
    """The texts for a planner, and what its names stand for."""

    domain: str
    problem: str
    names: Mapping[str, str]
    """Safe name of an action or object -> the name in the `Task`, in lower case."""

    def operators(self, lines: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The steps of a plan file, without its last one: action and arguments, lower-case."""
        found = []
        for line in lines:
            words = line.partition(";")[0].strip().strip("()").split()
            if words and words[0] != _FINISH:
                found.append(tuple(self.names[word] for word in words))
        return tuple(found)

    def explained(self, text: str) -> str:
        """A message of the planner with the names put back."""
        return " ".join(self.names.get(word.strip("()'\","), word) for word in text.split())


def safe_texts(task: Task) -> SafeTask:
    """Write `task`. The same task gives the same texts."""
    return _Writer(task).texts()


class _Writer:
    def __init__(self, task: Task) -> None:
        self.task = task
        domain = task.domain
        self.objects = _numbered("o", sorted(task.objects))
        self.actions = _numbered("a", sorted(domain.actions))
        self.predicates = _numbered("p", sorted(domain.predicates))
        self.types = {ROOT: ROOT, **_numbered("t", sorted(set(domain.types) - {ROOT}))}
        self.variables: dict[str, str] = {}

    def texts(self) -> SafeTask:
        task = self.task
        goal = f"(:action {_FINISH} :parameters () :precondition {self.condition(task.goal)}"
        actions = [
            f"(:action {self.actions[name]} :parameters ({self.parameters(action.parameters)})\n"
            f" :precondition {self.condition(action.precondition)}\n"
            f" :effect (and {' '.join(map(self.effect, action.effects))}))"
            for name, action in task.domain.actions.items()
        ]
        arities = task.domain.predicates
        predicates = " ".join(
            f"({safe}{''.join(f' ?a{i}' for i in range(arities[name]))})"
            for name, safe in self.predicates.items()
        )
        kinds = {
            **task.domain.types,
            **dict.fromkeys(set(self.types) - set(task.domain.types), ROOT),
        }
        types = "\n ".join(
            f"{self.types[name]} - {self.types[above]}"
            for name, above in sorted(kinds.items())
            if name != ROOT
        )
        objects = "\n ".join(
            f"{safe} - {self.types[task.objects[name]]}" for name, safe in self.objects.items()
        )
        facts = "\n ".join(
            f"({' '.join([self.predicates[name], *(self.objects[arg] for arg in args)])})"
            for name, *args in sorted(task.init)
        )
        lines = "\n".join(actions)
        return SafeTask(
            f"(define (domain d)\n(:requirements :adl)\n(:types {types})\n(:constants {objects})\n"
            f"(:predicates (done) {predicates})\n{lines}\n{goal} :effect (done)))\n",
            f"(define (problem p) (:domain d)\n(:init {facts})\n(:goal (done)))\n",
            {safe: name for own in (self.objects, self.actions) for name, safe in own.items()},
        )

    def parameters(self, parameters: Parameters) -> str:
        return " ".join(f"{self.term(name)} - {self.kind(kind)}" for name, kind in parameters)

    def kind(self, name: str) -> str:
        # a type of which there is nothing (`conditions.read_parameters`)
        return self.types.setdefault(name, f"t{len(self.types)}x")

    def term(self, name: str) -> str:
        if name[0] == "?":
            return self.variables.setdefault(name, f"?v{len(self.variables)}")
        return self.objects[name]

    def condition(self, node: Condition) -> str:
        match node:
            case Atom(predicate, args):
                return f"({' '.join([self.predicates[predicate], *map(self.term, args)])})"
            case Equal(left, right):
                return f"(= {self.term(left)} {self.term(right)})"
            case Not(part):
                return f"(not {self.condition(part)})"
            case And(parts):
                return f"(and {' '.join(map(self.condition, parts))})"
            case Or(parts):
                return f"(or {' '.join(map(self.condition, parts))})"
            case Exists(parameters, part) | ForAll(parameters, part):
                word = "exists" if isinstance(node, Exists) else "forall"
                return f"({word} ({self.parameters(parameters)}) {self.condition(part)})"

    def effect(self, effect: Effect) -> str:
        text = self.condition(effect.atom)
        if not effect.becomes:
            text = f"(not {text})"
        if effect.condition != And(()):
            text = f"(when {self.condition(effect.condition)} {text})"
        if effect.parameters:
            text = f"(forall ({self.parameters(effect.parameters)}) {text})"
        return text


def _numbered(letter: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{letter}{number}" for number, name in enumerate(names)}
