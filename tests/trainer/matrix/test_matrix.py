"""Every base and auxiliary objective makes the best commands likelier, and only by its signal.

Each case trains the same weak policy (see `harness`) over three seeds and looks at the mean rise of
the best command's log-prob: at least 0.05 nats with the method's signal, less once the signal is
shuffled (see `shuffling`). What should not teach decisions has to stay below without a shuffle.

An auxiliary objective is measured without the base's effect: with `objective.name: none`, or with
the base's own advantages set to 0 where it needs them. SERL and RLSD only weigh the base's
advantages, which are therefore their signal.

All cases run under SERO_TEST_FULL=1, and a sample of them otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tests.support import full_count
from tests.trainer.matrix import harness, switch_world, teachers
from trainer.config.objective import ObjectiveConfig
from trainer.methods.registry import METHODS

MARGIN = 0.05
SEEDS = (0, 1, 2)
ANALYSER = {"model": f"{teachers.__name__}:analyser"}
STEP_SKILLS: dict[str, Any] = {"analyser": ANALYSER, "skill_mode": "episode_step"}


@dataclass(frozen=True)
class Case:
    """One row of the matrix.

    Attributes:
        name: of the row; before a colon, the objective's.
        settings: of the config, `__` for the dot.
        shuffle: what the control shuffles.
        instead: or settings that draw the signal at random. Without either and without a
            `teacher` there is no control: the method must not raise the figure as it is.
        keep: `shuffling` that applies to both runs.
        reads: whether the policy has to understand contexts (`teachers`).
        teacher: where the config wants the folder of a model.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    shuffle: str | None = "advantages"
    keep: tuple[str, ...] = ()
    reads: bool = False
    teacher: str | None = None
    instead: Mapping[str, Any] = field(default_factory=dict)
    iterations: int = 5

    @property
    def teaches(self) -> bool:
        return self.shuffle is not None or bool(self.instead)

    @property
    def objective(self) -> str:
        return self.name.partition(":")[0]


def base(name: str, **settings: Any) -> Case:
    return Case(name, {"objective__name": name, **settings})


def alone(name: str, shuffle: str | None, of_case: Any = None, **own: Any) -> Case:
    """An auxiliary objective without a base; `own` are fields of its section."""
    section = {f"auxiliary__{name.partition(':')[0]}": own}
    return Case(name, {"objective__name": "none", **section}, shuffle, **(of_case or {}))


BASES = (
    base("grpo"),
    base("dr_grpo"),
    base("dapo", objective__dynamic_rounds=2),
    base("gspo"),
    base("rloo"),
    base("reinforce_pp"),
    base("reinforce_pp_baseline"),
    base("gigpo"),
    base("hgpo"),
    base("graphgpo"),
    base("ppo"),
    base("ppo_trajectory"),
    base("turn_gae"),
)
ORACLES = (
    alone("sero", "oracle", weight=1.0),
    alone("dagger", "oracle", weight=1.0),
    alone("corrections", "oracle", weight=1.0),
    alone("sft", "oracle", weight=1.0),
    alone("step_dpo", "oracle", weight=1.0, beta=1.0, states="failed"),
    alone("chord", "oracle"),
    Case("luffy", {"auxiliary__luffy": {}}, "oracle", ("silent",)),
    alone("expert_iteration", "outcome", {"iterations": 6}, weight=1.0),
)
TEACHERS = (
    replace(alone("opd", "teacher"), teacher="auxiliary__opd__teacher"),
    replace(alone("gkd", "teacher"), teacher="auxiliary__gkd__teacher"),
)
TOLD = tuple(
    replace(case, reads=True)
    for case in (
        alone("opsd", "context", weight=1.0, context="plan"),
        alone("seed", "context", weight=1.0, **STEP_SKILLS, gate_center="mean"),
        alone("skill_sd", "context", weight=1.0, **STEP_SKILLS, source="hindsight"),
        Case(
            "opid",
            {"auxiliary__opid": {"weight": 1e-9, "step_weight": 1.0, "analyser": ANALYSER}},
            "context",
            ("silent",),
        ),
        # No sibling is good enough for the threshold: all contexts are feedback.
        replace(alone("sdpo", "context", success_threshold=2.0), keep=("coached",)),
        replace(alone("serl:act", "context", act_weight=1.0), keep=("coached",)),
        replace(
            alone("sdar", None, entries=teachers.LIBRARY, weight=1.0, gate_center="mean"),
            instead={"auxiliary__sdar__retrieval": "random"},
        ),
    )
)
REWEIGHTED = (
    Case("serl", {"auxiliary__serl": {}}),
    Case("rlsd", {"auxiliary__rlsd": {}}),
)
CONTROLS = (
    alone("format_only", None, weight=1.0),
    # Published: beta 0, where the teacher has no part. Its gradient is 0 on average.
    alone("opsd_legacy", None, weight=1.0),
)
MATRIX = (*BASES, *ORACLES, *TEACHERS, *TOLD, *REWEIGHTED, *CONTROLS)
SAMPLE = ("grpo", "sero", "format_only")
CASES = [case for case in MATRIX if full_count(0, 1) or case.name in SAMPLE]
SHUFFLED = [case for case in CASES if case.teaches]


