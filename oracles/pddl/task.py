"""Planning tasks as values: domain and problem, checked against each other.

Read are typing, negation, `or`, `imply`, quantifiers, equality and conditional effects. Everything
is in lower case, and `Task.spelled` knows how a name was declared. Costs are left out: what counts
is the number of commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from oracles.pddl.conditions import (
    ROOT,
    Action,
    And,
    Condition,
    Fact,
    Scope,
    read_condition,
    read_effects,
    read_parameters,
    symbols,
)
from oracles.pddl.reader import (
    Group,
    NameCollision,
    Symbol,
    UnsupportedPDDL,
    malformed,
    read_group,
    typed_list,
)

DOMAIN_FILE, PROBLEM_FILE = "domain.pddl", "problem.pddl"
"""What errors call the two texts."""

_REQUIREMENTS = (
    ":strips",
    ":adl",
    ":typing",
    ":equality",
    ":negative-preconditions",
    ":disjunctive-preconditions",
    ":existential-preconditions",
    ":universal-preconditions",
    ":quantified-preconditions",
    ":conditional-effects",
    ":action-costs",
)
_SET_ASIDE = frozenset((":functions", ":metric"))  # both serve costs alone


@dataclass(frozen=True, slots=True)
class Domain:
    """The rules. `types` maps a type to the one above it."""

    types: Mapping[str, str]
    constants: Mapping[str, str]
    predicates: Mapping[str, int]
    """Name -> number of arguments."""
    actions: Mapping[str, Action]
    spelled: Mapping[str, str]
    mentioned: frozenset[str]
    """Objects in the actions that the domain does not declare."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem in its domain."""

    domain: Domain
    objects: Mapping[str, str]
    """Name -> type. What the rules mention and nothing declares is among them."""
    init: frozenset[Fact]
    goal: Condition
    spelled: Mapping[str, str]
    """Lower-case name of an object or an action -> as it was declared."""

    def from_facts(self, facts: frozenset[Fact]) -> Task:
        """The same task from another state."""
        return replace(self, init=facts)

    def members(self, kind: str) -> Iterator[str]:
        """The objects of a type, in the order of their declaration."""
        for name, own in self.objects.items():
            if self.is_a(own, kind):
                yield name

    def is_a(self, own: str, kind: str) -> bool:
        """Whether the type `own` is `kind` or below it."""
        while own != kind:
            if own == ROOT:
                return False
            own = self.domain.types[own]
        return True


@lru_cache(maxsize=16)
def read_task(
    domain_text: str,
    problem_text: str,
    domain_file: str = DOMAIN_FILE,
    problem_file: str = PROBLEM_FILE,
) -> Task:
    """Read a task; the same texts give the same object.

    Raises:
        MalformedPDDL: a text is no PDDL, or uses what nothing declares; says where.
        NameCollision: two names differ in case alone.
        UnsupportedPDDL: a construct that is not planned for; says which, and where.
    """
    domain = read_domain(domain_text, domain_file)
    parts = _sections(problem_text, problem_file, "problem")
    objects, spelled = dict(domain.constants), dict(domain.spelled)
    _declare(parts.get(":objects"), problem_file, domain.types, objects, spelled)
    for name in sorted(domain.mentioned):
        # ALFWorld's rules name types of receptacles that a house may lack; nothing is so of these
        objects.setdefault(name, ROOT)
        spelled.setdefault(name, name)
    scope = Scope(problem_file, domain.types, domain.predicates, frozenset(objects))
    init = parts.get(":init") or Group((), 1)
    facts: set[Fact] = set()
    for item in init.items[1:]:
        if isinstance(item, Group) and item.head == "=":
            continue  # the value of a function: only costs have them
        fact = _fact(item, scope)
        if fact is not None:
            facts.add(fact)
    goal = parts.get(":goal")
    if goal is None or len(goal.items) != 2:
        raise malformed(problem_file, goal.line if goal else 1, "one formula is expected in :goal")
    return Task(domain, objects, frozenset(facts), read_condition(goal.items[1], scope), spelled)


@lru_cache(maxsize=16)
def read_domain(text: str, file: str = DOMAIN_FILE) -> Domain:
    """Read the rules alone. Raises as `read_task`."""
    parts = _sections(text, file, "domain")
    types = _types(parts.get(":types"), file)
    constants: dict[str, str] = {}
    spelled: dict[str, str] = {}
    _declare(parts.get(":constants"), file, types, constants, spelled)
    predicates: dict[str, int] = {}
    for item in (parts.get(":predicates") or Group((), 1)).items[1:]:
        if not isinstance(item, Group) or not item.head:
            raise malformed(file, item.line, "a predicate is expected in parentheses")
        predicates[item.head] = len(typed_list(item.items[1:], file))
    scope = Scope(file, types, predicates, None)
    actions: dict[str, Action] = {}
    for section in _groups(text, file):
        if section.head == ":action":
            action = _action(section, scope, types)
            if action.name in actions:
                raise NameCollision(
                    f"{file}:{section.line}: the actions {spelled[action.name]!r} and "
                    f"{symbols(section.items[1:2])[0].spelled!r} have one name (case is ignored)."
                )
            actions[action.name] = action
            spelled[action.name] = symbols(section.items[1:2])[0].spelled
    mentioned = frozenset(scope.mentioned) - set(constants)
    return Domain(types, constants, predicates, actions, spelled, mentioned)


