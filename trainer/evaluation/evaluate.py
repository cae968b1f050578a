"""Evaluation: a fixed list of tasks, each played exactly once for each sampling seed.

Promises (tests/trainer/evaluation/test_evaluate.py):

1. Every task is played once a seed; nothing is padded, repeated or left out.
2. The outcome of a task does not depend on the batch size or on the other tasks.
3. Nothing is needed that a deployed policy would not have: this module imports neither
   `oracles` nor anything of the auxiliary objectives, and never calls `snapshot` or
   `privileged`.
4. The result says what it was measured on: split, tasks, manifest hash, prompt hash, step cap,
   history length, context, prompt limit, options of the environment, decoding, model, engine and
   package versions. Results that differ in what was measured do not compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from trainer import rng
from trainer.errors import ConfigError
from trainer.evaluation.agreement import Incomparable, check_comparable, compare_outcomes
from trainer.evaluation.outcomes import Outcome, figures, over_seeds, pooled, task_rows
from trainer.generation.base import Sampler
from trainer.rollouts.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.runs.info import package_versions

__all__ = [
    "Incomparable",
    "check_comparable",
    "check_tasks",
    "compare_outcomes",
    "decoding_of",
    "evaluate",
    "measured",
    "measured_on",
    "outcome_of",
    "prompt_of",
]

FORMAT = 2
"""1 had one sampling seed and no `model`, `engine`, `context`, `method` and `trials`."""


def evaluate(
    task_ids: Sequence[str],
    envs: Sequence[gymnasium.Env[str, str]],
    student: Student,
    sampler: Sampler,
    *,
    split: str,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    model: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Plays every task once a seed, `len(envs)` at a time, and summarises.

    Args:
        task_ids: distinct ids.
        temperature: 0 is greedy; otherwise draws are keyed by (seed, task, turn).
        top_p: nucleus to sample from; 1: everything.
        seed: the sampling seed, where there is one.
        seeds: several sampling seeds, each playing every task; None: `seed` alone.
        model: what is known of the weights, for the result.

    Raises:
        ValueError: a task id or a seed occurs twice, or greedy decoding with several seeds (the
            last two as `ConfigError`).
    """
    check_tasks(task_ids)
    used = (seed,) if seeds is None else tuple(seeds)
    decoding = decoding_of(max_new_tokens, temperature, top_p, used)
    greedy = temperature == 0.0
    settings = PlaySettings(
        max_new_tokens=max_new_tokens,
        temperature=1.0 if greedy else temperature,
        greedy=greedy,
        top_p=1.0 if greedy else top_p,
    )
    episodes = [
        Episode(task_id, task_id, f"{task_id}#eval", number, task=task_id, purpose=rng.EVALUATE)
        for number in used
        for task_id in task_ids
    ]
    trajectories = play(episodes, envs, student, sampler, settings)
    n = len(task_ids)
    passes = {
        number: [outcome_of(t) for t in trajectories[place * n : (place + 1) * n]]
        for place, number in enumerate(used)
    }
    return measured(
        passes,
        envs[0],
        split=split,
        prompt=prompt_of(student),
        decoding=decoding,
        model=model,
    )


def measured(
    passes: Mapping[int, Sequence[Outcome]],
    env: gymnasium.Env[str, str],
    *,
    split: str,
    prompt: Mapping[str, Any],
    decoding: Mapping[str, Any],
    model: Mapping[str, Any] | None,
    method: str = "plain",
    trials: int = 1,
) -> dict[str, Any]:
    """The result of an evaluation as plain data.

    Args:
        passes: by sampling seed, the outcome of every task, in the same order.
        prompt: template, hash, history length, context and prompt limit.
        trials: attempts at a task that were allowed.
    """
    several = len(passes) > 1
    first = next(iter(passes.values()), ())
    outcome_figures = pooled(passes) if several else figures(first)
    provenance = dict(first[0].provenance) if first else {}
    told = measured_on([outcome.task_id for outcome in first], env, provenance)
    return {
        "format": FORMAT,
        "env_id": told["env_id"],
        "split": split,
        "method": method,
        "trials": trials,
        **outcome_figures,
        "over_seeds": over_seeds(passes) if several else None,
        "tasks_hash": told["tasks_hash"],
        "manifest_hash": told["manifest_hash"],
        **prompt,
        "max_steps": told["max_steps"],
        "env_options": told["env_options"],
        "decoding": dict(decoding),
        "model": None if model is None else dict(model),
        "engine": {
            "engine": provenance.get("engine"),
            "engine_version": provenance.get("engine_version"),
        },
        "provenance": provenance,
        "versions": package_versions(),
        "tasks": task_rows(passes),
        "per_seed": {
            str(seed): {**figures(outcomes), "tasks": task_rows({seed: outcomes})}
            for seed, outcomes in passes.items()
        }
        if several
        else None,
    }


