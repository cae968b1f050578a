"""PDDL text as nested lists of symbols that know their lines, and the errors that name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent_envs.errors import CorruptGame, UnsupportedGame

_TOKEN = re.compile(r";[^\n]*|\n|[()]|[^\s();]+")
_MAX_DEPTH = 200


class MalformedPDDL(CorruptGame):
    """A text that is no PDDL, or contradicts itself; the message says where."""


class NameCollision(MalformedPDDL):
    """Two names that differ in case alone, which PDDL does not tell apart."""


class UnsupportedPDDL(UnsupportedGame):
    """A construct that the planner does not plan for.

    Attributes:
        construct: as it is written, for example ``:durative-actions``.
        file: the name of the text it is in.
        line: its line there, counted from 1.
    """

    def __init__(self, construct: str, file: str, line: int, hint: str) -> None:
        super().__init__(f"{file}:{line}: {construct} is not supported: {hint}")
        self.construct, self.file, self.line = construct, file, line


@dataclass(frozen=True, slots=True)
class Symbol:
    """One word of a text."""

    spelled: str
    line: int

    @property
    def name(self) -> str:
        """In lower case: PDDL does not tell cases apart."""
        return self.spelled.lower()


@dataclass(frozen=True, slots=True)
class Group:
    """What is between two parentheses; `line` is that of the first."""

    items: tuple[Symbol | Group, ...]
    line: int

    @property
    def head(self) -> str:
        """The first item's name, empty if that is no symbol."""
        first = self.items[0] if self.items else None
        return first.name if isinstance(first, Symbol) else ""


Node = Symbol | Group


def read_group(text: str, file: str) -> Group:
    """The one parenthesised expression that `text` consists of.

    >>> read_group("(a (B)) ; why", "x").items[1].head
    'b'

    Raises:
        MalformedPDDL: parentheses do not match, or there is no or more than one expression.
    """
    line = start = 1
    current: list[Node] = []
    stack: list[tuple[list[Node], int]] = []
    done: Group | None = None
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "\n":
            line += 1
        elif token[0] == ";":
            continue
        elif token == "(":
            if done is not None:
                raise malformed(file, line, "more than one expression")
            if len(stack) >= _MAX_DEPTH:
                raise malformed(file, line, f"more than {_MAX_DEPTH} nested parentheses")
            stack.append((current, start))
            current, start = [], line
        elif not stack:
            raise malformed(file, line, f"{token!r} outside of any parentheses")
        elif token == ")":
            group = Group(tuple(current), start)
            current, start = stack.pop()
            if stack:
                current.append(group)
            else:
                done = group
        else:
            current.append(Symbol(token, line))
    if stack:
        raise malformed(file, start, f"{len(stack)} '(' never closed; the text looks cut off")
    if done is None:
        raise malformed(file, line, "there is no expression")
    return done


def typed_list(items: Sequence[Node], file: str) -> list[tuple[Symbol, Symbol | None]]:
    """Read ``a b - type c``: every symbol with its type, None where none is given.

    Raises:
        MalformedPDDL: not such a list.
        UnsupportedPDDL: ``(either ...)``.
    """
    found: list[tuple[Symbol, Symbol | None]] = []
    waiting: list[Symbol] = []
    rest = iter(items)
    for item in rest:
        if isinstance(item, Group):
            raise malformed(file, item.line, "a symbol is expected in a list of names")
        if item.spelled != "-":
            waiting.append(item)
            continue
        kind = next(rest, None)
        if isinstance(kind, Group):
            raise UnsupportedPDDL(kind.head or "a list", file, kind.line, "give one type.")
        if kind is None or not waiting:
            raise malformed(file, item.line, "a '-' without a symbol before or a type behind it")
        found += [(symbol, kind) for symbol in waiting]
        waiting = []
    return found + [(symbol, None) for symbol in waiting]


def malformed(file: str, line: int, what: str) -> MalformedPDDL:
    """The error for a place in a text."""
    return MalformedPDDL(f"{file}:{line}: {what}.")
