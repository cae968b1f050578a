"""What an oracle achieves: from the start of tasks, from visited states, and beside the policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

import agent_envs
from agent_envs.errors import MissingExtra
from agent_envs.statistics import bootstrap_mean, wilson
from oracles.bank import BankRow, Recorded
from oracles.base import Decision, History, Oracle, PlanStatus
from oracles.bench.fidelity import Clock, doubling_bins, spread
from oracles.bench.figures import (
    DecisionTimes,
    GapBin,
    GateFigures,
    MeanInterval,
    OracleFigures,
    Probe,
    Share,
    ShareBin,
    Steps,
)
from oracles.bench.limited import NoAnswer, within
from oracles.branch import Branch, BranchStatus, Reason, RootRecord
from oracles.branches import (
    BranchRequest,
    Env,
    EnvRecipe,
    EnvSource,
    OracleFactory,
    run_branches,
    run_request,
)

__all__ = [
    "GIVEN_UP",
    "NOT_REPEATED",
    "TimedOracle",
    "carried_out",
    "first_states",
    "gate_figures",
    "oracle_figures",
    "repeats_alike",
    "returns",
]

BOOTSTRAP = "bench-gap"
"""Purpose of the stream behind the interval of the mean gap."""
NOT_REPEATED = "not_repeated"
"""Among `invalid_by_reason`: the commands of the branch, run again without the oracle, do something
else. The oracle changed the environment that it was shown, or the environment is not repeatable."""
_REPEATED = 32
_GAP_BINS = 10
"""Bins on each side of the one around 0, up to `return_scale`."""
_MICRO = 1e6
_LONGEST = 320
_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


GIVEN_UP = 5
"""Answers in a row that did not come; then the oracle is not asked any more."""
_UNSTARTED: Any = object()
"""State of an oracle whose `start` did not come back."""


class TimedOracle:
    """Passes everything on to an oracle and keeps what it answered, and the seconds it took.

    Args:
        limit: seconds that one answer may take, see `oracles.bench.limited`. One that takes longer
            is `PlanStatus.TIMEOUT`. After `GIVEN_UP` of them in a row all further ones are, at
            once. None: no limit.
    """

    def __init__(
        self, oracle: Oracle[Any], clock: Clock = perf_counter, limit: float | None = None
    ) -> None:
        self.oracle = oracle
        self.clock = clock
        self.limit = limit
        self.unanswered = 0
        self.clear()

    def clear(self) -> None:
        """Forget what was kept."""
        self.seconds = 0.0
        self.decision_s: list[float] = []
        self.missing: MissingExtra | None = None
        self.statuses: Counter[str] = Counter()

    @property
    def privileged(self) -> bool:
        """As the oracle says."""
        return self.oracle.privileged

    def start(self, view: Any, history: History) -> Any:
        """The oracle's own."""
        if self.unanswered >= GIVEN_UP:
            return _UNSTARTED
        began = self.clock()
        try:
            with within(self.limit):
                return self.oracle.start(view, history)
        except NoAnswer:
            self.unanswered += 1
            return _UNSTARTED
        except BaseException as error:
            self.statuses["error"] += 1
            self._note(error)
            raise
        finally:
            self.seconds += self.clock() - began

    def act(self, state: Any, view: Any, observation: str) -> Any:
        """The oracle's own."""
        status = "error"
        if state is _UNSTARTED or self.unanswered >= GIVEN_UP:
            self.statuses[PlanStatus.TIMEOUT.value] += 1
            return self._none(), state
        began = self.clock()
        try:
            with within(self.limit):
                answer = self.oracle.act(state, view, observation)
            self.unanswered = 0
            status = _status(answer)
        except NoAnswer:
            self.unanswered += 1
            status = PlanStatus.TIMEOUT.value
            return self._none(), state
        except MissingExtra as error:
            self._note(error)
            raise
        finally:
            taken = self.clock() - began
            self.seconds += taken
            self.decision_s.append(taken)
            self.statuses[status] += 1
        return answer

    def _none(self) -> Decision:
        given_up = f"; not asked again after {GIVEN_UP}" if self.unanswered >= GIVEN_UP else ""
        return Decision(PlanStatus.TIMEOUT, None, f"no answer within {self.limit:g} s{given_up}")

    def _note(self, error: BaseException) -> None:
        if isinstance(error, MissingExtra):
            self.missing = error


