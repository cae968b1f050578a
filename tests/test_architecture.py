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
HEAVY = ["torch", "transformers", "textworld", "alfworld", "pyarrow", "matplotlib"]

ALLOWED: dict[str, set[str]] = {
    "agent_envs": {"agent_envs", "gymnasium", "numpy", "rapidfuzz"},
    "oracles": {"agent_envs", "oracles", "gymnasium", "numpy", "rapidfuzz"},
}
"""What may be imported at all, the standard library apart."""

REFERENCE = {"textworld", "alfworld", "fast_downward", "tatsu"}
REFERENCE_DRIVERS = {"agent_envs/alfworld/original/textworld_engine.py"}
"""The driver of the original engine, which imports it when it is used."""


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
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, top=top and not isinstance(node, functions))


def foreign(path: Path) -> set[str]:
    """Top-level names of everything imported from outside the standard library."""
    return {name.split(".")[0] for name, _ in imports(path)} - STDLIB - {"__future__"}


@pytest.mark.parametrize("package", ALLOWED)
def test_lower_packages_import_nothing_of_the_upper_ones(package):
    for path in modules(package):
        allowed = set(ALLOWED[package])
        if path.relative_to(ROOT).as_posix() in REFERENCE_DRIVERS:
            allowed |= REFERENCE
        assert foreign(path) <= allowed, path


def test_the_original_engine_is_imported_lazily():
    for package in OURS:
        for path in modules(package):
            top = {name.split(".")[0] for name, top in imports(path) if top}
            assert not top & REFERENCE, path


def test_objectives_are_pure():
    for path in modules("trainer/objectives"):
        for name, _ in imports(path):
            ours = name.split(".")[0] in OURS
            assert not ours or name.startswith("trainer.objectives"), (path, name)
        assert foreign(path) <= {"torch", "trainer"}, path


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


LIGHT = ["agent_envs", "agent_envs.alfworld.env", "agent_envs.prompting", "oracles", "trainer"]


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
