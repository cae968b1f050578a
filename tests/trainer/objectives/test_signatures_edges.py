"""Every argument of every function may be given by its name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import FunctionType

import pytest

import trainer.auxiliary
import trainer.objectives

MODULES = sorted(
    f"{package.__name__}.{info.name}"
    for package in (trainer.objectives, trainer.auxiliary)
    for info in pkgutil.iter_modules(package.__path__)
)


def functions(name: str) -> list[FunctionType]:
    """Functions and methods that a module defines."""
    module = importlib.import_module(name)
    owners = [module, *(c for c in vars(module).values() if inspect.isclass(c))]
    return [
        member
        for owner in owners
        for member in vars(owner).values()
        if inspect.isfunction(member) and member.__module__ == name
    ]


@pytest.mark.parametrize("module", MODULES)
def test_no_argument_goes_by_its_position_alone(module: str) -> None:
    found = functions(module)
    assert found
    for function in found:
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.kind is not inspect.Parameter.POSITIONAL_ONLY, (function, parameter)