def first_states(
    make: Callable[[], Env], seed: int, most: int, unlimited: int | None = None
) -> list[BranchRequest]:
    """The first states of up to `most` different tasks, in the order of the env for `seed`, each
    with `unlimited` commands to take where the env has no step limit."""
    requests: list[BranchRequest] = []
    tasks: set[str] = set()
    if not most:
        return requests
    env = make()
    try:
        observation, info = env.reset(seed=seed)
        while info["task_id"] not in tasks:
            tasks.add(info["task_id"])
            seen = RootRecord(observation, info["admissible_actions"])
            root = agent_envs.snapshot(env)
            horizon = unlimited if root.steps_left is None else None
            requests.append(BranchRequest(root, expected=seen, horizon=horizon))
            if len(requests) == most:
                break
            observation, info = env.reset()
    finally:
        env.close()
    return requests


def carried_out(probes: Sequence[Probe], env: EnvSource) -> tuple[Probe, ...]:
    """The probes, with branches invalid that their commands alone do not bring about.

    Every valid branch is run once more, in an environment that is asked for no privileged view.
    """
    found = []
    make = EnvRecipe(*env) if isinstance(env, tuple) else env
    with closing(make()) as other:
        for probe in probes:
            branch = probe.branch
            if branch.valid:
                request = probe.walk.request(probe.t)
                again = run_request(other, Recorded(branch), request, len(branch.steps))
                ended = [(one.steps, one.success, one.score) for one in (again, branch)]
                if ended[0] != ended[1]:
                    words = f"{NOT_REPEATED}: its commands alone do something else"
                    branch = replace(branch, valid=False, reasons=(NOT_REPEATED,), detail=words)
            found.append(replace(probe, branch=branch))
    return tuple(found)


def repeats_alike(
    probes: Sequence[Probe], oracle: OracleFactory, env: EnvSource
) -> tuple[bool, int]:
    """Run a sample of the branches again, with another oracle in another environment.

    Returns:
        Whether all came out the same (but for words and timings), and how many they were.
    """
    chosen = [probes[place] for place in spread(len(probes), _REPEATED)]
    again = run_branches([probe.walk.request(probe.t) for probe in chosen], oracle, env)
    alike = all(
        replace(one, detail="") == replace(probe.branch, detail="")
        for one, probe in zip(again, chosen, strict=True)
    )
    return alike, len(chosen)


def oracle_figures(
    probes: Sequence[Probe],
    from_reset: Sequence[Branch],
    timed: TimedOracle,
    repeated: tuple[bool, int],
) -> OracleFigures:
    """How the oracle does on its own.

    Args:
        from_reset: branches from the first states of tasks.
        timed: what was asked for `probes`, and nothing else.
        repeated: from `repeats_alike`.
    """
    placed = []
    for probe in probes:
        left = probe.branch.steps_left
        if left is None:
            left = probe.walk.snapshots[probe.t].steps_left
        if left:
            placed.append((probe, left))
    depths = [(probe.t / (probe.t + left), probe) for probe, left in placed]
    by_depth = [
        ShareBin(start, end, _share([probe for depth, probe in depths if start <= depth < end]))
        for start, end in pairwise(_DEPTHS)
    ]
    by_left = [
        ShareBin(start, end, _share([probe for probe, left in placed if start <= left <= end]))
        for start, end in doubling_bins([left for _, left in placed])
    ]
    lengths = [len(probe.branch.steps) for probe in probes if _won(probe.branch)]
    given = timed.statuses[PlanStatus.FOUND.value]
    refused = sum(
        bool({Reason.INADMISSIBLE, Reason.REFUSED} & set(probe.branch.reasons)) for probe in probes
    )
    return OracleFigures(
        from_reset=_counted(len(from_reset), sum(map(_won, from_reset))),
        by_depth=tuple(by_depth),
        by_steps_left=tuple(by_left),
        steps=Steps(sum(lengths) / len(lengths), float(np.quantile(lengths, 0.95)), max(lengths))
        if lengths
        else Steps(None, None, None),
        decision_us=_times(timed.decision_s),
        statuses=dict(sorted(timed.statuses.items())),
        inadmissible_share=refused / given if given else 0.0,
        timeouts=timed.statuses[PlanStatus.TIMEOUT.value],
        deterministic=repeated[0],
        repeated=repeated[1],
    )


def returns(probe: Probe, target: str) -> tuple[float, float]:
    """(the policy's, the oracle's) undiscounted return from the root; see `BankRow.returns`."""
    walk = probe.walk
    row = BankRow(probe.branch, walk.seen[probe.t], probe.own, "", "", 0, walk.rollout)
    return row.returns(target)


