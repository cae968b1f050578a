"""Auxiliary objectives by the name of their config section. Imported when one is switched on."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from trainer.methods.protocol import Method, Setup

__all__ = ["METHODS", "make_methods"]

METHODS: Mapping[str, str] = MappingProxyType(
    {
        "sero": "trainer.methods.sero:Sero",
        "format_only": "trainer.methods.format_only:FormatOnly",
    }
)
"""Name -> `module:class`."""


def make_methods(setup: Setup) -> list[Method]:
    """The auxiliary objectives of a run, in the order of the config's fields."""
    methods = []
    for name, section in setup.config.auxiliary.active():
        module, _, attribute = METHODS[name].partition(":")
        made = getattr(importlib.import_module(module), attribute)(setup, section)
        methods.append(cast("Method", made))
    return methods
