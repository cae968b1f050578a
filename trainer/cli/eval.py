"""Evaluate the policy of a run on held-out tasks, each played exactly once.

Writes one result file a split into the run's folder eval/later/, apart from those of training,
which the report and the comparison read; a file of the same checkpoint is replaced. With
`--against FILE` the result is compared with an earlier one, task by task: wins of each, and the
paired difference with its 95 % interval. Results that were measured on other tasks, prompts or
settings are refused (exit code 2) unless `--force`, which compares the tasks that both played.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from agent_envs.errors import SeroError
from trainer.cli.common import emit, mean_score, unset


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `sero eval`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as `sero train` or `sero demo` writes it."""
    split: Annotated[tuple[str, ...], unset()] = ()
    """Splits (default: those of the run's config)."""
    tasks: Annotated[int | None, unset("INT")] = None
    """Tasks a split, spread evenly over the sorted ids (default: the config's number, 0: all)."""
    iteration: Annotated[int | None, unset("INT")] = None
    """Checkpoint (default: the last)."""
    temperature: Annotated[float | None, unset("FLOAT")] = None
    """0: greedy (default: the config's)."""
    batch_size: Annotated[int | None, unset("INT")] = None
    """Episodes at a time; changes no outcome (default: the config's)."""
    data: Annotated[str | None, unset("DATA")] = None
    """Other games, or another shop, than those of the run."""
    device: Annotated[str | None, unset("DEVICE")] = None
    """Where to run (default: the config's run.device)."""
    against: Annotated[Path | None, unset("FILE")] = None
    """Earlier result file of the same split to compare with."""
    force: bool = False
    """Compare although the results were not measured on the same thing."""
    json: bool = False
    """Print the figures as one JSON object on the last line."""


def run(args: Args) -> int:
    """Evaluate, write, print; 0 once every task was played."""
    from trainer.evaluate import check_comparable, compare_outcomes
    from trainer.evaluate_run import evaluate_run
    from trainer.run_folder import RunFolder
    from trainer.runinfo import write_json

    earlier = _read(args.against) if args.against is not None else None
    if earlier is not None:
        splits = args.split or RunFolder(args.run).read_config().eval.splits
        if earlier["split"] not in splits:
            raise SeroError(
                f"--against {args.against} is of split {earlier['split']!r}, to be evaluated are "
                f"{', '.join(splits)}: nothing to compare."
            )
    results = evaluate_run(
        args.run,
        args.split or None,
        iteration=args.iteration,
        tasks=args.tasks,
        temperature=args.temperature,
        batch_size=args.batch_size,
        data=args.data,
        device=args.device,
    )
    figures: dict[str, Any] = {}
    for split, result in results.items():
        path = RunFolder(args.run).evaluation(result["iteration"], split)
        write_json(path.parent / "later" / path.name, result)
        figures[split] = {key: result[key] for key in _FIGURES}
        low, high = result["interval_95"]
        print(
            f"{split}: {result['wins']} of {result['n']} tasks, {result['success']:.1%} "
            f"(95 % interval {low:.1%} to {high:.1%}){mean_score(result)}"
        )
        for kind, group in result["by_task_type"].items():
            print(f"  {kind}: {group['wins']} of {group['n']}{mean_score(group)}")
        if earlier is not None and earlier["split"] == split:
            if not args.force:
                check_comparable(earlier, result)
            compared = compare_outcomes(earlier, result)
            figures[split]["against"] = {"file": str(args.against), **compared}
            print("\n".join(f"  {line}" for line in _compared(compared)))
    emit(figures, args.json)
    return 0


def _compared(c: Mapping[str, Any]) -> list[str]:
    if c["low"] is not None:
        interval = f"95 % interval {_points(c['low'])} to {_points(c['high'])} points"
    elif c["gained"] + c["lost"]:
        interval = "one task has no interval"
    else:
        interval = "no task changed, so there is no interval"
    return [
        f"on {c['tasks']} tasks before: {c['wins_before']}, now: {c['wins']} "
        f"({c['gained']} solved only now, {c['lost']} only before)",
        f"difference: {_points(c['difference'])} percentage points ({interval})",
    ]


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


_FIGURES = (
    "n",
    "wins",
    "success",
    "interval_95",
    "macro_success",
    "score",
    "mean_steps",
    "admissible_share",
    "invalid_format_share",
    "iteration",
    "tasks_hash",
    "manifest_hash",
    "prompt_hash",
)


def _read(path: Path) -> Mapping[str, Any]:
    from trainer.evaluate import compare_outcomes

    try:
        result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        result["split"], result["wins"], result["n"], result["success"]
        compare_outcomes(result, result)  # now, and not when all tasks have been played
    except OSError as error:
        raise SeroError(f"--against {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SeroError(f"--against {path} is no evaluation result: {error!r}.") from error
    return result
