"""Reads a run folder into what a report shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.metrics import read_metrics, wilson
from trainer.report.data import (
    BranchView,
    Evaluation,
    Example,
    ReportData,
    Step,
    how_it_ended,
    idle,
    lost_groups,
    step_notes,
)
from trainer.runs.checkpoint import CheckpointError
from trainer.runs.folder import RunFolder, RunFolderError
from trainer.runs.status import read_status

_MOST_STEPS = 12


def evaluation_of(result: Mapping[str, Any], label: str) -> Evaluation:
    """An evaluation result (see `trainer.evaluation.evaluate`) as the report shows it."""
    groups = {kind: (g["wins"], g["n"]) for kind, g in result["by_task_type"].items()}
    for wins, n in groups.values():
        wilson(wins, n)  # raises where these are no counts
    score = result.get("score")
    return Evaluation(label, result["split"], groups, None if score is None else float(score))


def read_evaluations(folder: RunFolder) -> list[dict[str, Any]]:
    """All evaluation results of a run, the earliest first.

    Raises:
        RunFolderError: one cannot be read, or is no result; names the file.
    """
    files = sorted((folder.path / "eval").glob("*.json"))
    return [_read_evaluation(file) for file in files]


def _read_evaluation(file: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        evaluation_of(result, "")
        int(result["iteration"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{file} cannot be read as an evaluation result: {error!r}. Restore it, or move it "
            "away: the report is of those that are left."
        ) from error
    return result


def example_of(roots: Iterable[Mapping[str, Any]]) -> Example | None:
    """The most telling of the recorded roots: open gate, oracle wins, short enough to read.

    Among those the latest, since early episodes are mostly noise; `None` if there is none.
    """
    shown = [
        root for root in roots if root.get("branch_steps") and root["success"] and root["gate"] > 0
    ]
    if not shown:
        return None
    short = [root for root in shown if 3 <= len(root["branch_steps"]) <= _MOST_STEPS]
    root = (short or shown)[-1]
    branch = [
        Step(observation, action, valid, weight)
        for (observation, action, valid), weight in zip(
            root["branch_steps"], root["weights"], strict=True
        )
    ]
    return Example(
        goal=root["goal"],
        task_type=root["task_type"],
        steps=[Step(*step) for step in root["student_steps"]],
        success=root["student_success"],
        root=root["root"],
        branch=BranchView(branch, root["success"], root["gate"]),
    )


def read_run(
    path: Path,
    *,
    title: str,
    lead: str,
    facts: Sequence[tuple[str, str]] = (),
    before: str = "start",
    after: str = "trained",
) -> ReportData:
    """The report of one run.

    Args:
        path: the run folder.
        title, lead, facts: as in `ReportData`.
        before, after: labels of the evaluations at iteration 0 and of later ones; with several
            later ones their iteration is named.

    Raises:
        RunFolderError: not a run, or a file in it cannot be read.
    """
    folder = RunFolder(path)
    config = folder.read_config()
    try:
        results = read_evaluations(folder)
        metrics = read_metrics(folder.metrics) if folder.metrics.exists() else []
        roots = read_metrics(folder.roots) if folder.roots.exists() else []
        info = json.loads(folder.info.read_text(encoding="utf-8"))
        later = {result["iteration"] for result in results if result["iteration"]}
        compares = config.base_active and config.objective.needs_groups
        return ReportData(
            title=title,
            lead=lead,
            facts=facts,
            evaluations=[
                evaluation_of(
                    result,
                    before
                    if not result["iteration"]
                    else after
                    if len(later) == 1
                    else f"{after}, iteration {result['iteration']}",
                )
                for result in results
            ],
            metrics=metrics,
            example=example_of(roots),
            provenance=info,
            # With weight 0 an objective is there to measure.
            idle=idle(metrics, [n for n, s in config.auxiliary.active() if s.weight > 0]),
            auxiliary=[name for name, _ in config.auxiliary.active()],
            notes=[
                *step_notes(metrics, config.prompt.max_prompt_tokens),
                *(lost_groups(metrics, config.objective.name) if compares else ()),
            ],
            stop=how_it_ended(
                metrics[-1]["iteration"] + 1 if metrics else 0,
                config.run.iterations,
                (read_status(folder) or {}).get("stop"),
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, CheckpointError) as error:
        raise RunFolderError(f"A file of the run {path} cannot be read: {error!r}.") from error