def _action(section: Group, scope: Scope, types: dict[str, str]) -> Action:
    file, items = scope.file, section.items
    if len(items) < 2 or not isinstance(items[1], Symbol) or len(items) % 2:
        raise malformed(file, section.line, "an action is a name and pairs of keyword and value")
    values: dict[str, Group] = {}
    for key, value in zip(items[2::2], items[3::2], strict=True):
        name = key.name if isinstance(key, Symbol) else "(...)"
        if name not in (":parameters", ":precondition", ":effect"):
            raise UnsupportedPDDL(name, file, key.line, "it is no part of an action known here.")
        if not isinstance(value, Group):
            raise malformed(file, value.line, f"a list is expected after {name}")
        values[name] = value
    parameters = read_parameters(values.get(":parameters") or Group((), 1), file, types)
    inner = scope.within(parameters)
    wanted, effect = values.get(":precondition"), values.get(":effect")
    return Action(
        items[1].name,
        parameters,
        And(()) if wanted is None else read_condition(wanted, inner),
        () if effect is None else tuple(read_effects(effect, inner)),
    )


def _groups(text: str, file: str) -> Iterator[Group]:
    tree = read_group(text, file)
    if tree.head != "define":
        raise malformed(file, tree.line, "'(define ...)' is expected")
    for item in tree.items[1:]:
        if not isinstance(item, Group) or not item.head:
            raise malformed(file, item.line, "a section in parentheses is expected")
        yield item


def _sections(text: str, file: str, what: str) -> dict[str, Group]:
    own = (
        (":types", ":constants", ":predicates", ":action")
        if what == "domain"
        else (":domain", ":objects", ":init", ":goal")
    )
    known = {what, ":requirements", *own} | _SET_ASIDE
    found: dict[str, Group] = {}
    for group in _groups(text, file):
        if group.head not in known:
            raise UnsupportedPDDL(group.head, file, group.line, f"a section of a {what}.")
        if group.head == ":requirements":
            for item in symbols(group.items[1:]):
                if item.name not in _REQUIREMENTS:
                    raise UnsupportedPDDL(
                        item.spelled, file, item.line, "Known are " + ", ".join(_REQUIREMENTS)
                    )
        if group.head in found and group.head != ":action":
            raise malformed(file, group.line, f"the section {group.head} is there twice")
        found[group.head] = group
    if what not in found:
        raise malformed(file, 1, f"'({what} NAME)' is missing")
    return found


def _types(section: Group | None, file: str) -> dict[str, str]:
    types = {ROOT: ROOT}
    pairs = [] if section is None else typed_list(section.items[1:], file)
    for name, above in pairs:
        if name.name != ROOT:
            types[name.name] = ROOT if above is None else above.name
    for _, above in pairs:
        if above is not None and above.name not in types:
            types[above.name] = ROOT
    for lowest in types:
        seen, at = {lowest}, lowest
        while at != ROOT:
            at = types[at]
            if at in seen:
                line = section.line if section else 1
                raise malformed(file, line, f"the type {lowest!r} is below itself")
            seen.add(at)
    return types


def _declare(
    section: Group | None,
    file: str,
    types: Mapping[str, str],
    objects: dict[str, str],
    spelled: dict[str, str],
) -> None:
    for symbol, kind in [] if section is None else typed_list(section.items[1:], file):
        name = symbol.name
        own = ROOT if kind is None else kind.name
        if own not in types:
            raise malformed(file, symbol.line, f"nothing declares the type {own!r} of {name!r}")
        if name in objects and spelled[name] != symbol.spelled:
            raise NameCollision(
                f"{file}:{symbol.line}: the objects {spelled[name]!r} and {symbol.spelled!r} have "
                "one name: PDDL ignores case. Rename one of them."
            )
        if objects.setdefault(name, own) != own:
            both = f"{objects[name]!r} and as {own!r}"
            raise malformed(file, symbol.line, f"{symbol.spelled!r} is declared as {both}")
        spelled[name] = symbol.spelled


def _fact(item: Group | Symbol, scope: Scope) -> Fact | None:
    """A fact of :init; None for one that says that something is not so."""
    if isinstance(item, Group) and item.head == "not" and len(item.items) == 2:
        _fact(item.items[1], scope)
        return None
    if not isinstance(item, Group):
        raise malformed(scope.file, item.line, "a fact is expected in parentheses")
    if item.head in ("at", "oneof", "unknown") and item.head not in scope.predicates:
        raise UnsupportedPDDL(item.head, scope.file, item.line, "facts are so from the start.")
    return (item.head, *scope.arguments(item))
