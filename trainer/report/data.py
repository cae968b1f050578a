"""What a report shows, as plain values. Nothing here knows HTML, files or torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.metrics import overflow_warning


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation: a fixed list of tasks, each played once.

    `by_type` maps a task type to (successes, tasks); `score` is the mean task score, if known.
    """

    label: str
    split: str
    by_type: Mapping[str, tuple[int, int]]
    score: float | None = None

    @property
    def successes(self) -> int:
        """Tasks solved, all types together."""
        return sum(won for won, _ in self.by_type.values())

    @property
    def tasks(self) -> int:
        """Tasks played, all types together."""
        return sum(n for _, n in self.by_type.values())

    @property
    def is_graded(self) -> bool:
        """Whether the score says more than the share of successes."""
        if self.score is None or not self.tasks:
            return False
        return abs(self.score - self.successes / self.tasks) > 1e-9


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an episode: what was seen, what was done.

    `weight` is the reach weight of a branch's step in [0, 1]; `None` for the student's own steps.
    """

    observation: str
    action: str
    command_valid: bool = True
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class BranchView:
    """What the oracle did from the chosen root, and how the step weights were made of it."""

    steps: Sequence[Step]
    success: bool
    gate: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A student's episode and the oracle's continuation from its step number `root`."""

    goal: str
    task_type: str
    steps: Sequence[Step]
    success: bool
    root: int
    branch: BranchView


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything on the page.

    Args:
        title: headline.
        lead: one paragraph saying what was run and what came out.
        facts: name/value pairs shown under the headline (model size, games, seed, ...).
        evaluations: in the order in which they happened; those of one split are compared.
        metrics: one mapping an iteration, as in `metrics.jsonl`.
        example: a trajectory with its branch, if any was recorded.
        provenance: versions, hashes and the resolved config, shown folded.
        idle: a line for each auxiliary objective that never trained anything.
        auxiliary: names of the auxiliary objectives, whose figures are shown.
        notes: a line for each kind of optimiser step that was left out.
        stop: how the run ended, in words.
    """

    title: str
    lead: str
    facts: Sequence[tuple[str, str]] = ()
    evaluations: Sequence[Evaluation] = ()
    metrics: Sequence[Mapping[str, Any]] = ()
    example: Example | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    idle: Sequence[str] = ()
    auxiliary: Sequence[str] = ()
    notes: Sequence[str] = ()
    stop: str = ""


def series(metrics: Sequence[Mapping[str, Any]], name: str) -> tuple[list[float], list[float]]:
    """Iterations (counted from 1) and values of one metric, leaving out where it has no value."""
    pairs = [
        (float(row.get("iteration", i)) + 1, float(row[name]))
        for i, row in enumerate(metrics)
        if isinstance(row.get(name), (int, float))
    ]
    return [x for x, _ in pairs], [y for _, y in pairs]


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "iteration"), counted(2, "iteration")
    ('1 iteration', '2 iterations')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


EVIDENCE = ("loss", "nll", "added_abs_mean", "u_mean", "act_loss", "gap_mean", "rows")
"""Figures of an auxiliary objective that are missing or 0 as long as it has nothing to train."""


_WANTED = {
    "format_only": ("format_valid_share", "no reply had the required form"),
    "expert_iteration": ("success_rate", "no rollout solved its task"),
}
"""What an objective learns from, by the rollouts' figure that says whether there is any."""


