"""All figures of a policy together, in both environments."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from oracles.bench.figures import GROUPS, ROLLOUTS, Probe
from tests.trainer.oracle_bench import bench_world
from trainer.banks.policy import TrainedPolicy
from trainer.config import SeroConfig
from trainer.oracle_bench.model import (
    NO_FIT,
    NO_OPEN,
    NO_ROOTS,
    ModelFigures,
    iteration_costs,
    model_figures,
    section_of,
)
from trainer.oracle_bench.scale import BaseIteration, SeroPass


def _figures(trained: TrainedPolicy, probes: list[Probe], seed: int = 0) -> ModelFigures:
    return model_figures(
        trained, probes, seed=seed, drift_steps=3, drift_episodes=4, agreement_states=12
    )


def _untimed(figures: ModelFigures) -> str:
    return json.dumps([figures.reach, figures.scale, figures.format], allow_nan=False)


def test_all_figures_of_a_policy_and_nothing_of_it_moved(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    before = bench_world.digest(trained.model), bench_world.global_state()
    parts: list[str] = []
    found = model_figures(
        trained, probes, drift_steps=3, drift_episodes=4, agreement_states=12,
        on_part=parts.append,
    )  # fmt: skip
    assert (bench_world.digest(trained.model), bench_world.global_state()) == before
    assert parts == ["reach", "scale", "format"]
    assert found.reasons == {}
    assert found.reach is not None
    assert found.scale is not None
    assert found.format is not None
    won = sum(p.branch.valid and p.branch.success for p in probes)
    assert found.reach["branches"] + found.reach["too_long"] == won
    assert 1.0 < found.reach["effective_depth"] == pytest.approx(math.fsum(found.reach["weights"]))
    assert found.scale["oracle_norm"] > 0
    assert found.format["steps"] == 3
    costs = found.iteration
    assert costs.source == "measured"
    assert costs.iteration_s > 0
    assert costs.model_s is not None
    assert costs.model_s > 0
    assert costs.token_share is not None
    assert 0 < costs.token_share < 1
    # The figures follow from the seed; the seconds do not.
    assert _untimed(found) == _untimed(_figures(trained, probes))
    assert _untimed(found) != _untimed(_figures(trained, probes, seed=1))


def test_without_roots_the_figures_have_no_value_and_say_why(trained: TrainedPolicy) -> None:
    found = _figures(trained, [])
    assert (found.reach, found.scale, found.format) == (None, None, None)
    assert found.reasons == {"reach": NO_ROOTS, "scale": NO_ROOTS, "format": NO_ROOTS}
    assert found.iteration.iteration_s > 0
    assert found.iteration.model_s is None
    assert found.iteration.token_share is None


def test_where_the_oracle_is_nowhere_better_its_gradient_is_nothing(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    worse = [
        replace(probe, branch=replace(probe.branch, success=False, score=0.0)) for probe in probes
    ]
    found = _figures(trained, worse)
    assert found.reach is None
    assert found.format is None
    assert found.reasons == {"reach": NO_OPEN, "format": NO_OPEN}
    assert found.scale is not None
    assert found.scale["oracle_norm"] == 0.0
    assert found.scale["cosine"] is None
    assert {row["ratio"] for row in found.scale["weights"]} == {0.0}
    assert {row["cosine_total"] for row in found.scale["weights"]} == {1.0}
    assert found.scale["suggested"] == []
    assert found.iteration.token_share == 0.0

    # With replies of three tokens no target fits: that is another reason.
    short = trained.config.replace(**{"rollout.max_new_tokens": 3})
    good = [probe for probe in probes if probe.branch.valid and probe.branch.success]
    misfit = _figures(replace(trained, config=short), good)
    assert misfit.reach is None
    assert misfit.reasons["reach"] == NO_FIT.format(len(good))


def test_without_a_base_gradient_there_is_no_scale_but_a_cost(
    trained: TrainedPolicy, probes: list[Probe]
) -> None:
    # Nobody wins with the first command, and without a penalty nothing else differs.
    short = trained.config.replace(**{"env.max_steps": 1, "rollout.format_penalty": 0})
    found = _figures(replace(trained, config=short), probes)
    assert found.scale is None
    assert "3 iterations" in found.reasons["scale"]
    assert found.reach is not None
    assert found.iteration.model_s is not None
    assert found.iteration.model_s > 0


def test_a_shop_has_the_same_figures(shop_run: Path) -> None:
    trained = bench_world.opened(shop_run)
    probes = bench_world.probes_of(trained, 4)
    before = bench_world.digest(trained.model), bench_world.global_state()
    found = _figures(trained, probes)
    assert (bench_world.digest(trained.model), bench_world.global_state()) == before
    assert found.reach is not None
    won = sum(p.branch.valid and p.branch.success for p in probes)
    assert found.reach["branches"] + found.reach["too_long"] == won
    assert found.reach["branches"] > 0
    assert found.scale is not None
    assert found.format is not None
    json.dumps([found.reach, found.scale, found.format], allow_nan=False)


def test_costs_are_projected_to_one_iteration() -> None:
    base = BaseIteration((), 1.0, 1, 32, 4, 8000, rollout_s=3.0, update_s=1.0)
    took = SeroPass(roots=8, tokens=500, seconds=0.4)
    costs = iteration_costs(base, took, scoring_s=0.01, epochs=2)
    times = GROUPS * ROLLOUTS / 32
    assert costs.iteration_s == pytest.approx(times * 4.0)
    assert costs.model_s == pytest.approx(16 * (0.01 + 2 * 0.4 / 8))
    assert costs.token_share == pytest.approx((16 * 500 / 8) / (8000 * times))
    nothing = iteration_costs(replace(base, tokens=0), took, 0.01, 1)
    assert nothing.token_share is None
    assert iteration_costs(base, None, 0.0, 1).model_s is None


def test_the_settings_are_those_of_the_run_with_the_gate_that_was_asked_for(
    trained: TrainedPolicy,
) -> None:
    assert section_of(trained.config, "success", 1.0) == SeroConfig()
    sero = {"w_min": 0.01, "think_mode": "sampled", "gamma": 0.9, "target": "reward"}
    own = trained.config.replace(**{"auxiliary.sero": sero})
    section = section_of(own, "score", 0.5)
    assert (section.w_min, section.target, section.return_scale) == (0.01, "score", 0.5)
    assert (section.gamma, section.think_mode) == (1.0, "empty")
    assert section_of(own, "reward", 1.0).gamma == 0.9
    sampling = trained.config.replace(**{"auxiliary.sero": {"think_mode": "sampled"}})
    assert section_of(sampling, "success", 1.0).think_mode == "empty"
    assert section_of(sampling, "success", 1.0, trained=True).think_mode == "sampled"
    section.check()
