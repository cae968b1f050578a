"""Runs of `sero demo`: the demonstration itself, and the comparison over seeds.

A comparison is a folder: `seed-S/ARM/` are run folders (see `trainer.runs.folder`). Calling it
again continues what was broken off and repeats nothing that is done.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from trainer.demo.recipe import HELD_OUT, Arm, DemoRecipe
from trainer.evaluation.compare import paired_difference
from trainer.evaluation.evaluate import check_comparable
from trainer.metrics import read_metrics
from trainer.report.run import read_evaluations
from trainer.runs.folder import RunFolder
from trainer.runs.info import write_json

Progress = Callable[[Mapping[tuple[int, Arm], int]], None]

PAIRS = (
    (Arm.SERO, Arm.GRPO),
    (Arm.SERO, Arm.GRPO_FORMAT),
    (Arm.SERO, Arm.FORMAT),
    (Arm.SERO, Arm.WARM),
    (Arm.GRPO, Arm.WARM),
    (Arm.GRPO_FORMAT, Arm.GRPO),
    (Arm.FORMAT, Arm.WARM),
)
"""Which arms are compared: the first minus the second."""


def run_arm(
    recipe: DemoRecipe, arm: Arm, seed: int, folder: Path, start: Path | None = None, **hooks: Any
) -> None:
    """Train and evaluate one arm in `folder`; continues a broken run, skips a finished one.

    `hooks` are passed on to `trainer.loop.train`.
    """
    from trainer.loop import train

    config = recipe.config(arm, seed, start)
    run = RunFolder(folder)
    if is_finished(run, config.run.iterations):
        return
    # Nothing is removed, since the folder may hold what is not ours. A run without a checkpoint
    # begins again where it began.
    train(config, folder, resume=run.info.exists(), **hooks)


def is_finished(run: RunFolder, iterations: int) -> bool:
    """Whether the evaluations after the last iteration are there."""
    return all(run.evaluation(iterations, split).exists() for split in HELD_OUT)


def compare(
    recipe: DemoRecipe, seeds: Sequence[int], out: Path, workers: int, progress: Progress
) -> dict[str, Any]:
    """Every arm of every seed; returns what is written to `out`/comparison.json.

    Args:
        recipe: what is trained; `recipe.held_out` tasks decide.
        seeds: one warm start and one run of each arm per seed.
        out: folder of the comparison.
        workers: processes, with one torch thread each.
        progress: called now and then with finished iterations by (seed, arm).

    Raises:
        SeroError: `out` holds a comparison with another recipe.
    """
    _claim(recipe, out)
    begin = time.monotonic()
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        warm = {
            pool.submit(run_arm, recipe, Arm.WARM, seed, folder_of(out, seed, Arm.WARM)): seed
            for seed in seeds
        }
        pending = set(warm)
        while pending:
            done, pending = wait(pending, timeout=2.0, return_when=FIRST_COMPLETED)
            for job in done:
                job.result()
                if job not in warm:
                    continue
                seed = warm[job]
                start = RunFolder(folder_of(out, seed, Arm.WARM)).initial
                pending |= {
                    pool.submit(run_arm, recipe, arm, seed, folder_of(out, seed, arm), start)
                    for arm in Arm
                    if arm is not Arm.WARM
                }
            progress({(seed, arm): _iterations(out, seed, arm) for seed in seeds for arm in Arm})
    result = summarise(recipe, seeds, out)
    result["minutes"] = (time.monotonic() - begin) / 60
    return result


def folder_of(out: Path, seed: int, arm: Arm) -> Path:
    """The run folder of one arm."""
    return out / f"seed-{seed}" / arm


def summarise(recipe: DemoRecipe, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """Success of every arm and seed, and the paired differences.

    The endpoint is the share of all held-out tasks solved after the last iteration, both splits
    together; it is fixed before the runs.

    Raises:
        Incomparable: two results were not measured on the same tasks and prompt.
    """
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in Arm}
    reference: dict[str, Mapping[str, Any]] = {}
    for arm in Arm:
        for seed in seeds:
            results = final_evaluations(folder_of(out, seed, arm))
            for result in results:
                check_comparable(reference.setdefault(result["split"], result), result)
            wins, n = sum(r["wins"] for r in results), sum(r["n"] for r in results)
            runs[arm].append(
                {
                    "seed": seed,
                    "success": wins / n,
                    "wins": wins,
                    "n": n,
                    **{r["split"]: r["success"] for r in results},
                    "invalid_format_share": _weighted(results, "invalid_format_share"),
                    "admissible_share": _weighted(results, "admissible_share"),
                }
            )
    outcome = {
        "seeds": list(seeds),
        "held_out": recipe.held_out,
        "recipe": _plain(recipe),
        "arms": runs,
        "mean_success": {arm: sum(run["success"] for run in runs[arm]) / len(seeds) for arm in Arm},
        "differences": [
            {
                "left": left,
                "right": right,
                "on": key,
                **paired_difference(
                    [run[key] for run in runs[left]], [run[key] for run in runs[right]]
                ).as_dict(),
            }
            for left, right in PAIRS
            for key in ("success", *HELD_OUT)
        ],
        "measured_on": {
            split: {
                key: result[key]
                for key in ("manifest_hash", "tasks_hash", "prompt_hash", "versions")
            }
            for split, result in reference.items()
        },
    }
    write_json(out / "comparison.json", outcome)
    return outcome


def final_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The results of a run's last evaluation, one a split."""
    results = read_evaluations(RunFolder(folder))
    last = max(result["iteration"] for result in results)
    return [result for result in results if result["iteration"] == last]


def _weighted(results: Sequence[Mapping[str, Any]], key: str) -> float | None:
    known = [(r[key], r["n"]) for r in results if r[key] is not None]
    return sum(value * n for value, n in known) / sum(n for _, n in known) if known else None


def _iterations(out: Path, seed: int, arm: Arm) -> int:
    path = RunFolder(folder_of(out, seed, arm)).metrics
    return len(read_metrics(path)) if path.exists() else 0


def _plain(recipe: DemoRecipe) -> dict[str, Any]:
    from dataclasses import asdict

    return dict(json.loads(json.dumps(asdict(recipe))))


def _claim(recipe: DemoRecipe, out: Path) -> None:
    """Record the recipe in a new folder; refuse a folder with another one."""
    from agent_envs.errors import SeroError

    out.mkdir(parents=True, exist_ok=True)
    path = out / "recipe.json"
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != _plain(recipe):
        raise SeroError(
            f"{path} was made with another recipe. Continue with that one, or choose another "
            "folder with --out."
        )
    write_json(path, _plain(recipe))
