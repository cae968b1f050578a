"""A small, strict reader for the PDDL problem files of ALFWorld.

Only what such a file holds is read: typed objects, ground facts, a goal. Everything else is an
error that says what was found. Symbols are lower-cased, as PDDL is case-insensitive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_envs.errors import CorruptGame, UnsupportedGame

Tree = list["str | Tree"]
"""A nested list of symbols: ``(and (p a) (q b))`` reads ``["and", ["p", "a"], ["q", "b"]]``."""

_COMMENT = re.compile(r";[^\n]*")
_MAX_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem file: `objects` maps symbol to type, `facts` are flat lists of symbols."""

    name: str
    domain: str
    objects: dict[str, str]
    facts: list[list[str]]
    goal: Tree


def read_tree(text: str) -> Tree:
    """Read the one parenthesised expression that `text` consists of.

    >>> read_tree("(AND (p a) ; why\\n (q b))")
    ['and', ['p', 'a'], ['q', 'b']]

    Raises:
        CorruptGame: parentheses do not match, or there is no or more than one expression.
    """
    if ";" in text:
        text = _COMMENT.sub("", text)
    current: Tree = []
    stack: list[Tree] = []
    for token in text.lower().replace("(", " ( ").replace(")", " ) ").split():
        if token == "(":
            if len(stack) >= _MAX_DEPTH:
                raise CorruptGame(f"PDDL: more than {_MAX_DEPTH} nested parentheses.")
            stack.append(current)
            current = []
        elif token == ")":
            if not stack:
                raise CorruptGame("PDDL: a ')' without its '('.")
            closed, current = current, stack.pop()
            current.append(closed)
        else:
            current.append(token)
    if stack:
        raise CorruptGame(f"PDDL: {len(stack)} '(' never closed; the file looks cut off.")
    if len(current) != 1 or isinstance(current[0], str):
        raise CorruptGame(f"PDDL: expected one '(define ...)', found {len(current)} expressions.")
    return current[0]


def read_typed_list(items: Tree) -> dict[str, str]:
    """Read ``a b - type c - other``.

    >>> read_typed_list(["a", "b", "-", "object", "c", "-", "location"])
    {'a': 'object', 'b': 'object', 'c': 'location'}

    Raises:
        CorruptGame: a symbol without type, a type without symbol, or one symbol of two types.
    """
    types: dict[str, str] = {}
    waiting: list[str] = []
    position, end = 0, len(items)
    while position < end:
        item = items[position]
        position += 1
        if not isinstance(item, str):
            raise CorruptGame(f"PDDL: expected a symbol in a typed list, found {item!r}.")
        if item != "-":
            waiting.append(item)
            continue
        kind = items[position] if position < end else None
        position += 1
        if not isinstance(kind, str) or not waiting:
            raise CorruptGame(f"PDDL: '- {kind}' in a typed list names no symbol or no type.")
        for symbol in waiting:
            if types.setdefault(symbol, kind) != kind:
                raise CorruptGame(
                    f"PDDL: {symbol!r} is declared as {types[symbol]!r} and as {kind!r} "
                    "(symbols are compared without case)."
                )
        waiting = []
    if waiting:
        raise CorruptGame(f"PDDL: no type given for {waiting[0]!r}.")
    return types


def read_problem(text: str) -> Problem:
    """Read a problem file.

    Raises:
        CorruptGame: not a well-formed problem.
        UnsupportedGame: a construct that this engine does not know, e.g. ``:metric``.
    """
    tree = read_tree(text)
    if not tree or tree[0] != "define":
        raise CorruptGame("PDDL: expected '(define (problem ...) ...)'.")
    parts: dict[str, Tree] = {}
    for part in tree[1:]:
        if isinstance(part, str) or not part or not isinstance(part[0], str):
            raise CorruptGame(f"PDDL: expected a section in parentheses, found {part!r}.")
        if part[0] not in ("problem", ":domain", ":objects", ":init", ":goal"):
            raise UnsupportedGame(f"PDDL: section {part[0]!r} of a problem is not supported.")
        if part[0] in parts:
            raise CorruptGame(f"PDDL: section {part[0]!r} is there twice.")
        parts[part[0]] = part[1:]
    for name in ("problem", ":domain", ":objects", ":init", ":goal"):
        if name not in parts:
            raise CorruptGame(f"PDDL: section {name!r} is missing.")
    facts: list[list[str]] = []
    for fact in parts[":init"]:
        if isinstance(fact, str) or not fact:
            raise CorruptGame(f"PDDL: expected a fact in :init, found {fact!r}.")
        for symbol in fact:
            if symbol.__class__ is not str:
                raise UnsupportedGame(f"PDDL: only plain facts are supported, found {fact!r}.")
        facts.append(fact)  # type: ignore[arg-type]
    goal = parts[":goal"]
    if len(goal) != 1 or isinstance(goal[0], str):
        raise CorruptGame(f"PDDL: expected one formula in :goal, found {goal!r}.")
    return Problem(
        name=str(parts["problem"][0]) if parts["problem"] else "",
        domain=str(parts[":domain"][0]) if parts[":domain"] else "",
        objects=read_typed_list(parts[":objects"]),
        facts=facts,
        goal=goal[0],
    )
