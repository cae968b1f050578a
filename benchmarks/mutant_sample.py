"""Planted bugs: which there are, and a uniform sample of them.

The operators are Cosmic Ray's (the extra `mutants`), all that take no arguments: arithmetic,
comparisons, signs, numbers plus and minus one, conditions negated, loops of no iteration,
exceptions, decorators. A mutant is one operator at one place of one module. Every place is as
likely as any other. A draw that changes annotations only, or that is no Python, is passed over for
the next.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("trainer/objectives", "trainer/auxiliary")


@dataclass(frozen=True, slots=True)
class Place:
    """One operator at its `occurrence`-th place in a module."""

    module: str
    operator: str
    occurrence: int

    @property
    def key(self) -> str:
        return f"{self.module}:{self.operator}:{self.occurrence}"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A place, the module's text with the bug in it, and the line before and after."""

    place: Place
    code: str
    line: int
    before: str
    after: str

    def describe(self) -> dict[str, Any]:
        """What results say of it."""
        return {
            "module": self.place.module,
            "operator": self.place.operator,
            "occurrence": self.place.occurrence,
            "line": self.line,
            "before": self.before,
            "after": self.after,
        }


def modules(root: Path) -> list[str]:
    """The modules that bugs are planted in, relative to `root`."""
    found = [path for package in PACKAGES for path in (root / package).glob("*.py")]
    return sorted(path.relative_to(root).as_posix() for path in found)


def places(root: Path) -> list[Place]:
    """Every place of every operator, in a fixed order."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    operators = {name: get_operator(name) for name in sorted(operator_names())}
    made = {name: kind() for name, kind in operators.items() if not kind.arguments()}
    found = []
    for module in modules(root):
        nodes = list(ast_nodes(get_ast((root / module).read_text(encoding="utf-8"))))
        for name, operator in made.items():
            count = sum(1 for node in nodes for _ in operator.mutation_positions(node))
            found += [Place(module, name, occurrence) for occurrence in range(count)]
    return found


def draw(root: Path, population: Sequence[Place], seed: int) -> Iterator[Mutant | None]:
    """Mutants in random order without repetition; None for a place that is passed over.

    A place's turn comes from its own hash, so a change of one module leaves the rest of the
    sample as it was.
    """

    def turn(place: Place) -> bytes:
        return hashlib.sha256(f"{seed}:{place.key}".encode()).digest()

    for place in sorted(population, key=turn):
        yield planted(root, place)


def planted(root: Path, place: Place) -> Mutant | None:
    """The bug of a place; None where it changes nothing that is ever run, or is no Python."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    code = (root / place.module).read_text(encoding="utf-8")
    mutated = mutate_code(code, get_operator(place.operator)(), place.occurrence)
    if mutated is None or not differs(code, mutated):
        return None
    old, new = code.splitlines(), mutated.splitlines()
    first = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    return Mutant(place, mutated, first + 1, old[first].strip(), new[first].strip())


def differs(code: str, mutated: str) -> bool:
    """Whether both are Python and not the same, apart from annotations."""
    try:
        return _meaning(mutated) != _meaning(code)
    except SyntaxError:
        return False


def _meaning(code: str) -> str:
    """The syntax tree without annotations, which no module here runs (`from __future__`)."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)
