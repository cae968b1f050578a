"""Evaluation: a fixed list of tasks, each played exactly once.

Promises (tests/trainer/test_evaluate.py):

1. Every task is played once; nothing is padded, repeated or left out.
2. The outcome of a task does not depend on the batch size or on the other tasks.
3. Nothing is needed that a deployed policy would not have: this module imports neither
   `oracles` nor anything of the auxiliary objectives, and never calls `snapshot` or
   `privileged`.
4. The result says what it was measured on: split, tasks, manifest hash, prompt hash, step cap,
   history length, prompt limit, options of the environment, decoding, engine and package
   versions. Results that differ in anything but the versions do not compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from agent_envs.errors import SeroError
from trainer import rng
from trainer.compare import paired_difference
from trainer.generation.base import Sampler
from trainer.metrics import mean_or_none, wilson
from trainer.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.runinfo import package_versions

__all__ = ["Incomparable", "check_comparable", "compare_outcomes", "evaluate", "summarise"]

FORMAT = 1
_MUST_AGREE = (
    "env_id",
    "split",
    "tasks_hash",
    "manifest_hash",
    "prompt_hash",
    "max_prompt_tokens",
    "max_steps",
    "env_options",
    "decoding",
)


class Incomparable(SeroError, ValueError):
    """Two evaluation results that were not measured on the same thing."""


def evaluate(
    task_ids: Sequence[str],
    envs: Sequence[gymnasium.Env[str, str]],
    student: Student,
    sampler: Sampler,
    *,
    split: str,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Plays every task once, `len(envs)` at a time, and summarises.

    Args:
        task_ids: distinct ids.
        temperature: 0 is greedy; otherwise draws are keyed by (seed, task).

    Raises:
        ValueError: a task id occurs twice.
    """
    if len(set(task_ids)) != len(task_ids):
        raise ValueError("A task id occurs twice; every task is evaluated exactly once.")
    greedy = temperature == 0.0
    settings = PlaySettings(
        max_new_tokens=max_new_tokens, temperature=1.0 if greedy else temperature, greedy=greedy
    )
    episodes = [
        Episode(task_id, task_id, f"{task_id}#eval", seed, task=task_id, purpose=rng.EVALUATE)
        for task_id in task_ids
    ]
    trajectories = play(episodes, envs, student, sampler, settings)
    return summarise(
        trajectories,
        student,
        split=split,
        max_steps=_max_steps(envs[0]),
        env_id=_env_id(envs[0]),
        env_options=_env_options(envs[0]),
        decoding={
            "greedy": greedy,
            "temperature": None if greedy else temperature,
            "max_new_tokens": max_new_tokens,
            "seed": None if greedy else seed,
        },
    )


def summarise(
    trajectories: Sequence[Trajectory],
    student: Student,
    *,
    split: str,
    max_steps: int | None,
    env_id: str,
    decoding: Mapping[str, Any],
    env_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The result of an evaluation as plain data."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    by_type: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_type.setdefault(trajectory.task_type, []).append(trajectory)
    groups = {
        name: {**_share(group), "score": mean_or_none(t.score for t in group)}
        for name, group in sorted(by_type.items())
    }
    ids = [trajectory.episode.task_id for trajectory in trajectories]
    provenance = dict(trajectories[0].provenance) if trajectories else {}
    return {
        "format": FORMAT,
        "env_id": env_id,
        "split": split,
        **_share(trajectories),
        "macro_success": mean_or_none(group["success"] for group in groups.values()),
        "by_task_type": groups,
        "score": mean_or_none(trajectory.score for trajectory in trajectories),
        "mean_steps": mean_or_none(len(trajectory.turns) for trajectory in trajectories),
        "admissible_share": mean_or_none(float(turn.command_valid) for turn in turns),
        "invalid_format_share": mean_or_none(float(not turn.format_valid) for turn in turns),
        "stop_reasons": _counts(trajectory.stop_reason for trajectory in trajectories),
        "tasks_hash": hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest(),
        "manifest_hash": provenance.get("manifest_hash"),
        "prompt_template": student.template.name,
        "prompt_hash": student.template.hash,
        "history_length": student.template.history_length,
        "max_prompt_tokens": student.max_prompt_tokens,
        "max_steps": max_steps,
        "env_options": dict(env_options or {}),
        "decoding": dict(decoding),
        "provenance": provenance,
        "versions": package_versions(),
        "tasks": [
            {
                "task_id": trajectory.episode.task_id,
                "task_type": trajectory.task_type,
                "success": trajectory.success,
                "score": trajectory.score,
                "steps": len(trajectory.turns),
                "stop_reason": trajectory.stop_reason,
            }
            for trajectory in trajectories
        ],
    }


def check_comparable(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Refuses two results that were measured on different tasks, prompts or settings.

    Raises:
        Incomparable: names every field that differs.
    """
    # Results from before there were options have none: nothing could be chosen then.
    left, right = ({"env_options": {}, **result} for result in (left, right))
    different = [key for key in _MUST_AGREE if left.get(key) != right.get(key)]
    if different:
        listing = "; ".join(f"{key}: {left.get(key)!r} and {right.get(key)!r}" for key in different)
        raise Incomparable(
            f"The results differ in {listing}. Evaluate both on the same tasks and prompt."
        )


def compare_outcomes(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """The success of two results on the tasks that both played, task by task.

    Each task is a pair: its outcome (1 solved, 0 not) in `later` minus that in `earlier`. The
    interval is Student's t over these pairs (`trainer.compare.paired_difference`), so what makes
    a task hard for both cancels out. It is about these policies on tasks like these; it knows
    nothing of other training seeds.

    Returns:
        `tasks` (pairs), `wins_before`, `wins` on them, `gained` and `lost` (solved by one only),
        `difference` of the shares with its 95 % interval `low`, `high`: `None` for fewer than two
        tasks, and where no task changed, since nothing then says how much they scatter.

    Raises:
        Incomparable: no task is in both, or a result lacks its list of tasks.
    """
    try:
        before, after = (
            {str(task["task_id"]): bool(task["success"]) for task in result["tasks"]}
            for result in (earlier, later)
        )
    except (KeyError, TypeError) as error:
        raise Incomparable(f"A result has no outcome of every task: {error!r}.") from error
    shared = [task for task in after if task in before]
    if not shared:
        raise Incomparable("The results have no task in common.")
    pairs = [(before[task], after[task]) for task in shared]
    difference = paired_difference([float(a) for _, a in pairs], [float(b) for b, _ in pairs])
    gained, lost = pairs.count((False, True)), pairs.count((True, False))
    changed = gained + lost > 0
    return {
        "tasks": len(pairs),
        "wins_before": sum(b for b, _ in pairs),
        "wins": sum(a for _, a in pairs),
        "gained": gained,
        "lost": lost,
        "difference": difference.mean,
        "low": difference.low if changed else None,
        "high": difference.high if changed else None,
    }


def _share(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    wins = sum(trajectory.success for trajectory in trajectories)
    n = len(trajectories)
    low, high = wilson(wins, n)
    return {
        "n": n,
        "wins": wins,
        "success": wins / n if n else None,
        "interval_95": [low, high],
    }


def _counts(values: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return dict(sorted(counts.items()))


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
