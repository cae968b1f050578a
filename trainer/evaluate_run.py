"""Evaluates a run's policy as it would be deployed.

Nothing here, or in what it imports, needs `oracles`, snapshots or the privileged view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trainer.evaluate import evaluate
from trainer.generation.hf import HFSampler
from trainer.run_folder import load_trained, make_student
from trainer.worlds import make_env, open_tasks, split_tasks, spread


def evaluate_run(
    run: Path,
    splits: Sequence[str] | None = None,
    *,
    iteration: int | None = None,
    tasks: int | None = None,
    temperature: float | None = None,
    batch_size: int | None = None,
    data: str | None = None,
    device: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Play the tasks of each split once with the policy of a checkpoint.

    Args:
        run: the run folder.
        splits: which splits; None: those of the run's config.
        iteration: which checkpoint; None: the last.
        tasks: how many tasks a split, spread evenly; None: as the config says, 0: all.
        temperature: 0 is greedy; None: as the config says.
        batch_size: episodes at a time (changes no outcome); None: as the config says.
        data: another source of tasks than that of the run.
        device: where to run; None: as the config says.

    Returns:
        Result by split, as `trainer.evaluate.evaluate` gives it, with the iteration.

    Raises:
        RunFolderError, CheckpointError, MissingData, ConfigError: name what is wrong.
    """
    config, model, tokenizer, done = load_trained(run, iteration, device)
    settings = replace(
        config.eval,
        splits=config.eval.splits if splits is None else tuple(splits),
        tasks=config.eval.tasks if tasks is None else tasks or None,
        temperature=config.eval.temperature if temperature is None else temperature,
        batch_size=config.eval.batch_size if batch_size is None else batch_size,
    )
    settings.check()
    torch.set_num_threads(config.run.threads)
    env_config = config.env if data is None else replace(config.env, data=data)
    task_set = open_tasks(env_config)
    # Every split is looked up before the first is played.
    ids_of = {
        split: spread(split_tasks(env_config, task_set, split), settings.tasks)
        for split in settings.splits
    }
    student = make_student(config, model, tokenizer)
    sampler = HFSampler(model, student.stop_ids, pad_id=student.pad_id)
    results = {}
    for split, ids in ids_of.items():
        size = min(settings.batch_size, len(ids))
        results[split] = evaluate(
            ids,
            [make_env(env_config, task_set, split) for _ in range(size)],
            student,
            sampler,
            split=split,
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=settings.temperature,
            seed=settings.seed,
        ) | {"iteration": done}
    return results
