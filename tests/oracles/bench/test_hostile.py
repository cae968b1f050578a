"""Oracles and environments that would pass by what is not looked at.

Promises:
1. GO needs a number of roots that can show something; equal gaps do not make an interval without
   width.
2. An oracle gains nothing by reaching into the environment that it is shown.
3. The time of the privileged view is part of the cost.
4. A restore that fails before a branch counts as one, even if all others held.
5. `sys.exit` in somebody's code is one failure more, and ends nothing.
6. An answer that does not come in time is a timeout, and the measurement goes on.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest

from agent_envs.errors import InvalidOption
from agent_envs.statistics import wilson
from oracles import Decision, History, PlanStatus
from oracles.bench import (
    FEWEST_ROOTS,
    Code,
    IterationCosts,
    Measured,
    Verdict,
    measure,
    overhead,
    verdict,
)
from oracles.bench.limited import NoAnswer, within
from oracles.bench.outcomes import GIVEN_UP, NOT_REPEATED
from tests.oracles.bench.lamps import LOSSY, Clock, Lamp, Lighter, Make, played

MINUTE = IterationCosts(60.0, "assumed")


def measured(
    make: Make = Lamp, oracle: Callable[[], Any] = Lighter, roots: int = 12
) -> tuple[Measured, Verdict]:
    found = measure(make, played(make), oracle, roots=roots, seed=0, from_reset=0, clock=Clock())
    return found, verdict(found.restore, found.gate, overhead(found.cost, MINUTE))


# ------------------------------------------------------------------ few roots


@pytest.mark.parametrize("roots", range(1, 9))
def test_few_roots_show_nothing(roots: int) -> None:
    found, said = measured(roots=roots)
    if roots < FEWEST_ROOTS:
        assert said.codes == (Code.ORACLE_NOT_BETTER,)
        assert f"{roots} roots are too few" in said.reasons[0]
        assert f"at least {FEWEST_ROOTS} are needed" in said.reasons[0]
    else:
        assert said.go == (found.gate.gap.low > 0)
        assert "too few" not in " ".join(said.reasons)


@pytest.mark.parametrize("roots", [6, 24])
def test_equal_gaps_have_an_interval(roots: int) -> None:
    class Silent(Lighter):
        def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
            return Decision(PlanStatus.TIMEOUT, None), None

    found, said = measured(oracle=Silent, roots=roots)
    gap = found.gate.gap
    assert (gap.mean, gap.low) == (0.0, 0.0)
    assert gap.high == pytest.approx(wilson(0, roots)[1])
    assert said.codes == (Code.ORACLE_NOT_BETTER,)


# ------------------------------------------------------------------ what reaches into the env


class Live(Lamp):
    """Shows itself instead of a value."""

    def privileged(self) -> Any:
        return self


class Cheat:
    """Moves the lamp to the player."""

    privileged = True

    def start(self, view: Live, history: History) -> None:
        return None

    def act(self, state: None, view: Live, observation: str) -> tuple[Decision, None]:
        listed = "light the lamp" in view._admissible()
        view._lamp = view._state[0]
        return Decision(PlanStatus.FOUND, "light the lamp" if listed else "roll"), None


def test_an_oracle_that_changes_the_environment_gains_nothing() -> None:
    found, said = measured(Live, Cheat)
    assert said.codes == (Code.ORACLE_NOT_BETTER,), said.reasons
    assert found.oracle.statuses == {"found": sum(len(p.branch.steps) for p in found.probes)}
    # where the player stood at the lamp anyway, or nothing was left, there was nothing to gain
    assert found.gate.invalid_by_reason[NOT_REPEATED] >= 9
    assert found.oracle.deterministic


def test_a_sound_oracle_is_carried_out_as_it_says() -> None:
    found, said = measured()
    assert said.go
    assert NOT_REPEATED not in found.gate.invalid_by_reason


@pytest.mark.parametrize("env", [env for env, _ in LOSSY], ids=lambda env: env.__name__)
def test_a_lossy_restore_is_not_the_oracles_fault(env: type[Lamp]) -> None:
    found, said = measured(env, roots=24)
    assert said.codes == (Code.RESTORE_NOT_EXACT,)
    assert NOT_REPEATED not in found.gate.invalid_by_reason


# ------------------------------------------------------------------ what is not timed, not counted


def test_the_time_of_the_view_is_part_of_the_cost() -> None:
    class Slow(Lamp):
        def privileged(self) -> Any:
            until = perf_counter() + 0.002
            while perf_counter() < until:
                pass
            return super().privileged()

    found, _ = measured(Slow, roots=6)
    asked = sum(found.oracle.statuses.values())
    assert found.cost.env_s * 6 >= 0.002 * asked


def test_a_restore_that_fails_for_a_branch_counts() -> None:
    class Tires(Lamp):
        """Holds for every look that the benchmark takes at restores, and no longer."""

        restored = 0

        def _resume(self, snap: Any) -> Any:
            Tires.restored += 1
            if Tires.restored == 12 * 2 + 4 + 3:
                raise OSError("out of handles")
            return super()._resume(snap)

    found, said = measured(Tires)
    assert found.restore.exact == 11
    assert found.restore.share == pytest.approx(11 / 12)
    assert "out of handles" in found.restore.failures[0].what
    assert said.codes == (Code.RESTORE_NOT_EXACT,)


@pytest.mark.parametrize("place", ["start", "act", "privileged"])
def test_an_exit_in_an_oracle_is_a_failure_of_its_branch(place: str) -> None:
    class Exits(Lighter):
        def start(self, view: Any, history: History) -> None:
            if place == "start":
                sys.exit(0)

        def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
            sys.exit(0)

    class Gone(Lamp):
        def privileged(self) -> Any:
            sys.exit(0)

    found, said = measured(Gone if place == "privileged" else Lamp, Exits)
    reason = "env_error" if place == "privileged" else "oracle_error"
    assert found.gate.invalid_by_reason == {reason: 12}
    assert said.codes == (Code.ORACLE_NOT_BETTER,)


def test_an_exit_in_a_restore_is_a_failed_restore() -> None:
    class Exits(Lamp):
        def _resume(self, snap: Any) -> Any:
            sys.exit(0)

    found, said = measured(Exits)
    assert found.restore.exact == 0
    assert said.codes == (Code.RESTORE_NOT_EXACT,)


# ------------------------------------------------------------------ no answer


class Sleeper(Lighter):
    """Never answers, and survives what ends it, as a loop around a server may."""

    asked = 0

    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        Sleeper.asked += 1
        while True:
            try:
                threading.Event().wait()
            except Exception:
                continue


class Late(Sleeper):
    """Never comes back from `start`."""

    def start(self, view: Any, history: History) -> None:
        Late.asked += 1
        while True:
            pass


class Once(Sleeper):
    """Answers, but for every third time."""

    def __init__(self) -> None:
        self.count = 0

    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        self.count += 1
        if self.count % 3 == 0:
            return super().act(state, view, observation)
        return Lighter.act(self, state, view, observation)


def limited(oracle: Callable[[], Any]) -> Measured:
    Sleeper.asked = Late.asked = 0
    before = signal.getsignal(signal.SIGALRM)
    found = measure(Lamp, played(Lamp), oracle, roots=12, seed=0, from_reset=2, decision_s=0.02)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    return found


@pytest.mark.parametrize("oracle", [Sleeper, Late])
def test_an_oracle_that_never_answers_is_a_timeout_everywhere(oracle: Any) -> None:
    found = limited(oracle)
    assert found.oracle.timeouts == found.oracle.statuses["timeout"] == 12
    assert found.gate.invalid_by_reason == {"oracle_timeout": 12}
    words = "oracle_timeout: no answer within 0.02 s"
    assert found.gate.invalid_examples["oracle_timeout"].startswith(words)
    assert oracle.asked == 2 * GIVEN_UP, "once, and once more for the second run of branches"
    said = verdict(found.restore, found.gate, overhead(found.cost, MINUTE))
    assert said.codes == (Code.ORACLE_NOT_BETTER,)


def test_one_answer_that_does_not_come_loses_its_branch_alone() -> None:
    found = limited(Once)
    assert 0 < found.oracle.timeouts < 12
    assert found.gate.invalid_by_reason["oracle_timeout"] == found.oracle.timeouts
    assert found.gate.by_reason["active"] > 0
    assert "not asked again" not in found.gate.invalid_examples["oracle_timeout"]


def test_a_limit_that_makes_no_sense_is_refused() -> None:
    for wrong in (0, -1.0, float("nan"), True, "1"):
        with pytest.raises(InvalidOption, match="decision_s is a finite number above 0"):
            measure(Lamp, played(Lamp), Lighter, roots=1, seed=0, decision_s=wrong)  # type: ignore[arg-type]


def test_a_limit_is_for_the_main_thread() -> None:
    seen: list[str] = []

    def work() -> None:
        with within(1e-9):
            seen.append("went on")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["went on"]
    with within(None):
        pass
    with pytest.raises(NoAnswer, match=r"no answer within 0\.01 s"), within(0.01):
        threading.Event().wait()
