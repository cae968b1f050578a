"""Every argument of every function may be given by its name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass
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


def dataclasses_of(name: str) -> list[type]:
    """Dataclasses that a module defines."""
    found = vars(importlib.import_module(name)).values()
    return [c for c in found if inspect.isclass(c) and is_dataclass(c) and c.__module__ == name]


def test_every_dataclass_is_frozen_and_has_slots() -> None:
    found = [kind for module in MODULES for kind in dataclasses_of(module)]
    assert len(found) > 20
    for kind in found:
        assert kind.__dataclass_params__.frozen, kind
        assert "__slots__" in vars(kind), kind
