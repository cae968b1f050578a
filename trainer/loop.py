"""The training loop: start or resume a run, iterate, log, checkpoint, evaluate.

Promise (tests/trainer/runs/test_resume.py): resuming is a continuation. 6 iterations equal 3, a
resume, and 3 more.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from agent_envs.errors import SeroError
from trainer.config import Config, resolve
from trainer.config.stopping import evaluation_due, evaluation_saves
from trainer.iteration import OnEvaluation, Trainer
from trainer.loggers.registry import RunLog, check_loggers, open_run_log
from trainer.models.lora import AdaptersOff, add_adapters
from trainer.models.packed_attention import use_packing
from trainer.models.tiny import load_policy, save_policy
from trainer.runs.checkpoint import checkpoint_numbers, keep_only
from trainer.runs.folder import RunFolder, RunFolderError, dtype_of, usable_device
from trainer.runs.info import run_info, write_json
from trainer.runs.lock import held, writable
from trainer.runs.needs import check_needs, check_policy
from trainer.runs.nonfinite import NonFiniteError, check_finite, finite_logits
from trainer.runs.resume import (
    changed_fields,
    checkpoint_to_resume,
    clear_strays,
    cut_logs,
    record_length,
    set_aside,
)
from trainer.runs.status import STATUS, Stop, best_checkpoint, stops_early, write_status
from trainer.worlds.environments import TaskSet
from trainer.worlds.tasks import check_splits, open_tasks

__all__ = ["NonFiniteError", "TrainResult", "train"]

OnIteration = Callable[[Mapping[str, Any]], None]
OnWarmstart = Callable[[int, float], None]
TrainerType = Callable[..., Trainer]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a call of `train` leaves behind.

    Attributes:
        iterations: finished so far, earlier calls included.
        metrics: of the iterations of this call.
        evaluations: last result of each split.
        stop: why it ended: `finished`, `early_stop`, or `asked` (`until`).
    """

    folder: RunFolder
    iterations: int
    metrics: list[dict[str, Any]]
    evaluations: dict[str, dict[str, Any]]
    stop: Stop = "finished"


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    until: int | None = None,
    on_iteration: OnIteration | None = None,
    on_warmstart: OnWarmstart | None = None,
    on_evaluation: OnEvaluation | None = None,
    trainer_type: TrainerType = Trainer,
) -> TrainResult:
    """Runs a config in the folder `out`.

    Args:
        resume: continue from the last checkpoint in `out`, as if there had been no break; from
            the start where it was killed before its first one.
        resume_from: continue from the checkpoint after so many iterations; what the run has
            beyond it moves to `out`/aside. None: the last, if `resume`.
        until: stop (with a checkpoint) after so many iterations; None: `run.iterations`.
        on_iteration: called with each iteration's metrics.
        on_warmstart: called with (step, loss) of the warm start.
        on_evaluation: called with (split, tasks) before a split is evaluated, and with
            (split, result) afterwards.
        trainer_type: makes the trainer; a rank's, where there are several processes.

    Raises:
        ConfigError: this machine does not have `run.device`.
        MissingData: no data, or no task in `env.split` or a split of `eval.splits`.
        RunFolderError: `out` holds a run and `resume` is false, or another config's run; it cannot
            be written; or another process trains there.
        CheckpointError: a file of the checkpoint is missing or corrupt; names an earlier one that
            is intact. Or one of the policy that the run began with is, where it is needed.
        NonFiniteError: `run.nonfinite_limit` optimiser steps in a row were refused, or weights or
            logits are not finite; names the last good checkpoint.
        KeyboardInterrupt: the caller was interrupted. Trackers are closed, `status.json` says so,
            and no process, thread or lock of the run is left. Likewise with any other error in an
            iteration or an evaluation: `status.json` says `failed`.
    """
    folder = RunFolder(Path(out))
    usable_device(config.run.device)
    check_loggers(config.log)
    check_needs(config, fresh=not resume and resume_from is None)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.run.threads)
    try:
        with writable(folder.path), ExitStack() as hold:
            _refuse_folders(folder)
            if resume or resume_from is not None:
                trainer, start = _resumed(config, folder, resume_from, trainer_type, hold)
            else:
                trainer, start = _started(config, folder, on_warmstart, trainer_type, hold)
            hold.callback(trainer.close)
            done = [start]
            # Marked at once, since closing may take longer than the process has left.
            with (
                _marked(folder, config, done),
                open_run_log(config, folder.path, folder.metrics, first=start) as log,
                _marked(folder, config, done),
                finite_logits(trainer, done),
            ):
                return _run(trainer, done, until, on_iteration, on_evaluation, log)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _marked(folder: RunFolder, config: Config, done: list[int]) -> Iterator[None]:
    """Says in `status.json` where an interrupt or an error ends the block."""
    try:
        yield
    except NonFiniteError:  # which has said so
        raise
    except BaseException as error:
        stop: Stop = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(OSError, SeroError):  # the error is what the caller has to see
            write_status(folder, config, stop, done[-1])
        raise


