"""Evaluates a run's policy as it would be deployed, a chat model, or one behind an address.

Nothing here, or in what it imports, needs `oracles`, snapshots or the privileged view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from trainer.baselines.episodes import TextEpisode, TextSettings, play_text
from trainer.baselines.react import ReActAgent
from trainer.baselines.reflexion import play_trials
from trainer.evaluation.evaluate import evaluate, measured
from trainer.evaluation.outcomes import Outcome
from trainer.evaluation.plan import METHODS, Plan
from trainer.evaluation.prepared import Prepared, Way, prepare, way_of
from trainer.evaluation.subjects import Subject, open_run

__all__ = ["METHODS", "Plan", "evaluate_run", "evaluate_subject", "play_prepared"]


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
        iteration: which checkpoint; None: the last.
        device: where to run; None: as the config says.
        splits, tasks, temperature, batch_size, data: see `Plan`.

    Returns:
        Result by split, as `trainer.evaluation.evaluate.evaluate` gives it, with the iteration.

    Raises:
        RunFolderError, CheckpointError, MissingData, ConfigError: name what is wrong.
    """
    plan = Plan(splits, tasks, temperature, batch_size=batch_size, data=data)
    subject = open_run(run, iteration, device)
    try:
        return evaluate_subject(subject, plan)
    finally:
        subject.close()


def evaluate_subject(subject: Subject, plan: Plan) -> dict[str, dict[str, Any]]:
    """Play the tasks of each split once, for each sampling seed.

    Returns:
        Result by split (see `trainer.evaluation.evaluate.measured`), with the iteration of a run.

    Raises:
        MissingData, ConfigError, ValueError, EndpointError: name what is wrong.
    """
    return play_prepared(prepare(subject, plan))


def play_prepared(
    ready: Prepared, on_split: Callable[[str, dict[str, Any]], None] | None = None
) -> dict[str, dict[str, Any]]:
    """As `evaluate_subject`, where everything was looked up already.

    Args:
        on_split: called with the result of each split before the next is played.
    """
    subject, plan, config = ready.subject, ready.plan, ready.config
    results: dict[str, dict[str, Any]] = {}
    for split, ids in ready.ids.items():
        size = min(config.eval.batch_size, len(ids) * len(ready.seeds))
        envs = [ready.env(split) for _ in range(size)]
        way = way_of(ready, split, envs[0])
        if way.student is not None:
            assert subject.sampler is not None
            result = evaluate(
                ids,
                envs,
                way.student,
                subject.sampler,
                split=split,
                max_new_tokens=config.rollout.max_new_tokens,
                temperature=config.eval.temperature,
                top_p=plan.top_p,
                seeds=ready.seeds,
                model=way.identity,
            )
        else:
            result = _in_text(ready, way, split, envs)
        if subject.iteration is not None:
            result["iteration"] = subject.iteration
        if plan.suite is not None:
            result["suite"] = plan.suite.name
        results[split] = result
        if on_split is not None:
            on_split(split, result)
    return results


def _in_text(
    ready: Prepared, way: Way, split: str, envs: list[gymnasium.Env[str, str]]
) -> dict[str, Any]:
    """A result of a method or a model that has no token ids."""
    plan, config, ids = ready.plan, ready.config, ready.ids[split]
    agent, model = way.agent, way.model
    assert agent is not None
    assert model is not None
    settings = TextSettings(config.rollout.max_new_tokens, config.eval.temperature, plan.top_p)
    passes: dict[int, list[Outcome]] = {}
    solved: dict[str, list[int]] = {}
    for seed in ready.seeds:
        if isinstance(agent, ReActAgent) and plan.method == "reflexion":
            trials = play_trials(ids, envs, agent, model, settings, plan.trials, seed)
            passes[seed] = [run.outcome for run in trials.last]
            solved[str(seed)] = list(trials.solved)
        else:
            played = play_text([TextEpisode(i, seed) for i in ids], envs, agent, model, settings)
            passes[seed] = [run.outcome for run in played]
    result = measured(
        passes,
        envs[0],
        split=split,
        prompt=way.prompt,
        decoding=ready.decoding,
        model=model.identity,  # with what a server said of itself
        method=plan.method,
        trials=plan.trials,
    )
    if plan.method == "reflexion":
        first = next(iter(solved.values()))
        result["attempts"] = {
            "allowed": plan.trials,
            "used": _mean([float(o.trials) for run in passes.values() for o in run]),
            "solved_by_trial": first,
            "solved_by_trial_and_seed": solved,
            "comparable_with_single_attempts": plan.trials == 1,
        }
    return result


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
