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
        "serl": "trainer.methods.serl:Serl",
        "rlsd": "trainer.methods.rlsd:Rlsd",
        "seed": "trainer.methods.seed:Seed",
        "sdar": "trainer.methods.sdar:Sdar",
        "skill_sd": "trainer.methods.skill_sd:SkillSd",
        "opid": "trainer.methods.opid:Opid",
        "opd": "trainer.methods.opd:Opd",
        "gkd": "trainer.methods.gkd:Gkd",
        "opsd": "trainer.methods.opsd:Opsd",
        "opsd_legacy": "trainer.methods.opsd:OpsdLegacy",
        "sdpo": "trainer.methods.sdpo:Sdpo",
        "dagger": "trainer.methods.dagger:Dagger",
        "corrections": "trainer.methods.corrections:Corrections",
        "sft": "trainer.methods.sft:Sft",
        "expert_iteration": "trainer.methods.expert_iteration:ExpertIteration",
        "step_dpo": "trainer.methods.step_dpo:StepDpo",
        "chord": "trainer.methods.chord:Chord",
        "luffy": "trainer.methods.luffy:Luffy",
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