def _lacking(metrics: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """What the rollouts did not have, of what an objective learns from."""
    if all(row.get("turns") == 0 for row in metrics):
        return ["no turn was played"]
    figure, told = _WANTED.get(name, ("", ""))
    values = [row.get(figure) for row in metrics]
    return [f"{told} ({figure} 0)"] if figure and all(value == 0 for value in values) else []


def idle(metrics: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """A line for each of the auxiliary objectives `names` that trained nothing in any iteration.

    It says which of the objective's own figures were 0 throughout, why oracles were refused, and
    what the rollouts lacked.
    """
    lines = []
    for name in names if metrics else ():
        evidence = (f"loss/{name}", *(f"{name}/{key}" for key in EVIDENCE))
        if any(row.get(key) for row in metrics for key in evidence):
            continue
        keys = dict.fromkeys(key for row in metrics for key in row if key.startswith(f"{name}/"))
        values = {key: [row[key] for row in metrics if row.get(key) is not None] for key in keys}
        zero = [
            f"{key} 0"
            for key, found in values.items()
            if found and all(isinstance(value, (int, float)) and value == 0 for value in found)
        ]
        refused: Counter[str] = Counter()
        for reasons in values.get(f"{name}/invalid_reasons", ()):
            refused.update(reasons)
        why = ", ".join(
            [
                *zero[:4],
                *(f"{reason}: {n}" for reason, n in refused.most_common(3)),
                *_lacking(metrics, name),
            ]
        )
        line = f"{name} trained nothing in {counted(len(metrics), 'iteration')}"
        lines.append(f"{line}: {why}" if why else line)
    return lines


def step_notes(
    metrics: Sequence[Mapping[str, Any]], max_prompt_tokens: int | None = None
) -> list[str]:
    """A line for each kind of optimiser step that was left out, and of figure that was no number,
    and one where most rollouts had a prompt beyond `max_prompt_tokens`.

    Skipped and refused steps are totals of the run, the critic's of each iteration.
    """
    if not metrics:
        return []
    last = metrics[-1]
    taken, skipped, refused = (
        int(last.get(name) or 0) for name in ("optimizer_steps", "skipped_steps", "nonfinite_steps")
    )
    critic, figures = (
        sum(int(row.get(name) or 0) for row in metrics)
        for name in ("critic/nonfinite_steps", "nonfinite_figures")
    )
    of = f"of {counted(taken + skipped + refused, 'optimiser step')}"
    lines = (
        (skipped, f"{skipped} {of} had nothing to learn from and changed nothing"),
        (refused, f"{refused} {of} refused: the gradient was not finite"),
        (critic, f"{counted(critic, 'step')} of the critic refused: the gradient was not finite"),
        (figures, f"{counted(figures, 'figure')} of the log had no finite value and stand as null"),
    )
    shares, longest = (
        [row[key] for row in metrics if row.get(key) is not None]
        for key in ("context_overflow_share", "context_overflow_longest")
    )
    overflow = overflow_warning(
        sum(shares) / len(shares) if shares else None,
        max(longest, default=None),
        max_prompt_tokens,
        "rollouts",
    )
    told = [] if overflow is None else [f"WARNING: {overflow}"]
    return [*told, *(text for count, text in lines if count)]


def lost_groups(metrics: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """A line where the rollouts of each task all ended alike, so the base objective `name`, which
    compares them, could learn nothing of the tasks."""
    alike = (
        row.get("frac_degenerate_groups") == 1 and row.get("score_mean") == row.get("success_rate")
        for row in metrics
    )
    if not metrics or not all(alike):
        return []
    return [
        f"All rollouts of a task ended alike in {counted(len(metrics), 'iteration')} "
        f"(mixed_group_share 0): {name} had nothing of the tasks to learn. A policy that wins now "
        "and then does: warm it up longer, or begin with easier tasks"
    ]


def how_it_ended(done: int, iterations: int, stop: str | None = None) -> str:
    """How a run of `iterations` ended after `done`; `stop` as in `trainer.runs.status`.

    None, for a run of before that was recorded: by the numbers.

    >>> how_it_ended(60, 60, "finished")
    'finished, 60 iterations'
    >>> how_it_ended(12, 60, "early_stop")
    'stopped early after 12 of 60 iterations: no progress in evaluations'
    """
    part = f"{done} of {counted(iterations, 'iteration')}"
    if stop == "early_stop":
        return f"stopped early after {part}: no progress in evaluations"
    if stop == "nonfinite":
        return f"broken off after {part}: no gradient was finite any more"
    if stop == "interrupted":
        return f"interrupted after {part}"
    if stop == "failed":
        return f"broken off after {part}: an error, which its output has"
    if stop == "asked":
        return f"stopped after {part}, as asked"
    return f"finished, {counted(done, 'iteration')}" if done >= iterations else f"{part} so far"


_NO_PHASE = ("iteration", "tokens_per")


def phase_totals(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Wall seconds by phase, summed over the run, the longest first."""
    totals: dict[str, float] = {}
    for row in metrics:
        for name, value in row.items():
            phase = name[5:].removesuffix("_s")
            if not name.startswith("time/") or phase in _NO_PHASE or value is None:
                continue
            totals[phase] = totals.get(phase, 0.0) + float(value)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
