"""Evaluation dealt out over ranks: each task is played once, by one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import gymnasium

from trainer import rng
from trainer.evaluation.evaluate import check_tasks, decoding_of, measured, outcome_of
from trainer.evaluation.outcomes import Outcome
from trainer.generation.base import Sampler
from trainer.parallel.context import Group
from trainer.parallel.shard import part_of
from trainer.rollouts.rollout import Episode, PlaySettings, Student, play

__all__ = ["evaluate_shared"]


def evaluate_shared(
    task_ids: Sequence[str],
    envs: Sequence[gymnasium.Env[str, str]],
    student: Student,
    sampler: Sampler,
    group: Group,
    *,
    split: str,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    model: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """As `trainer.evaluation.evaluate.evaluate`, and with its result, on every rank.

    Draws are keyed by task, so who plays which changes nothing.
    """
    check_tasks(task_ids)
    greedy = temperature == 0.0
    settings = PlaySettings(
        max_new_tokens=max_new_tokens,
        temperature=1.0 if greedy else temperature,
        greedy=greedy,
    )
    mine = [
        Episode(task_id, task_id, f"{task_id}#eval", seed, task=task_id, purpose=rng.EVALUATE)
        for task_id in (task_ids[i] for i in part_of(len(task_ids), group.rank, group.world))
    ]
    played = play(mine, envs, student, sampler, settings)
    parts = group.gather([asdict(outcome_of(trajectory)) for trajectory in played])
    outcomes = [Outcome(**row) for part in parts for row in part]
    return measured(
        {seed: outcomes},
        envs[0],
        split=split,
        prompt={
            "prompt_template": student.template.name,
            "prompt_hash": student.template.hash,
            # A conversation shows everything.
            "history_length": None
            if student.context == "chat"
            else student.template.history_length,
            "context": student.context,
            "max_prompt_tokens": student.max_prompt_tokens,
        },
        decoding=decoding_of(max_new_tokens, temperature, 1.0, (seed,)),
        model=model,
    )
