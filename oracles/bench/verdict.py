"""GO or NO-GO, and why, in sentences that name the figures and the thresholds."""

from __future__ import annotations

from oracles.bench.figures import Code, GateFigures, Overhead, RestoreFigures, Verdict

__all__ = ["FEWEST_ROOTS", "MOST_OVERHEAD", "verdict"]

MOST_OVERHEAD = 0.25
"""Share of an iteration that the oracle's part may take."""
FEWEST_ROOTS = 6
"""Fewer roots show nothing at a level of 95 %, not even if the oracle is better at each of them: by
the sign test that happens with chance 2 * 0.5^5 = 6 % where neither is better."""


def verdict(restore: RestoreFigures, gate: GateFigures, overhead: Overhead) -> Verdict:
    """GO needs three things: every restore exact, an oracle that is better, an overhead that pays.

    - Every root is exact; one that is not means that the oracle is asked about another state.
    - The lower end of the 95 % interval of the mean gap is above 0, over at least `FEWEST_ROOTS`
      roots. Where too few of enough roots could be restored, the oracle is not blamed.
    - The overhead is at most `MOST_OVERHEAD`. If not, restores or the oracle are named where they
      exceed that alone, and otherwise their sum.
    """
    failing: list[tuple[str, str]] = []
    holding: list[str] = []
    exact = f"{restore.exact} of {restore.roots} restored roots were exact"
    if restore.exact == restore.roots:
        holding.append(f"All {restore.roots} restored roots were exact; 100 % are needed.")
    else:
        first = restore.failures[0]
        failing.append(
            (
                Code.RESTORE_NOT_EXACT,
                f"{exact}, 100 % are needed; the first that was not is task {first.task_id!r} at "
                f"step {first.t}: {first.what}.",
            )
        )
    gap = gate.gap
    interval = (
        f"the mean gap is {gap.mean:.3f}, its {_percent(gap.level)} interval {gap.low:.3f} to "
        f"{gap.high:.3f} over {gate.compared} roots"
    )
    if gate.roots < FEWEST_ROOTS:
        failing.append(
            (
                Code.ORACLE_NOT_BETTER,
                f"The oracle is not shown to be better than the policy: {gate.roots} roots are too "
                f"few to show it, at least {FEWEST_ROOTS} are needed (--roots).",
            )
        )
    elif gate.compared < FEWEST_ROOTS and restore.exact < restore.roots:
        pass  # what could not be restored says nothing of the oracle
    elif gap.low > 0:
        holding.append(f"The oracle is better than the policy: {interval}; above 0 is needed.")
    else:
        counts = gate.by_reason
        failing.append(
            (
                Code.ORACLE_NOT_BETTER,
                f"The oracle is not shown to be better than the policy: {interval}, and the lower "
                f"end has to be above 0 ({counts['active']} roots better, "
                f"{counts['oracle_not_better']} as good, {counts['oracle_worse']} worse, "
                f"{counts['invalid']} invalid{_codes(gate)}).",
            )
        )
    failing += _too_slow(overhead)
    if overhead.overhead_share <= MOST_OVERHEAD:
        holding.append(
            f"The overhead is {_percent(overhead.overhead_share)} of an iteration of "
            f"{_seconds(overhead.iteration_s)} ({overhead.source}); at most "
            f"{_percent(MOST_OVERHEAD)} is allowed."
        )
    if failing:
        return Verdict(False, tuple(c for c, _ in failing), tuple(words for _, words in failing))
    return Verdict(True, (), tuple(holding))


def _too_slow(overhead: Overhead) -> list[tuple[str, str]]:
    if overhead.overhead_share <= MOST_OVERHEAD:
        return []
    rest = (
        f"of an iteration of {_seconds(overhead.iteration_s)} ({overhead.source}) with "
        f"{overhead.groups} roots; at most {_percent(MOST_OVERHEAD)} is allowed for everything."
    )
    named = [
        (code, f"{what} alone take {_percent(share)} {rest}")
        for code, what, share in (
            (Code.RESTORE_TOO_SLOW, "Restores", overhead.restore_share),
            (Code.ORACLE_TOO_SLOW, "The oracle's decisions", overhead.oracle_share),
        )
        if share > MOST_OVERHEAD
    ]
    model = "" if overhead.model_share is None else f", model {_percent(overhead.model_share)}"
    parts = (
        f"restores {_percent(overhead.restore_share)}, oracle {_percent(overhead.oracle_share)}, "
        f"environment {_percent(overhead.env_share)}{model}"
    )
    whole = f"The overhead is {_percent(overhead.overhead_share)} ({parts}) {rest}"
    return named or [(Code.OVERHEAD_TOO_HIGH, whole)]


def _codes(gate: GateFigures) -> str:
    codes = gate.invalid_by_reason
    return f": {', '.join(f'{code} {n}' for code, n in codes.items())}" if codes else ""


def _seconds(value: float) -> str:
    """Three digits, and whole seconds of long times.

    >>> _seconds(60.0), _seconds(14.2905), _seconds(3600.4)
    ('60 s', '14.3 s', '3600 s')
    """
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"


def _percent(share: float) -> str:
    """Three digits; what is too little to matter as such.

    >>> _percent(0.25), _percent(0.0000312), _percent(0.0)
    ('25 %', 'less than 0.1 %', '0 %')
    """
    return "less than 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.3g} %"
