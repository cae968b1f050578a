"""Conditions, effects and actions of PDDL as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from oracles.pddl.reader import Group, Node, Symbol, UnsupportedPDDL, malformed, typed_list

ROOT = "object"
"""The type above all others."""

Fact = tuple[str, ...]
"""A predicate and its arguments."""
Parameters = tuple[tuple[str, str], ...]
"""Variables with their types."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A predicate of variables and objects."""

    predicate: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """Two terms are the same object."""

    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    parameters: Parameters
    part: Condition


@dataclass(frozen=True, slots=True)
class ForAll:
    parameters: Parameters
    part: Condition


Condition = Atom | Equal | Not | And | Or | Exists | ForAll


@dataclass(frozen=True, slots=True)
class Effect:
    """For all values of `parameters` for which `condition` holds, `atom` becomes so, or not so."""

    parameters: Parameters
    condition: Condition
    atom: Atom
    becomes: bool


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    parameters: Parameters
    precondition: Condition
    effects: tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """What may be named at some place of a text."""

    file: str
    types: dict[str, str] | Mapping[str, str]
    predicates: Mapping[str, int]
    objects: frozenset[str] | None
    """None: not known yet; names are noted in `mentioned`."""
    variables: frozenset[str] = frozenset()
    mentioned: set[str] = field(default_factory=set)

    def within(self, parameters: Parameters) -> Scope:
        """The same with more variables."""
        return replace(self, variables=self.variables | {name for name, _ in parameters})

    def term(self, node: Node) -> str:
        """The name of a variable or object, once something declares it."""
        if isinstance(node, Group):
            raise UnsupportedPDDL(node.head or "a list", self.file, node.line, "give a name.")
        name = node.name
        if name[0] == "?":
            if name not in self.variables:
                raise malformed(self.file, node.line, f"nothing declares the variable {name!r}")
        elif self.objects is None:
            self.mentioned.add(name)
        elif name not in self.objects:
            raise malformed(self.file, node.line, f"nothing declares the object {node.spelled!r}")
        return name

    def arguments(self, atom: Group) -> tuple[str, ...]:
        """The arguments of an atom, whose predicate has to be declared with as many."""
        wanted = self.predicates.get(atom.head)
        if wanted is None:
            raise malformed(self.file, atom.line, f"nothing declares the predicate {atom.head!r}")
        args = tuple(self.term(item) for item in atom.items[1:])
        if len(args) != wanted:
            raise malformed(
                self.file, atom.line, f"{atom.head!r} takes {wanted} arguments, found {len(args)}"
            )
        return args


def symbols(items: Sequence[Node]) -> list[Symbol]:
    """The symbols among `items`."""
    return [item for item in items if isinstance(item, Symbol)]


def read_parameters(group: Group, file: str, types: Mapping[str, str]) -> Parameters:
    """Variables with their types.

    Some games write ``?l - location, ?r - receptacle``. To the engine that they were written for
    the comma belongs to the name of the type, which nothing has; it is read so here.

    Raises:
        MalformedPDDL: no variable, or a type that nothing declares.
    """
    found = []
    for symbol, kind in typed_list(group.items, file):
        own = ROOT if kind is None else kind.name
        if symbol.name[0] != "?":
            raise malformed(file, symbol.line, f"a variable is expected, found {symbol.spelled!r}")
        if own not in types and own.rstrip(",") not in types:
            raise malformed(file, symbol.line, f"nothing declares the type {own!r}")
        found.append((symbol.name, own))
    return tuple(found)


def read_condition(node: Node, scope: Scope) -> Condition:
    """A precondition or goal.

    Raises:
        MalformedPDDL: no formula, or with a name that nothing declares.
        UnsupportedPDDL: comparisons of numbers, preferences and the like.
    """
    if isinstance(node, Symbol):
        raise malformed(scope.file, node.line, f"a formula is expected, found {node.spelled!r}")
    head, rest = node.head, node.items[1:]
    if not node.items:
        return And(())
    if head in ("and", "or"):
        parts = tuple(read_condition(item, scope) for item in rest)
        return And(parts) if head == "and" else Or(parts)
    if head in ("not", "imply", "exists", "forall", "="):
        if len(rest) != (1 if head == "not" else 2):
            raise malformed(scope.file, node.line, f"{head!r} has {len(rest)} parts")
        if head == "not":
            return Not(read_condition(rest[0], scope))
        if head == "imply":
            return Or((Not(read_condition(rest[0], scope)), read_condition(rest[1], scope)))
        if head == "=":
            return Equal(scope.term(rest[0]), scope.term(rest[1]))
        parameters, inner = _quantified(rest[0], scope)
        part = read_condition(rest[1], inner)
        return Exists(parameters, part) if head == "exists" else ForAll(parameters, part)
    _known(node, scope, ("<", ">", "<=", ">=", "preference", "always", "sometime", "at", "over"))
    return Atom(head, scope.arguments(node))


def read_effects(node: Node, scope: Scope) -> Iterator[Effect]:
    """The effects of an action, each with its own condition. ``total-cost`` is left out.

    Raises:
        MalformedPDDL, UnsupportedPDDL: as `read_condition`.
    """
    if isinstance(node, Symbol):
        raise malformed(scope.file, node.line, f"an effect is expected, found {node.spelled!r}")
    head, rest = node.head, node.items[1:]
    if head == "and" or not node.items:
        for item in rest:
            yield from read_effects(item, scope)
    elif head in ("when", "forall"):
        if len(rest) != 2:
            raise malformed(scope.file, node.line, f"{head!r} has {len(rest)} parts")
        if head == "when":
            condition = read_condition(rest[0], scope)
            for effect in read_effects(rest[1], scope):
                yield replace(effect, condition=And((condition, effect.condition)))
        else:
            parameters, inner = _quantified(rest[0], scope)
            for effect in read_effects(rest[1], inner):
                yield replace(effect, parameters=parameters + effect.parameters)
    elif head == "increase":
        counted = rest[0] if rest else node
        if not isinstance(counted, Group) or counted.head != "total-cost":
            raise UnsupportedPDDL(head, scope.file, node.line, "the only number is total-cost.")
    else:
        _known(node, scope, ("decrease", "assign", "scale-up", "scale-down", "at", "over", "oneof"))
        becomes = head != "not"
        inner_node = node if becomes else (rest[0] if rest else node)
        if not isinstance(inner_node, Group) or (len(rest) != 1 and not becomes):
            raise malformed(scope.file, node.line, "'not' of one fact is expected")
        atom = Atom(inner_node.head, scope.arguments(inner_node))
        yield Effect((), And(()), atom, becomes)


def _quantified(node: Node, scope: Scope) -> tuple[Parameters, Scope]:
    if isinstance(node, Symbol):
        raise malformed(scope.file, node.line, "variables are expected in parentheses")
    parameters = read_parameters(node, scope.file, scope.types)
    return parameters, scope.within(parameters)


def _known(node: Group, scope: Scope, constructs: Sequence[str]) -> None:
    if node.head in constructs and node.head not in scope.predicates:
        raise UnsupportedPDDL(node.head, scope.file, node.line, "only facts are planned with.")
