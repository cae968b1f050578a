"""The whole measurement, and the verdict: exactly the codes of what fails.

Promises:
1. A lossy restore, an oracle that is no better, an oracle that is too slow and a restore that is
   too slow each give NO-GO with that code and no other; a sound fast oracle gives GO.
2. A sentence for each code names the figure and the threshold.
3. Failures at a root are figures; misuse is a typed error.
4. The roots are those of a bank; the same arguments give the same figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from agent_envs.errors import InvalidOption
from oracles import Decision, History, PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.bench import (
    MOST_OVERHEAD,
    Code,
    IterationCosts,
    Measured,
    StepCosts,
    Verdict,
    measure,
    overhead,
    to_json,
    verdict,
)
from oracles.branches import BranchRunner, EnvRecipe
from oracles.walks import PLAYERS, BankBuildError, collect, walks
from oracles.webshop_goal import WebShopGoalOracle
from tests.oracles.bench.lamps import (
    LOSSY,
    Clock,
    Lamp,
    Lighter,
    Make,
    Roller,
    lights,
    played,
)
from tests.support import full_count

MINUTE = IterationCosts(60.0, "assumed")
HOUSES = EnvRecipe("SeroALFWorld-v0", {"data": "generated:small?seed=3&train=40", "max_steps": 30})


def measured(
    make: Make = Lamp, oracle: Callable[[], Any] = Lighter, **options: Any
) -> tuple[Measured, Verdict]:
    options = {"roots": 24, "seed": 0, "from_reset": 6, "clock": Clock(), **options}
    found = measure(make, played(make), oracle, **options)
    return found, verdict(found.restore, found.gate, overhead(found.cost, MINUTE))


def slow(seconds: float, clock: Clock) -> type[Lighter]:
    class Slow(Lighter):
        def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
            clock.now += seconds
            return super().act(state, view, observation)

    return Slow


def slow_to_restore(seconds: float, clock: Clock) -> type[Lamp]:
    class Slow(Lamp):
        def _resume(self, snap: Any) -> Any:
            clock.now += seconds
            return super()._resume(snap)

    return Slow


# ------------------------------------------------------------------ the verdict


def test_a_sound_and_better_oracle_is_a_go() -> None:
    found, said = measured()
    assert said.go
    assert said.codes == ()
    assert len(said.reasons) == 3
    assert found.restore.share == 1.0
    assert found.gate.gap.low > 0
    assert found.won == 0
    assert found.episodes == 24


@pytest.mark.parametrize("env", [env for env, _ in LOSSY], ids=lambda env: env.__name__)
def test_a_lossy_restore_is_a_no_go_and_nothing_else_is_blamed(env: type[Lamp]) -> None:
    found, said = measured(env)
    assert not said.go
    assert said.codes == (Code.RESTORE_NOT_EXACT,), said.reasons
    assert f"{found.restore.exact} of 24" in said.reasons[0]
    assert "100 %" in said.reasons[0]
    assert found.restore.failures[0].what in said.reasons[0]


def test_an_oracle_no_better_than_the_policy_is_a_no_go() -> None:
    found, said = measured(oracle=Roller)
    assert said.codes == (Code.ORACLE_NOT_BETTER,)
    assert found.gate.by_reason["oracle_not_better"] == 24
    assert found.restore.share == 1.0
    assert "above 0" in said.reasons[0]
    assert "0.000" in said.reasons[0]


def test_a_slow_oracle_is_a_no_go() -> None:
    clock = Clock()
    found, said = measured(oracle=slow(3.0, clock), clock=clock)
    assert said.codes == (Code.ORACLE_TOO_SLOW,)
    decisions = sum(len(probe.branch.steps) for probe in found.probes)
    assert found.cost.oracle_s == pytest.approx(3.0 * decisions / 24, rel=1e-3)
    assert found.oracle.decision_us.p95 == pytest.approx(3e6, rel=1e-3)
    assert "25 %" in said.reasons[0]
    assert "60 s (assumed)" in said.reasons[0]


def test_a_slow_restore_is_a_no_go_and_not_called_a_slow_oracle() -> None:
    clock = Clock()
    found, said = measured(slow_to_restore(1.5, clock), clock=clock)
    assert said.codes == (Code.RESTORE_TOO_SLOW,)
    assert found.cost.restore_s == pytest.approx(1.5, rel=1e-3)
    assert found.cost.oracle_s < 1e-3


def test_all_that_fails_is_said_at_once() -> None:
    clock = Clock()

    class Worst(LOSSY[0][0]):  # type: ignore[misc]
        def _resume(self, snap: Any) -> Any:
            clock.now += 2.0
            return super()._resume(snap)

    class SlowRoller(Roller):
        def act(self, state: None, view: None, observation: str) -> tuple[Decision, None]:
            clock.now += 2.0
            return super().act(state, view, observation)

    _, said = measured(Worst, SlowRoller, clock=clock)
    assert set(said.codes) == {
        Code.RESTORE_NOT_EXACT,
        Code.ORACLE_NOT_BETTER,
        Code.RESTORE_TOO_SLOW,
        Code.ORACLE_TOO_SLOW,
    }
    assert len(said.reasons) == 4


@pytest.mark.parametrize(
    ("restore_s", "oracle_s", "env_s", "model_s", "codes"),
    [
        (0.0, 0.0, 0.0, None, ()),
        # 16 * 0.9375 s are a quarter of a minute: still allowed, a little more is not
        (0.3125, 0.3125, 0.3125, None, ()),
        (0.3125, 0.3125, 0.3126, None, (Code.OVERHEAD_TOO_HIGH,)),
        (0.0, 0.0, 2.0, None, (Code.OVERHEAD_TOO_HIGH,)),
        (0.0, 0.0, 0.0, 15.1, (Code.OVERHEAD_TOO_HIGH,)),
        (0.5, 0.5, 0.0, 1.0, (Code.OVERHEAD_TOO_HIGH,)),
        (1.0, 0.5, 0.0, None, (Code.RESTORE_TOO_SLOW,)),
        (0.5, 1.0, 0.0, 30.0, (Code.ORACLE_TOO_SLOW,)),
        (1.0, 1.0, 1.0, None, (Code.RESTORE_TOO_SLOW, Code.ORACLE_TOO_SLOW)),
    ],
)
def test_the_overhead_of_sixteen_roots(
    restore_s: float, oracle_s: float, env_s: float, model_s: float | None, codes: tuple[str, ...]
) -> None:
    found, _ = measured(roots=8)
    costs = StepCosts(restore_s, oracle_s, env_s, 5.0)
    projected = overhead(costs, IterationCosts(60.0, "measured", model_s, 0.1))
    share = (16 * (restore_s + oracle_s + env_s) + (model_s or 0.0)) / 60
    assert projected.overhead_share == pytest.approx(share)
    assert (projected.groups, projected.rollouts) == (16, 8)
    assert projected.restore_share == pytest.approx(16 * restore_s / 60)
    assert projected.model_share == (None if model_s is None else pytest.approx(model_s / 60))
    assert (projected.overhead_share <= MOST_OVERHEAD) == (not codes)
    said = verdict(found.restore, found.gate, projected)
    assert said.codes == codes
    assert said.go == (not codes)
    assert all("25 %" in reason for reason in said.reasons[-1:])


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_an_iteration_takes_time(seconds: float) -> None:
    with pytest.raises(InvalidOption, match="iteration_s"):
        overhead(StepCosts(0.0, 0.0, 0.0, 1.0), IterationCosts(seconds, "assumed"))
    with pytest.raises(InvalidOption, match="oracle_s"):
        overhead(StepCosts(0.0, float("nan"), 0.0, 1.0), MINUTE)


# ------------------------------------------------------------------ real environments


def test_the_alfworld_planner_beside_a_random_policy_is_a_go() -> None:
    roots = full_count(32, 256)
    player = PLAYERS["random"]
    found = measure(HOUSES, walks(HOUSES(), player, 0), ALFWorldPlanner, roots=roots, seed=0)
    projected = overhead(found.cost, MINUTE)
    said = verdict(found.restore, found.gate, projected)
    assert said.go, said.reasons
    assert found.restore.suffixes_replayed == roots
    assert found.oracle.from_reset.wins == found.oracle.from_reset.n == 32
    assert found.oracle.deterministic
    assert found.oracle.repeated == 32
    assert set(found.oracle.statuses) <= {"found", "over_budget"}
    assert found.leaks is not None
    again = measure(HOUSES, walks(HOUSES(), player, 0), ALFWorldPlanner, roots=roots, seed=0)
    assert again.probes == found.probes
    assert again.gate == found.gate
    assert again.leaks == found.leaks
    assert again.oracle.by_depth == found.oracle.by_depth


def test_the_webshop_oracle_by_score() -> None:
    recipe = ("SeroWebShop-v0", {"data": "generated:small"})
    make = EnvRecipe(*recipe)
    found = measure(
        recipe,
        walks(make(), PLAYERS["random"], 0),
        WebShopGoalOracle,
        roots=16,
        seed=0,
        target="score",
        from_reset=8,
    )
    said = verdict(found.restore, found.gate, overhead(found.cost, MINUTE))
    assert said.go, said.reasons
    gaps = [
        probe.branch.score - probe.own.score if probe.branch.valid else 0.0
        for probe in found.probes
    ]
    assert found.gate.gap.mean == pytest.approx(sum(gaps) / 16)
    assert found.gate.eligible_share == (found.episodes - found.won) / found.episodes


def test_the_roots_are_those_of_a_bank() -> None:
    found, _ = measured(roots=10, seed=4)
    with BranchRunner(Lighter, Lamp) as runner:
        rows, episodes = collect(
            played(Lamp), runner, 10, oracle="lighter", policy="wanders", seed=4
        )
    assert episodes == found.episodes
    assert [row.branch for row in rows] == [probe.branch for probe in found.probes]
    assert [row.own for row in rows] == [probe.own for probe in found.probes]
    assert [row.branch.root_step for row in rows] == [probe.t for probe in found.probes]


# ------------------------------------------------------------------ failures and misuse


class Raises(Lighter):
    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        raise RuntimeError("no idea")


class Times(Lighter):
    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        return Decision(PlanStatus.TIMEOUT, None), None


class Nonsense(Lighter):
    def act(self, state: None, view: Any, observation: str) -> Any:
        return "light the lamp"


class Wrong(Lighter):
    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        return Decision(PlanStatus.FOUND, "fly"), None


class CannotStart(Lighter):
    def start(self, view: Any, history: History) -> None:
        raise RuntimeError("no start")


@pytest.mark.parametrize(
    ("oracle", "status", "reason", "refused", "timeouts"),
    [
        (Raises, "error", "oracle_error", 0.0, 0),
        (Nonsense, "error", "oracle_error", 0.0, 0),
        (CannotStart, "error", "oracle_error", 0.0, 0),
        (Times, "timeout", "oracle_timeout", 0.0, 12),
        (Wrong, "found", "inadmissible", 1.0, 0),
    ],
)
def test_what_an_oracle_does_wrong_is_counted(
    oracle: type[Lighter], status: str, reason: str, refused: float, timeouts: int
) -> None:
    found, said = measured(oracle=oracle, roots=12)
    assert said.codes == (Code.ORACLE_NOT_BETTER,)
    assert found.oracle.statuses == {status: 12}
    assert found.gate.invalid_by_reason == {reason: 12}
    assert found.gate.by_reason["invalid"] == 12
    assert found.oracle.inadmissible_share == refused
    assert found.oracle.timeouts == timeouts
    assert found.oracle.steps.mean is found.gate.oracle_success is None
    assert found.oracle.from_reset.wins == 0


def test_an_oracle_that_varies_is_not_deterministic() -> None:
    class Moody(Lighter):
        made = 0

        def __init__(self) -> None:
            type(self).made += 1
            self.mood = self.made

        def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
            if self.mood == 2:
                return Decision(PlanStatus.FOUND, "roll"), None
            return super().act(state, view, observation)

    found, _ = measured(oracle=Moody)
    assert not found.oracle.deterministic
    assert found.oracle.repeated == 24


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"roots": 0}, "roots"),
        ({"roots": True}, "roots"),
        ({"seed": -1}, "seed"),
        ({"from_reset": -1}, "from_reset"),
        ({"target": "wins"}, "target"),
        ({"return_scale": 0.0}, "return_scale"),
        ({"return_scale": float("inf")}, "return_scale"),
        ({"return_scale": "1"}, "return_scale"),
    ],
)
def test_arguments_that_make_no_sense_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        measured(**options)


def test_a_policy_that_never_fails_leaves_nothing_to_measure() -> None:
    walk = next(walks(Lamp(), lights, 0))
    won = replace(walk, success=True)
    with pytest.raises(BankBuildError, match="Only 0 of 140 episodes failed"):
        measure(Lamp, iter([won] * 1000), Lighter, roots=2, seed=0)
    with pytest.raises(BankBuildError, match="Only 0 of 3 episodes failed"):
        measure(Lamp, iter([won] * 3), Lighter, roots=2, seed=0)


def test_won_episodes_are_counted_and_give_no_root() -> None:
    some = list(islice(played(Lamp), 6))
    mixed = [replace(some[0], success=True), *some[1:3], replace(some[3], success=True), *some[4:]]
    found = measure(Lamp, iter(mixed), Lighter, roots=3, seed=0, from_reset=0)
    assert (found.episodes, found.won) == (5, 2)
    assert found.gate.eligible_share == pytest.approx(3 / 5)
    assert [probe.walk for probe in found.probes] == [some[1], some[2], some[4]]
    assert found.oracle.from_reset.n == 0
    assert found.oracle.from_reset.share is None


def test_progress_is_told() -> None:
    said: list[tuple[str, int, int]] = []
    measured(roots=5, on_progress=lambda *step: said.append(step))
    assert [step for step in said if step[0] == "branches"] == [
        ("branches", done, 5) for done in range(1, 6)
    ]
    assert said[:6] == [("failed episodes", done, 5) for done in range(6)]
    assert ("restores", 5, 5) in said


# ------------------------------------------------------------------ the JSON


def test_the_json_object_is_plain_and_whole() -> None:
    clock = Clock()
    failing, _ = measured(LOSSY[0][0], Raises, clock=clock)
    for found in (measured()[0], failing):
        projected = overhead(found.cost, MINUTE)
        said = verdict(found.restore, found.gate, projected)
        result = to_json(found, projected, said, env="Lamp", policy="wanders", oracle="lighter")
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        assert " ".join(result) == (
            "format env policy oracle roots seed target verdict reasons reason_codes "
            "restore_fidelity oracle_success policy_success gate_zero_share mean_gate "
            "effective_depth overhead_share restore oracle_figures gate cost leaks reach scale "
            "format_drift sweep"
        )
        assert result["verdict"] == ("GO" if said.go else "NO-GO")
        assert result["reason_codes"] == list(said.codes)
        assert set(result["restore"]) == {
            *("share", "roots", "exact", "suffixes_replayed", "failures", "by_depth"),
            "restores_per_s",
        }
        assert set(result["restore"]["by_depth"][0]) == {
            *("from", "to", "roots", "snapshot_us", "restore_us", "bytes")
        }
        assert set(result["oracle_figures"]) == {
            *("from_reset", "by_depth", "by_steps_left", "steps", "decision_us", "statuses"),
            *("inadmissible_share", "timeouts", "deterministic", "repeated"),
        }
        assert set(result["oracle_figures"]["from_reset"]) == {
            *("tasks", "wins", "share", "low", "high")
        }
        assert set(result["oracle_figures"]["by_depth"][0]) == {
            *("from", "to", "roots", "wins", "share", "low", "high")
        }
        assert set(result["gate"]) == {
            *("roots", "eligible_share", "by_reason", "invalid_by_reason", "mean_gate"),
            "invalid_examples",
            *("zero_share", "gap", "gap_histogram", "oracle_success"),
        }
        assert set(result["gate"]["gap"]) == {"mean", "low", "high", "level"}
        assert set(result["gate"]["gap_histogram"][0]) == {"from", "to", "n"}
        assert set(result["cost"]) == {
            *("restore_s", "oracle_s", "env_s", "branch_steps", "groups", "rollouts"),
            *("iteration_s", "iteration_from", "restore_share", "oracle_share", "env_share"),
            *("token_share", "model_share", "overhead_share"),
        }
        assert result["cost"]["iteration_from"] == "assumed"
    more = to_json(
        found,
        projected,
        said,
        env="Lamp",
        policy="wanders",
        oracle="lighter",
        reach={"effective_depth": 2.5},
        drift={"steps": 20},
    )
    assert more["effective_depth"] == 2.5
    assert more["format_drift"] == {"steps": 20}


def test_the_reason_names_why_branches_are_invalid() -> None:
    _, judged = measured(oracle=Raises)
    assert not judged.go
    assert "24 invalid: oracle_error 24)" in judged.reasons[0]
