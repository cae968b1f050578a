"""Auxiliary objectives over two processes are those of one, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import full_count
from tests.trainer import small
from tests.trainer.parallel.comparing import MODES, TOLERANCE, compare
from tests.trainer.parallel.learning import Case, learn_alone, learn_cases, written
from tests.trainer.parallel.ranks import run_ranks
from tests.trainer.test_every_auxiliary import SECTIONS
from trainer.methods.registry import METHODS
from trainer.models.tiny import save_policy

VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{name: (name, {**SECTIONS.get(name, {}), "weight": 1.0}) for name in METHODS},
    # Its loss has the square of large gaps: plain SGD would leave what can be compared.
    "skill_sd": ("skill_sd", {**SECTIONS["skill_sd"], "weight": 0.05}),
    "sero_matched": ("sero", {"rule": "depth", "delta": "matched", "weight": 1.0}),
    "corrections": ("corrections", {"weight": 1.0, "max_depth": 4}),
    "seed_current": ("seed", {**SECTIONS["seed"], "teacher": "current", "weight": 1.0}),
    "opd_advantage": ("opd", {"form": "advantage", "combine": "replace", "weight": 1.0}),
    "opd_exact": ("opd", {"form": "exact", "weight": 1.0}),
    "gkd_data": ("gkd", {"fraction": 0.0, "weight": 1.0}),
    "serl_act": ("serl", {"act_weight": 1.0, "act_kind": "pg_rkl", "weight": 1.0}),
    "opsd_synced": ("opsd", {"teacher": "synced", "sync_every": 1, "weight": 1.0}),
    "opsd_current": ("opsd", {"teacher": "current", "weight": 1.0}),
}
SAMPLE = [
    ("sft", "ddp"), ("chord", "fsdp"), ("luffy", "ddp"), ("step_dpo", "fsdp"),
    ("opsd_synced", "fsdp"), ("opsd_current", "fsdp"), ("opd_advantage", "ddp"),
]  # fmt: skip
CONTROL = "uncounted"
ALL = [(name, mode) for name in VARIANTS for mode in MODES]
CHOSEN = ALL[: full_count(0, len(ALL))] or SAMPLE


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Case]]:
    """All of this file, in one start of two processes; rank 0 has one of three groups."""
    folder = tmp_path_factory.mktemp("auxiliaries")
    save_policy(folder / "policy", small.model().double(), small.tokenizer())
    save_policy(folder / "reference", small.model(seed=1).double(), small.tokenizer())
    made = []
    for variant, mode in CHOSEN:
        name, given = VARIANTS[variant]
        section = dict(given)
        if name in ("opd", "gkd"):
            section["teacher"] = str(folder / "reference")
        overrides = {f"auxiliary__{name}": section, "optim__steps": 2}
        made.append(Case(f"{variant}-{mode}", mode, (0, 1, 3), overrides, played=True))
    for case in made:
        learn_alone(folder, case)
    made.append(replace(next(c for c in made if c.name == "sft-ddp"), name=CONTROL, uncounted=True))
    run_ranks(learn_cases, folder, made[0].config(), made)
    return folder, {case.name: case for case in made}


def test_with_counts_of_one_rank_the_comparison_fails(
    cases: tuple[Path, dict[str, Case]],
) -> None:
    folder, known = cases
    error, _, _ = compare(folder, known[CONTROL], known["sft-ddp"])
    assert error > 1000 * TOLERANCE


@pytest.mark.parametrize(("variant", "mode"), CHOSEN)
def test_steps_are_those_of_one_process(
    cases: tuple[Path, dict[str, Case]], variant: str, mode: str
) -> None:
    folder, known = cases
    case = known[f"{variant}-{mode}"]
    error, moved, apart = compare(folder, case)
    print(f"{case.name}: relative gradient error {error:.1e}, moved {moved:.2g}")
    assert error < TOLERANCE
    assert moved > 1000 * TOLERANCE
    assert apart == 0.0
    figures = [written(folder, case, who)["figures"] for who in ("alone", "0", "1")]
    assert torch.equal(figures[1], figures[2])
    torch.testing.assert_close(figures[1], figures[0], rtol=1e-6, atol=1e-9)
