"""Directions of import, and what importing loads."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import ROOT, run_python

STDLIB = sys.stdlib_module_names
OURS = {"agent_envs", "oracles", "trainer"}
HEAVY = [
    *("torch", "transformers", "textworld", "alfworld", "pyarrow", "matplotlib"),
    *("flask", "jinja2", "selenium", "spacy"),
]

ALLOWED: dict[str, set[str]] = {
    "agent_envs": {"agent_envs", "gymnasium", "numpy", "rapidfuzz"},
    "oracles": {"agent_envs", "oracles", "gymnasium", "numpy", "rapidfuzz"},
}
"""What may be imported at all, the standard library apart."""

OPTIONAL: dict[str, set[str]] = {
    "agent_envs/alfworld/original/": {"textworld", "alfworld", "fast_downward", "tatsu"},
    "agent_envs/webshop/site/": {"flask", "jinja2", "markupsafe", "werkzeug"},
    "agent_envs/webshop/browser/": {"selenium", "urllib3"},
    "agent_envs/webshop/nouns.py": {"spacy"},
    "agent_envs/webshop/original/": {"flask", "bs4", "thefuzz", "tqdm"},
    "oracles/bank": {"pyarrow"},
}
"""Packages of extras, and the only places that may import them: when they are used."""


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"no modules under {folder}"
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    """(full name of the imported module, whether at module level), relative ones resolved."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    return tuple(_walk(tree_of(path), package, top=True))


def _walk(node: ast.AST, package: tuple[str, ...], *, top: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, top
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else ()
        yield ".".join((*base, *((node.module,) if node.module else ()))), top
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "import_module":
        argument = node.args[0] if node.args else None
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value, top
    later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
        isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
    )
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, top=top and not later)


def foreign(path: Path) -> set[str]:
    """Top-level names of everything imported from outside the standard library."""
    return {name.split(".")[0] for name, _ in imports(path)} - STDLIB - {"__future__"}


@pytest.mark.parametrize("package", ALLOWED)
def test_lower_packages_import_nothing_of_the_upper_ones(package):
    for path in modules(package):
        place = path.relative_to(ROOT).as_posix()
        optional = [names for where, names in OPTIONAL.items() if place.startswith(where)]
        assert foreign(path) <= ALLOWED[package].union(*optional), path


def test_packages_of_extras_are_imported_lazily():
    extras = set().union(*OPTIONAL.values())
    for package in OURS:
        for path in modules(package):
            top = {name.split(".")[0] for name, top in imports(path) if top}
            assert not top & extras, path


def test_objectives_are_pure():
    for path in modules("trainer/objectives"):
        for name, _ in imports(path):
            ours = name.split(".")[0] in OURS
            assert not ours or name.startswith("trainer.objectives"), (path, name)
        allowed = {"networkx"} if path.name == "gepo.py" else set()
        assert foreign(path) <= {"torch", "trainer"} | allowed, path


def test_nothing_imports_the_tests():
    for package in OURS:
        for path in modules(package):
            assert "tests" not in foreign(path), path


def test_no_pickle_and_no_evaluation():
    for package in OURS:
        for path in modules(package):
            names = {name.split(".")[0] for name, _ in imports(path)}
            assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in {"eval", "exec"}, path


LIGHT = [
    *("agent_envs", "agent_envs.alfworld.env", "agent_envs.webshop.env", "agent_envs.prompting"),
    *("oracles", "oracles.webshop_goal", "trainer"),
]


@pytest.mark.parametrize("name", LIGHT)
def test_importing_loads_nothing_heavy(name):
    code = f"import sys, {name}; print([m for m in {HEAVY} if m in sys.modules])"
    assert run_python(code).strip() == "[]"


def test_a_whole_episode_with_an_oracle_loads_no_torch():
    code = f"""
import sys, gymnasium, agent_envs, oracles
from oracles.alfworld_planner import ALFWorldPlanner
env = gymnasium.make("SeroALFWorld-v0", data="generated:small?train=2")
env.reset(seed=0)
view = env.unwrapped.privileged()
for action in ALFWorldPlanner().plan(view, 50, 10.0).actions:
    *_, info = env.step(action)
assert info["success"]
print([m for m in {HEAVY} if m in sys.modules])
"""
    assert run_python(code).strip() == "[]"


def test_modules_are_of_readable_size():
    long = {
        path.relative_to(ROOT).as_posix(): lines
        for package in OURS
        for path in modules(package)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 450
    }
    assert not long
