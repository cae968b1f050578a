"""The examples in docstrings of the packages that need no torch."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import agent_envs
import oracles

MODULES = sorted(
    module.name
    for package in (agent_envs, oracles)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
)


@pytest.mark.parametrize("name", ["agent_envs", "oracles", *MODULES])
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    examples = [
        test
        for name in MODULES
        for test in doctest.DocTestFinder().find(importlib.import_module(name))
        if test.examples
    ]
    assert len(examples) >= 5