def rise(case: Case, folder: Path, *, shuffled: bool) -> float:
    """Mean over the seeds, in nats."""
    settings = dict(case.settings)
    changes = case.keep
    if case.teacher is not None:
        model = teachers.confused() if shuffled else harness.skilled()
        settings[case.teacher] = teachers.saved(model, folder / "teacher")
    elif shuffled and case.instead:
        settings |= case.instead
    elif shuffled:
        assert case.shuffle is not None
        changes = (*changes, case.shuffle)
    start = teachers.reader() if case.reads else None
    rises = [
        harness.train(
            harness.config(seed, **settings), case.iterations, model=start, changes=changes
        ).rise
        for seed in SEEDS
    ]
    print(f"{case.name}{' shuffled' * shuffled}: {[round(value, 3) for value in rises]}")
    return sum(rises) / len(rises)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_best_commands_become_likelier(case: Case, tmp_path: Path) -> None:
    found = rise(case, tmp_path, shuffled=False)
    if not case.teaches:
        assert found < MARGIN
    else:
        assert found >= MARGIN


@pytest.mark.parametrize("case", SHUFFLED, ids=lambda case: case.name)
def test_they_do_not_once_the_signal_is_shuffled(case: Case, tmp_path: Path) -> None:
    assert rise(case, tmp_path, shuffled=True) < MARGIN


def test_what_a_reader_is_taught_to_follow() -> None:
    turn, _ = harness.situations()[0]
    tokenizer = harness.student().tokenizer
    plain, rows = tokenizer.decode(list(turn.prompt_ids)), teachers.told_rows(turn)
    assert len({row.ids for row in rows}) == 4 * len(switch_world.COMMANDS) + 1
    for number, row in enumerate(rows[:-12]):
        command = switch_world.COMMANDS[number // 4]
        place = row.loss_mask.index(True)
        prompt, reply = (tokenizer.decode(list(ids)) for ids in (row.ids[:place], row.ids[place:]))
        assert prompt.count(command) > plain.count(command)
        assert f"<action>{command}</action>" in reply


def test_every_objective_is_in_the_matrix() -> None:
    bases = set(get_args(get_type_hints(ObjectiveConfig)["name"]))
    assert {case.name for case in BASES} == bases - {"none"}
    assert {case.objective for case in MATRIX} >= set(METHODS)


def test_the_start_is_weak_and_well_formed() -> None:
    """Mixed outcomes, no malformed reply, and no situation in which a command is sure."""
    outcome = harness.train(harness.config(0), 1)
    (metrics,) = outcome.metrics
    assert metrics["format_valid_share"] > 0.95
    assert 0.05 < metrics["success_rate"] < 0.6
    assert metrics["mixed_group_share"] > 0.5
    assert -1.1 < harness.likelihood(harness.start()) < -0.4
