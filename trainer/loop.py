"""The training loop: start or resume a run, iterate, log, checkpoint, evaluate.

Promise (tests/trainer/test_resume.py): resuming is a continuation. 6 iterations equal 3, a resume,
and 3 more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.config import Config, resolve
from trainer.environments import TaskSet
from trainer.iteration import Trainer
from trainer.metrics import MetricsLog
from trainer.models.tiny import load_policy, save_policy
from trainer.resume import checkpoint_to_resume, cut_logs, set_aside
from trainer.run_folder import RunFolder, RunFolderError, dtype_of, usable_device
from trainer.runinfo import run_info, write_json
from trainer.worlds import check_splits, open_tasks

__all__ = ["TrainResult", "train"]

OnIteration = Callable[[Mapping[str, Any]], None]
OnWarmstart = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a call of `train` leaves behind.

    Attributes:
        iterations: finished so far, earlier calls included.
        metrics: of the iterations of this call.
        evaluations: last result of each split.
    """

    folder: RunFolder
    iterations: int
    metrics: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    until: int | None = None,
    on_iteration: OnIteration | None = None,
    on_warmstart: OnWarmstart | None = None,
) -> TrainResult:
    """Runs a config in the folder `out`.

    Args:
        resume: continue from the last checkpoint in `out`, as if there had been no break.
        resume_from: continue from the checkpoint after so many iterations; what the run has
            beyond it moves to `out`/aside. None: the last, if `resume`.
        until: stop (with a checkpoint) after so many iterations; None: `run.iterations`.
        on_iteration: called with each iteration's metrics.
        on_warmstart: called with (step, loss) of the warm start.

    Raises:
        ConfigError: this machine does not have `run.device`.
        MissingData: no data, or no task in `env.split` or a split of `eval.splits`.
        RunFolderError: `out` holds a run and `resume` is false, or another config's run.
        CheckpointError: a file of the checkpoint is missing or corrupt; names an earlier one that
            is intact.
    """
    folder = RunFolder(Path(out))
    usable_device(config.run.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.run.threads)
    try:
        if resume or resume_from is not None:
            trainer, start = _resumed(config, folder, resume_from)
        else:
            trainer, start = _started(config, folder, on_warmstart)
        results: dict[str, dict[str, Any]] = {}
        if start == 0 and config.eval.initial:
            results = trainer.evaluate(0)
        if start > 0 and _evaluation_due(config, start):
            results = _evaluated(trainer, start)
        last = config.run.iterations if until is None else min(until, config.run.iterations)
        log = MetricsLog(folder.metrics)
        metrics: list[dict[str, Any]] = []
        for iteration in range(start, last):
            metrics.append(trainer.iterate(iteration))
            log.write(metrics[-1])
            done = iteration + 1
            if done == last or _due(done, config.run.checkpoint_every):
                trainer.save(done)
            if _evaluation_due(config, done):
                results = trainer.evaluate(done)
            if on_iteration is not None:
                on_iteration(metrics[-1])
        return TrainResult(folder, max(start, last), metrics, results)
    finally:
        torch.set_num_threads(threads)


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _evaluation_due(config: Config, done: int) -> bool:
    return done == config.run.iterations or _due(done, config.eval.every)


def _evaluated(trainer: Trainer, iteration: int) -> dict[str, dict[str, Any]]:
    """The evaluation that belongs to a checkpoint; a run killed in between has yet to make it."""
    files = {s: trainer.folder.evaluation(iteration, s) for s in trainer.config.eval.splits}
    if not all(file.exists() for file in files.values()):
        return trainer.evaluate(iteration)
    return {split: json.loads(file.read_text("utf-8")) for split, file in files.items()}


def _started(
    config: Config, folder: RunFolder, on_warmstart: OnWarmstart | None
) -> tuple[Trainer, int]:
    """A new run in an empty folder."""
    if folder.info.exists():
        raise RunFolderError(
            f"{folder.path} already holds a run. Choose another folder, or resume it (--resume)."
        )
    task_set = open_tasks(config.env)
    check_splits(config, task_set)
    folder.path.mkdir(parents=True, exist_ok=True)
    if config.model.path is not None:
        model, tokenizer = load_policy(config.model.path)
    else:
        from trainer.warmstart import warm_policy

        model, tokenizer, report = warm_policy(config, task_set, on_warmstart)
        write_json(folder.path / "warmstart.json", report)
    save_policy(folder.initial, model, tokenizer)
    trainer = _trainer(config, folder, model, tokenizer, task_set)
    _, info = trainer.envs[0].reset(options={"task_id": trainer.task_ids[0]})
    write_json(
        folder.info,
        run_info(
            resolve(config),
            manifest_hash=task_set.manifest_hash,
            prompt_hash=trainer.student.template.hash,
            provenance=info["provenance"],
        ),
    )
    return trainer, 0


def _resumed(config: Config, folder: RunFolder, resume_from: int | None) -> tuple[Trainer, int]:
    """The run in `folder`, as a checkpoint (None: the last) left it."""
    free: dict[str, Any] = {"run.iterations": 0, "run.checkpoint_every": 0, "run.threads": 1}
    made_with, info = folder.read_info()
    if made_with.replace(**free) != config.replace(**free):
        raise RunFolderError(
            f"{folder.info} was made with another config; only {', '.join(free)} may change when "
            "a run is resumed. Use its config, or start a new folder."
        )
    checkpoint = checkpoint_to_resume(folder, resume_from)
    task_set = open_tasks(config.env)
    check_splits(config, task_set)
    model, tokenizer = load_policy(checkpoint.path)
    trainer = _trainer(config, folder, model, tokenizer, task_set)
    found = {
        "manifest_hash": task_set.manifest_hash,
        "prompt_hash": trainer.student.template.hash,
    }
    for key, value in found.items():
        if info.get(key) != value:
            raise RunFolderError(
                f"{folder.info} has {key} {info.get(key)!r}, found {value!r} in {task_set.source}. "
                "Resume with the data and the version that the run began with."
            )
    trainer.restore(checkpoint)
    if resume_from is not None:
        set_aside(folder, checkpoint.iteration)
    cut_logs(folder, checkpoint.iteration)
    return trainer, checkpoint.iteration


def _trainer(
    config: Config, folder: RunFolder, model: Any, tokenizer: Any, task_set: TaskSet
) -> Trainer:
    reference = None
    if config.objective.kl_coef > 0:
        reference = load_policy(folder.initial, dtype=dtype_of(config))[0].to(config.run.device)
        reference.requires_grad_(False)
    model = model.to(config.run.device)
    return Trainer(config, folder, model, tokenizer, task_set=task_set, reference=reference)
