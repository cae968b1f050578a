"""The figures that say whether an oracle is worth adopting, as values and as JSON.

All are frozen. `to_json` gives the one object that `sero bench oracle --json` prints: plain values,
floats as they were computed, None where a figure has no value. Nothing here measures anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from oracles.bank_format import PolicyEnd
from oracles.branch import Branch
from oracles.leak_audit import LeakFigures
from oracles.walks import Walk

__all__ = [
    "FORMAT",
    "GROUPS",
    "ROLLOUTS",
    "Code",
    "DecisionTimes",
    "DepthBin",
    "Extent",
    "GapBin",
    "GateFigures",
    "IterationCosts",
    "LeakFigures",
    "MeanInterval",
    "Measured",
    "OracleFigures",
    "Overhead",
    "Probe",
    "Quantiles",
    "RestoreFailure",
    "RestoreFigures",
    "Share",
    "ShareBin",
    "StepCosts",
    "Steps",
    "Verdict",
    "to_json",
]

FORMAT = 1
"""Version of the JSON object."""
GROUPS = 16
ROLLOUTS = 8
"""The iteration that costs are projected to: groups, each with one root, and rollouts in each."""


class Code:
    """Why the verdict is NO-GO."""

    RESTORE_NOT_EXACT = "restore_not_exact"
    ORACLE_NOT_BETTER = "oracle_not_better"
    RESTORE_TOO_SLOW = "restore_too_slow"
    ORACLE_TOO_SLOW = "oracle_too_slow"
    OVERHEAD_TOO_HIGH = "overhead_too_high"


@dataclass(frozen=True, slots=True)
class Probe:
    """One root: where it lies, what the oracle did from it, and what the policy did."""

    walk: Walk
    t: int
    """Commands of the policy before the root."""
    branch: Branch
    own: PolicyEnd


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of times, in microseconds."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class Extent:
    """Of sizes, in bytes."""

    mean: float
    max: int


@dataclass(frozen=True, slots=True)
class DepthBin:
    """Roots with ``start <= t <= end``; None where nothing could be measured."""

    start: int
    end: int
    roots: int
    snapshot_us: Quantiles | None
    restore_us: Quantiles | None
    bytes: Extent | None


@dataclass(frozen=True, slots=True)
class RestoreFailure:
    """The first difference between the record and what came of a restored root."""

    task_id: str
    t: int
    """Step of the root."""
    what: str
    """What differs, at which step, as recorded and as found."""


@dataclass(frozen=True, slots=True)
class RestoreFigures:
    """Is a restored state the visited one, and what does it cost?"""

    share: float
    """Of the roots that are exact."""
    roots: int
    exact: int
    suffixes_replayed: int
    """Roots from which the policy's own commands were run again, to a difference or to the end."""
    failures: tuple[RestoreFailure, ...]
    """The first ten."""
    by_depth: tuple[DepthBin, ...]
    restores_per_s: float
    """One after the other in one environment, when the tasks have been loaded once; 0: none
    succeeded."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its 95 % Wilson interval."""

    n: int
    wins: int
    share: float | None
    """None: `n` is 0."""
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ShareBin:
    """The share in one bin; which border is inside is said where the bins are."""

    start: float
    end: float
    share: Share


@dataclass(frozen=True, slots=True)
class Steps:
    """Commands of the branches that succeeded; None: none did."""

    mean: float | None
    p95: float | None
    max: int | None


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """Microseconds for one decision (`act`); None: none was made."""

    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class OracleFigures:
    """Does the oracle win, from where, how fast, and the same way twice?"""

    from_reset: Share
    """From the first state of tasks."""
    by_depth: tuple[ShareBin, ...]
    """From roots, by t/H: ``start <= t/H < end``."""
    by_steps_left: tuple[ShareBin, ...]
    """From roots, by H - t: ``start <= H - t <= end``."""
    steps: Steps
    decision_us: DecisionTimes
    statuses: Mapping[str, int]
    """How often the oracle answered with each `PlanStatus`; `error`: it raised, or answered with
    something else than a `Decision`."""
    inadmissible_share: float
    """Of the commands that it gave, those that were not admissible or that were refused."""
    timeouts: int
    """Answers with the status `timeout`."""
    deterministic: bool
    """Whether the repeated branches were the same, step for step."""
    repeated: int
    """Branches that were run a second time, by another oracle in another environment."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean with its percentile bootstrap interval; a Wilson bound where all values are equal."""

    mean: float
    low: float
    high: float
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class GapBin:
    """Roots whose gap lies in ``start <= gap < end``; the last bin holds its end as well."""

    start: float
    end: float
    n: int


