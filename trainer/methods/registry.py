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
        "serl": "trainer.methods.reweighting.serl:Serl",
        "rlsd": "trainer.methods.reweighting.rlsd:Rlsd",
        "seed": "trainer.methods.skills.seed:Seed",
        "sdar": "trainer.methods.skills.sdar:Sdar",
        "skill_sd": "trainer.methods.skills.skill_sd:SkillSd",
        "opid": "trainer.methods.skills.opid:Opid",
        "opd": "trainer.methods.distillation.opd:Opd",
        "gkd": "trainer.methods.distillation.gkd:Gkd",
        "opsd": "trainer.methods.distillation.opsd:Opsd",
        "opsd_legacy": "trainer.methods.distillation.opsd:OpsdLegacy",
        "sdpo": "trainer.methods.distillation.sdpo:Sdpo",
        "dagger": "trainer.methods.imitation.dagger:Dagger",
        "corrections": "trainer.methods.imitation.corrections:Corrections",
        "sft": "trainer.methods.imitation.sft:Sft",
        "expert_iteration": "trainer.methods.imitation.expert_iteration:ExpertIteration",
        "step_dpo": "trainer.methods.imitation.step_dpo:StepDpo",
        "chord": "trainer.methods.imitation.chord:Chord",
        "luffy": "trainer.methods.imitation.luffy:Luffy",
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