def gate_figures(
    probes: Sequence[Probe],
    *,
    episodes: int,
    failed: int,
    target: str = "success",
    return_scale: float = 1.0,
    seed: int = 0,
) -> GateFigures:
    """By how much the oracle beats the policy from `probes`, of which there is at least one.

    A root that could not be restored says nothing of the oracle, so the interval of the gap is
    taken over the others. An invalid branch has gap 0: it teaches nothing.

    Args:
        episodes: all that were played for the roots.
        failed: how many of them were not won.
        target: `success`, `score` or `reward`.
        return_scale: gap that opens the gate fully; the oracle succeeds if its return reaches it.
        seed: keys the draws behind the interval.
    """
    reasons: Counter[str] = Counter()
    invalid: Counter[str] = Counter()
    examples: dict[str, str] = {}
    gaps: list[float] = []
    compared: list[float] = []
    reached: list[bool] = []
    for probe in probes:
        own, other = returns(probe, target)
        gap = 0.0
        if not probe.branch.valid:
            reasons["invalid"] += 1
            invalid.update(set(probe.branch.reasons))
            for code in probe.branch.reasons:
                examples.setdefault(code, probe.branch.detail[:_LONGEST])
        elif not math.isfinite(other - own):
            reasons["invalid"] += 1
            invalid[Reason.NON_FINITE] += 1
        else:
            gap = other - own
            name = "active" if gap > 0 else "oracle_worse" if gap < 0 else "oracle_not_better"
            reasons[name] += 1
            reached.append(other >= return_scale)
        gaps.append(gap)
        if probe.branch.status is not BranchStatus.NOT_STARTED:
            compared.append(gap)
    gates = [min(max(gap / return_scale, 0.0), 1.0) for gap in gaps]
    interval = _interval(compared, return_scale, seed)
    return GateFigures(
        roots=len(probes),
        compared=len(compared),
        eligible_share=failed / episodes,
        by_reason={
            name: reasons[name]
            for name in ("invalid", "oracle_not_better", "oracle_worse", "active")
        },
        invalid_by_reason=dict(sorted(invalid.items())),
        invalid_examples=dict(sorted(examples.items())),
        mean_gate=math.fsum(gates) / len(gates),
        zero_share=sum(gate == 0 for gate in gates) / len(gates),
        gap=interval,
        gap_histogram=_histogram(gaps, return_scale),
        oracle_success=sum(reached) / len(reached) if reached else None,
    )


def _interval(gaps: Sequence[float], scale: float, seed: int) -> MeanInterval:
    """The bootstrap interval of the mean gap; where all gaps are equal, one that has a width.

    Samples of equal values are all alike, however few there are. As for a share of which nothing
    was seen (Wilson 1927), q = z^2/(n + z^2) of all roots may be otherwise: as good as the policy,
    or fully better; where the oracle is worse throughout, fully worse.
    """
    if not gaps:
        return MeanInterval(0.0, 0.0, 0.0)
    if min(gaps) < max(gaps):
        return MeanInterval(*bootstrap_mean(gaps, seed, purpose=BOOTSTRAP))
    gap, other = gaps[0], wilson(0, len(gaps))[1]
    least, most = 0.0 if gap >= 0 else min(gap, -scale), max(gap, scale)
    return MeanInterval(gap, gap + other * (least - gap), gap + other * (most - gap))


def _status(answer: Any) -> str:
    decision = answer[0] if isinstance(answer, tuple) and answer else None
    if isinstance(decision, Decision) and isinstance(decision.status, PlanStatus):
        return decision.status.value
    return "error"


def _won(branch: Branch) -> bool:
    return branch.valid and branch.success


def _share(probes: Sequence[Probe]) -> Share:
    return _counted(len(probes), sum(_won(probe.branch) for probe in probes))


def _counted(n: int, wins: int) -> Share:
    return Share(n, wins, wins / n if n else None, *wilson(wins, n))


def _times(seconds: Sequence[float]) -> DecisionTimes:
    if not seconds:
        return DecisionTimes(None, None, None, None)
    micro = np.asarray(seconds) * _MICRO
    p50, p95 = np.quantile(micro, [0.5, 0.95])
    return DecisionTimes(float(micro.mean()), float(p50), float(p95), float(micro.max()))


def _histogram(gaps: Sequence[float], scale: float) -> tuple[GapBin, ...]:
    """Bins of a tenth of `scale`, the middle one around 0; the outer ones reach to all the gaps."""
    borders = [(2 * k - 1) * scale / (2 * _GAP_BINS) for k in range(-_GAP_BINS, _GAP_BINS + 2)]
    borders[0] = min(borders[0], *gaps)
    borders[-1] = max(borders[-1], *gaps)
    counts, _ = np.histogram(gaps, borders)
    return tuple(
        GapBin(start, end, int(n))
        for (start, end), n in zip(pairwise(borders), counts, strict=True)
    )
