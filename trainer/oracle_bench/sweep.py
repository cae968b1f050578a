"""Training with several weights of SERO from one checkpoint, evaluated on held-out tasks.

A sweep is a folder: `weight-W/seed-S/` are run folders (see `trainer.runs.folder`). Calling it
again continues what was broken off and repeats nothing that is done. Every arm starts from the same
policy and, for one seed, meets the same tasks; weight 0 is the base objective alone, without any
oracle.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.config import Config, ConfigError, SeroConfig
from trainer.evaluation.evaluate import check_comparable
from trainer.loop import train
from trainer.metrics import wilson
from trainer.oracle_bench.scale import WEIGHTS, base_config
from trainer.runs.checkpoint import latest_checkpoint, load_checkpoint
from trainer.runs.folder import RunFolder, RunFolderError

__all__ = ["ARM_WEIGHTS", "SweepRow", "arm_config", "arm_folder", "sweep"]

ARM_WEIGHTS = (0.0, *WEIGHTS)
OnIteration = Callable[[float, int, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """Success on a split after training with one weight: `n` episodes, of all seeds together.

    The interval is Wilson's, of 95 %. It takes the episodes for independent; those of one seed
    share a policy, so between seeds it is too narrow.
    """

    weight: float
    split: str
    n: int
    wins: int
    success: float
    low: float
    high: float


def sweep(
    run: Path,
    out: Path,
    *,
    section: SeroConfig,
    iterations: int,
    seeds: Sequence[int] = (0,),
    weights: Sequence[float] = ARM_WEIGHTS,
    split: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    on_iteration: OnIteration | None = None,
) -> dict[str, Any]:
    """Trains and evaluates every weight with every seed; returns plain data.

    Args:
        run: folder of the trained run whose last checkpoint is the start.
        out: folder of the sweep.
        section: SERO's settings, their weight apart.
        iterations: of each arm, at least 1.
        split: to train on; None: that of the run.
        overrides: dotted keys of the arms' configs, e.g. `eval.tasks`.
        on_iteration: called with weight, seed and the metrics of an iteration.

    Returns:
        `iterations`, `seeds`, `checkpoint` and `rows`, a `SweepRow` a weight and split.

    Raises:
        ConfigError: a setting makes no sense.
        RunFolderError: `run` is none, or `out` holds arms with other settings.
        CheckpointError: a checkpoint is missing or corrupt.
    """
    if iterations < 1 or not seeds or not weights:
        raise ConfigError(
            f"A sweep needs an iteration, a seed and a weight; found iterations={iterations}, "
            f"{len(seeds)} seeds, {len(weights)} weights."
        )
    start = load_checkpoint(latest_checkpoint(RunFolder(run).checkpoints))
    made_with = RunFolder(run).read_config()
    base = base_config(made_with, made_with.env.split if split is None else split).replace(
        **{
            "model.path": str(start.path.resolve()),
            "run.iterations": iterations,
            "run.save_turns": False,
            "eval.initial": False,
            "eval.every": 0,
            **(overrides or {}),
        }
    )
    rows: list[SweepRow] = []
    configs = {(w, s): arm_config(base, section, w, s) for w in weights for s in seeds}
    found: dict[float, list[dict[str, Any]]] = {}
    for (weight, seed), config in configs.items():

        def tell(metrics: Mapping[str, Any], weight: float = weight, seed: int = seed) -> None:
            if on_iteration is not None:
                on_iteration(weight, seed, metrics)

        results = _arm(config, arm_folder(out, weight, seed), tell)
        found.setdefault(weight, []).extend(results)
    reference: dict[str, dict[str, Any]] = {}
    for weight, results in found.items():
        for result in results:
            check_comparable(reference.setdefault(result["split"], result), result)
        rows.extend(_rows(weight, results))
    return {
        "iterations": iterations,
        "seeds": list(seeds),
        "checkpoint": f"{run.resolve().name}@{start.iteration}",
        "rows": [asdict(row) for row in rows],
    }


def arm_config(base: Config, section: SeroConfig, weight: float, seed: int) -> Config:
    """The config of one arm; weight 0 has no oracle.

    Args:
        base: without auxiliary objectives.
    """
    changes: dict[str, Any] = {"run.seed": seed}
    if weight != 0.0:
        changes["auxiliary.sero"] = asdict(section) | {"weight": weight}
    return base.replace(**changes)


def arm_folder(out: Path, weight: float, seed: int) -> Path:
    """The run folder of one arm."""
    return out / f"weight-{weight:g}" / f"seed-{seed}"


def _arm(
    config: Config, path: Path, on_iteration: Callable[[Mapping[str, Any]], None]
) -> list[dict[str, Any]]:
    """Trains what is left to train and returns the last evaluation, one a split."""
    folder = RunFolder(path)
    files = [folder.evaluation(config.run.iterations, split) for split in config.eval.splits]
    begun = folder.info.exists()
    if begun:
        _same(config, folder)
    if not (begun and all(file.exists() for file in files)):
        resume = folder.checkpoints.is_dir() and any(folder.checkpoints.iterdir())
        if begun and not resume:
            # Broken off before its first checkpoint: nothing to continue from.
            shutil.rmtree(path)
        train(config, path, resume=resume, on_iteration=on_iteration)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _same(config: Config, folder: RunFolder) -> None:
    free: dict[str, Any] = {"run.iterations": 1, "run.checkpoint_every": 0, "run.threads": 1}
    if folder.read_config().replace(**free) != config.replace(**free):
        raise RunFolderError(
            f"{folder.path} was trained with other settings or from another checkpoint. Continue "
            "with those, or choose another folder for the sweep."
        )


def _rows(weight: float, results: Sequence[Mapping[str, Any]]) -> Iterator[SweepRow]:
    for split in dict.fromkeys(result["split"] for result in results):
        of_split = [result for result in results if result["split"] == split]
        n, wins = sum(r["n"] for r in of_split), sum(r["wins"] for r in of_split)
        yield SweepRow(weight, split, n, wins, wins / n, *wilson(wins, n))