def measured_on(
    task_ids: Sequence[str], env: gymnasium.Env[str, str], provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """What a result says of its tasks and its environment; known before anything is played."""
    return {
        "env_id": _env_id(env),
        "tasks_hash": hashlib.sha256("\n".join(sorted(task_ids)).encode()).hexdigest(),
        "manifest_hash": provenance.get("manifest_hash"),
        "max_steps": _max_steps(env),
        "env_options": _env_options(env),
    }


def prompt_of(student: Student) -> dict[str, Any]:
    """What a result says of a policy's prompts."""
    chat = student.context == "chat"
    return {
        "prompt_template": student.template.name,
        "prompt_hash": student.template.hash,
        # A conversation shows everything.
        "history_length": None if chat else student.template.history_length,
        "context": student.context,
        "max_prompt_tokens": student.max_prompt_tokens,
    }


def decoding_of(
    max_new_tokens: int, temperature: float, top_p: float, seeds: Sequence[int]
) -> dict[str, Any]:
    """How replies are drawn, as a result states it: greedy has neither temperature nor seed.

    Raises:
        ConfigError: no seed, one twice, or several with greedy decoding.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds={list(seeds)} must be one or more different numbers.")
    greedy = temperature == 0.0
    if greedy and len(seeds) > 1:
        raise ConfigError(
            f"Greedy decoding gives the same replies for all of the {len(seeds)} seeds. Set a "
            "temperature above 0, or use one seed."
        )
    return {
        "greedy": greedy,
        "temperature": None if greedy else temperature,
        "top_p": None if greedy else top_p,
        "max_new_tokens": max_new_tokens,
        "seeds": None if greedy else list(seeds),
    }


def check_tasks(task_ids: Sequence[str]) -> None:
    """Raises `ValueError` where a task id occurs twice."""
    if len(set(task_ids)) != len(task_ids):
        raise ValueError("A task id occurs twice; every task is evaluated exactly once.")


def outcome_of(trajectory: Trajectory) -> Outcome:
    """What counts of a played episode."""
    malformed: dict[str, int] = {}
    for turn in trajectory.turns:
        if not turn.format_valid:
            reason = turn.parse_reason or "malformed"
            malformed[reason] = malformed.get(reason, 0) + 1
    return Outcome(
        task_id=trajectory.episode.task_id,
        task_type=trajectory.task_type,
        success=trajectory.success,
        score=trajectory.score,
        steps=len(trajectory.turns),
        stop_reason=trajectory.stop_reason,
        refused=sum(not turn.command_valid for turn in trajectory.turns),
        malformed=malformed,
        provenance=trajectory.provenance,
        overflow_tokens=trajectory.overflow_tokens,
    )


def _max_steps(env: gymnasium.Env[str, str]) -> int | None:
    unwrapped: Any = env.unwrapped
    steps: int | None = getattr(unwrapped, "max_steps", None)
    return steps


def _env_options(env: gymnasium.Env[str, str]) -> dict[str, Any]:
    """What the environment was made with, apart from its tasks, which the hashes stand for."""
    given = {} if env.spec is None else env.spec.kwargs
    apart = {"data", "split", "max_steps", "task_types", "task_ids", "render_mode"}
    return {
        name: value
        for name, value in sorted(given.items())
        if name not in apart and isinstance(value, str | int | float | bool)
    }


def _env_id(env: gymnasium.Env[str, str]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__