def _run(
    trainer: Trainer,
    counted: list[int],
    until: int | None,
    on_iteration: OnIteration | None,
    tell: OnEvaluation | None,
    log: RunLog,
) -> TrainResult:
    """Iterations until the run has its end; `counted` ends with how many are finished."""
    config, folder = trainer.config, trainer.folder
    start = counted[-1]
    results: dict[str, dict[str, Any]] = {}
    if evaluation_due(config, start):
        results = _evaluated(trainer, start, tell)
        if start == 0:  # else it stands there already
            log.evaluation(start, results)
    last = config.run.iterations if until is None else min(until, config.run.iterations)
    metrics: list[dict[str, Any]] = []
    done = start
    early = stops_early(folder, config, done)
    _keep(folder, config, done)
    write_status(folder, config, "running", done)
    while done < last and not early:
        metrics.append(log.iteration(trainer.iterate(done)))
        done += 1
        counted.append(done)
        check_finite(trainer, done)
        due = evaluation_due(config, done)
        saves = due and evaluation_saves(config)
        if done == last or _due(done, config.run.checkpoint_every) or saves:
            trainer.save(done)
        if due:
            results = trainer.evaluate(done, tell)
            log.evaluation(done, results)
            early = stops_early(folder, config, done)
        _keep(folder, config, done)
        write_status(folder, config, "running", done)
        if on_iteration is not None:
            on_iteration(metrics[-1])
    reason: Stop = (
        "early_stop" if early else "asked" if done < config.run.iterations else "finished"
    )
    write_status(folder, config, reason, done)
    return TrainResult(folder, done, metrics, results, reason)


def _due(done: int, every: int) -> bool:
    return every > 0 and done % every == 0


def _keep(folder: RunFolder, config: Config, done: int) -> None:
    """Removes the checkpoints that `run.keep` does not ask for."""
    numbers = checkpoint_numbers(folder.checkpoints)
    if config.run.keep == "all" or not numbers:
        return
    best = best_checkpoint(folder, config, done) if config.run.keep == "best+last" else None
    keep_only(folder.checkpoints, {numbers[0], *([] if best is None else [best.iteration])})


def _evaluated(
    trainer: Trainer, iteration: int, tell: OnEvaluation | None
) -> dict[str, dict[str, Any]]:
    """The evaluation at an iteration; made anew where a run was killed before it, or where a
    result was damaged since."""
    files = {s: trainer.folder.evaluation(iteration, s) for s in trainer.config.eval.splits}
    # With several processes each has copies of the same files, so all of them decide alike.
    try:
        found = {split: json.loads(file.read_text("utf-8")) for split, file in files.items()}
    except (FileNotFoundError, ValueError):
        return trainer.evaluate(iteration, tell)
    if all(isinstance(result, dict) and "success" in result for result in found.values()):
        return found
    return trainer.evaluate(iteration, tell)


def _started(
    config: Config,
    folder: RunFolder,
    on_warmstart: OnWarmstart | None,
    trainer_type: TrainerType,
    hold: ExitStack,
) -> tuple[Trainer, int]:
    """A new run in an empty folder; `hold` keeps other processes out of it."""
    _refuse_run(folder)
    task_set = open_tasks(config.env)
    check_splits(config, task_set)
    folder.path.mkdir(parents=True, exist_ok=True)
    hold.enter_context(held(folder.path))
    _refuse_run(folder)  # which another process may have made until now
    clear_strays(folder)
    if config.model.path is not None:
        model, tokenizer = load_policy(config.model.path)
        check_policy(config, task_set, model, tokenizer)
        if config.warmstart.given_model:
            from trainer.supervised.warmstart import warm_given

            model = model.to(config.run.device)
            report = warm_given(config, task_set, model, tokenizer, on_warmstart)
            write_json(folder.path / "warmstart.json", report)
    else:
        from trainer.supervised.warmstart import warm_policy

        ready = partial(check_policy, config, task_set)
        model, tokenizer, report = warm_policy(config, task_set, on_warmstart, ready)
        write_json(folder.path / "warmstart.json", report)
    save_policy(folder.initial, model, tokenizer, with_manifest=True)
    trainer = _trainer(config, folder, model, tokenizer, task_set, trainer_type)
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