@dataclass(frozen=True, slots=True)
class GateFigures:
    """By how much the oracle is better than the policy from the same roots.

    gap = G_O - G_pi, the difference of the undiscounted returns over the same remaining steps, and
    0 for an invalid branch; gate = clip(gap / return_scale, 0, 1).
    """

    roots: int
    compared: int
    """Roots that could be restored; the others say nothing of the oracle."""
    eligible_share: float
    """Failed episodes among all that were played."""
    by_reason: Mapping[str, int]
    """`invalid`, `oracle_not_better` (gap 0), `oracle_worse` (below 0), `active` (above)."""
    invalid_by_reason: Mapping[str, int]
    """Codes of `Branch.reasons`; a branch may have several."""
    invalid_examples: Mapping[str, str]
    """By code, the words of the first such branch; for people, may tell what is hidden."""
    mean_gate: float
    zero_share: float
    """Roots whose gate is 0."""
    gap: MeanInterval
    """Over the roots that were compared; all 0 where there are none."""
    gap_histogram: tuple[GapBin, ...]
    """Over all roots."""
    oracle_success: float | None
    """Share of the valid branches whose return reaches `return_scale`; None: none is valid."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Means for one root."""

    restore_s: float
    oracle_s: float
    env_s: float
    branch_steps: float


@dataclass(frozen=True, slots=True)
class IterationCosts:
    """What an iteration of training takes without the oracle, and what its rows add to it."""

    iteration_s: float
    """Rollouts of `GROUPS` x `ROLLOUTS` episodes and the update."""
    source: Literal["measured", "assumed"]
    model_s: float | None = None
    """Seconds that the model takes for the rows of `GROUPS` roots; None: there is no model."""
    token_share: float | None = None
    """Tokens of these rows by those of the iteration."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """The costs of `groups` roots as shares of `iteration_s`."""

    iteration_s: float
    source: Literal["measured", "assumed"]
    restore_share: float
    oracle_share: float
    env_share: float
    token_share: float | None
    """Tokens by tokens, not seconds, and no part of the sum."""
    model_share: float | None
    overhead_share: float
    """The sum of the shares of restores, oracle, environment and model."""
    groups: int = GROUPS
    rollouts: int = ROLLOUTS


@dataclass(frozen=True, slots=True)
class Verdict:
    """GO or NO-GO, and why."""

    go: bool
    codes: tuple[str, ...]
    """`Code`s of what fails; empty for GO."""
    reasons: tuple[str, ...]
    """Sentences: one for each code, in the same order; for GO one for each condition that holds."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that can be measured without a model."""

    probes: tuple[Probe, ...]
    episodes: int
    won: int
    restore: RestoreFigures
    oracle: OracleFigures
    gate: GateFigures
    cost: StepCosts
    target: str = "success"
    return_scale: float = 1.0
    seed: int = 0
    leaks: LeakFigures | None = None
    """None: there is no audit for this environment, or no branch that it can judge."""


def to_json(
    measured: Measured,
    overhead: Overhead,
    verdict: Verdict,
    *,
    env: str,
    policy: str,
    oracle: str,
    reach: Mapping[str, Any] | None = None,
    scale: Mapping[str, Any] | None = None,
    drift: Mapping[str, Any] | None = None,
    sweep: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole result as one JSON object.

    Args:
        env, policy, oracle: their names.
        reach, scale, drift, sweep: what a model adds, as JSON already; None: there is none. The
            key of `drift` is `format_drift`, for `format` is the version of the object.
    """
    gate = _plain(measured.gate)
    del gate["compared"]
    oracle_figures = _plain(measured.oracle)
    oracle_figures["from_reset"] = _share(measured.oracle.from_reset, "tasks")
    for name in ("by_depth", "by_steps_left"):
        bins: Sequence[ShareBin] = getattr(measured.oracle, name)
        oracle_figures[name] = [
            {"from": b.start, "to": b.end, **_share(b.share, "roots")} for b in bins
        ]
    cost = {**_plain(measured.cost), **_plain(overhead)}
    cost["iteration_from"] = cost.pop("source")
    return {
        "format": FORMAT,
        "env": env,
        "policy": policy,
        "oracle": oracle,
        "roots": len(measured.probes),
        "seed": measured.seed,
        "target": measured.target,
        "verdict": "GO" if verdict.go else "NO-GO",
        "reasons": list(verdict.reasons),
        "reason_codes": list(verdict.codes),
        "restore_fidelity": measured.restore.share,
        "oracle_success": measured.gate.oracle_success,
        "policy_success": measured.won / measured.episodes if measured.episodes else None,
        "gate_zero_share": measured.gate.zero_share,
        "mean_gate": measured.gate.mean_gate,
        "effective_depth": None if reach is None else reach.get("effective_depth"),
        "overhead_share": overhead.overhead_share,
        "restore": _plain(measured.restore),
        "oracle_figures": oracle_figures,
        "gate": gate,
        "cost": cost,
        "leaks": None if measured.leaks is None else _plain(measured.leaks),
        "reach": _plain(reach),
        "scale": _plain(scale),
        "format_drift": _plain(drift),
        "sweep": _plain(sweep),
    }


_RENAMED = {"start": "from", "end": "to"}


def _plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, sequences as lists; the rest as it is."""
    if is_dataclass(value):
        found = {f.name: getattr(value, f.name) for f in fields(value)}
        return {_RENAMED.get(name, name): _plain(item) for name, item in found.items()}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _share(share: Share, count: str) -> dict[str, Any]:
    found = _plain(share)
    return {count: found.pop("n"), **found}