def _refuse_folders(folder: RunFolder) -> None:
    """No hour is spent on a run whose figures have no place: a folder has the name of a file."""
    for path in (folder.info, folder.metrics, folder.roots, *map(folder.path.joinpath, _FILES)):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def _refuse_run(folder: RunFolder) -> None:
    if folder.info.exists():
        raise RunFolderError(
            f"{folder.path} already holds a run. Choose another folder, or resume it (--resume)."
        )


def _resumed(
    config: Config,
    folder: RunFolder,
    resume_from: int | None,
    trainer_type: TrainerType,
    hold: ExitStack,
) -> tuple[Trainer, int]:
    """The run in `folder`, as a checkpoint (None: the last) left it."""
    free = dict(_FREE)
    if config.auxiliary.sero is not None:
        # Where branches run changes no result.
        free |= {"auxiliary.sero.overlap": True, "auxiliary.sero.workers": 0}
    made_with, info = folder.read_info()
    before, now = made_with.replace(**free), config.replace(**free)
    if before != now:
        raise RunFolderError(
            f"{folder.info} was made with another config: {changed_fields(before, now)}. Only "
            f"{', '.join(free)} may change when a run is resumed. Use its config, or start a new "
            "folder."
        )
    hold.enter_context(held(folder.path))
    clear_strays(folder)
    # A run that was killed before its first checkpoint begins again where it began.
    fresh = resume_from is None and not checkpoint_numbers(folder.checkpoints)
    checkpoint = None if fresh else checkpoint_to_resume(folder, resume_from)
    task_set = open_tasks(config.env)
    check_splits(config, task_set)
    # A checkpoint's policy has its adapters merged: they go on beside the first weights.
    own = None if checkpoint is None or config.lora.rank else checkpoint.path
    model, tokenizer = load_policy(own or folder.initial, verified=own is not None)
    trainer = _trainer(config, folder, model, tokenizer, task_set, trainer_type)
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
    start = 0
    if checkpoint is not None:
        trainer.restore(checkpoint)
        start = checkpoint.iteration
    if resume_from is not None:
        set_aside(folder, start)
    cut_logs(folder, start)
    record_length(folder, info, made_with, config, start)
    return trainer, start


_FILES = (STATUS, "warmstart.json", "report.html")

_FREE: Mapping[str, Any] = MappingProxyType(
    {
        "run.iterations": 0,
        "run.checkpoint_every": 0,
        "run.threads": 1,
        "parallel.mode": "none",
        "parallel.timeout_s": 1800.0,
        "env.pool": "serial",
        "env.workers": 0,
        "sampler.max_batch_tokens": 16384,
        "run.keep": "all",
        "run.early_stop.patience": 0,
        "run.early_stop.metric": None,
        "run.early_stop.min_delta": 0.0,
        "log.to": (),
        "log.project": "sero",
        "log.run_name": None,
        "log.dir": None,
        "log.every": 1,
    }
)
"""What a resumed run may be told anew, with values under which the rest is compared."""


def _trainer(
    config: Config,
    folder: RunFolder,
    model: Any,
    tokenizer: Any,
    task_set: TaskSet,
    trainer_type: TrainerType,
) -> Trainer:
    reference: Any = None
    if config.lora.rank:
        model = add_adapters(model, config.lora)
    model = model.to(config.run.device)
    use_packing(model, config.optim.packing)  # refused here rather than after the rollouts
    if config.objective.kl_coef > 0 and config.lora.rank:
        reference = AdaptersOff(model)
    elif config.objective.kl_coef > 0:
        reference = load_policy(folder.initial, dtype=dtype_of(config))[0].to(config.run.device)
        reference.requires_grad_(False)
    return trainer_type(config, folder, model, tokenizer, task_set=task_set, reference=reference)
