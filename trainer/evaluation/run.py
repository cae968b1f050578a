"""Evaluates a run's policy as it would be deployed, a chat model, or one behind an address.

Nothing here, or in what it imports, needs `oracles`, snapshots or the privileged view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium

from agent_envs.prompting import get_template
from trainer.baselines.episodes import Agent, TextEpisode, TextSettings, play_text
from trainer.baselines.models import PolicyModel, ReplyModel
from trainer.baselines.plain import PlainAgent
from trainer.baselines.react import ReActAgent, check_exemplars
from trainer.baselines.reflexion import play_trials, reflexion_hash
from trainer.config import Config, ConfigError
from trainer.evaluation.evaluate import check_tasks, decoding_of, evaluate, measured
from trainer.evaluation.outcomes import Outcome
from trainer.evaluation.subjects import Subject, open_run
from trainer.evaluation.suites import Suite
from trainer.worlds.environments import ALFWORLD, environment_of
from trainer.worlds.tasks import make_env, open_tasks, split_tasks, spread

__all__ = ["METHODS", "Plan", "evaluate_run", "evaluate_subject"]

METHODS = ("plain", "react", "reflexion")
_TRANSCRIPT_TOKENS = 16_384
"""Prompt limit of ReAct and Reflexion, unless the model takes less."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to evaluate on, and how. None: as the subject's config says.

    Attributes:
        splits: which splits.
        tasks: how many tasks a split, spread evenly; 0: all.
        temperature: 0 is greedy.
        top_p: nucleus to sample from.
        seeds: how many sampling seeds, from the config's on; each plays every task.
        batch_size: episodes at a time; changes no outcome.
        data: another source of tasks.
        max_steps: commands in an episode.
        max_prompt_tokens: a longer prompt ends the episode.
        suite: a published set of tasks: all of them, under its step cap.
        method: `plain` (the training prompt), `react` or `reflexion`.
        trials: attempts at a task, with `reflexion`.
        list_commands: `react` and `reflexion` list the possible commands.
    """

    splits: Sequence[str] | None = None
    tasks: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    seeds: int = 1
    batch_size: int | None = None
    data: str | None = None
    max_steps: int | None = None
    max_prompt_tokens: int | None = None
    suite: Suite | None = None
    method: str = "plain"
    trials: int = 1
    list_commands: bool = False

    def check(self) -> None:
        """Raises `ConfigError` on values that cannot be meant."""
        if self.method not in METHODS:
            raise ConfigError(f"method={self.method!r} must be one of {', '.join(METHODS)}.")
        if self.trials < 1 or (self.trials > 1 and self.method != "reflexion"):
            raise ConfigError(
                f"trials={self.trials} must be at least 1, and more than 1 only with reflexion: "
                f"the method is {self.method}."
            )
        if self.list_commands and self.method == "plain":
            raise ConfigError("plain lists the commands anyway; list_commands is for react.")
        if self.seeds < 1 or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"seeds={self.seeds} must be at least 1, top_p={self.top_p} in (0, 1]."
            )
        for name in ("max_steps", "max_prompt_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1.")
        if self.suite is not None and (self.splits is not None or self.tasks is not None):
            raise ConfigError(
                f"The suite {self.suite.name} is all tasks of its splits. Leave split and tasks "
                "out, or the suite."
            )


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
    plan.check()
    config = _settled(subject.config, plan)
    seeds = tuple(config.eval.seed + i for i in range(plan.seeds))
    decoding = decoding_of(
        config.rollout.max_new_tokens, config.eval.temperature, plan.top_p, seeds
    )
    task_set = open_tasks(config.env)
    # Every split is looked up before the first is played.
    ids_of: dict[str, tuple[str, ...]] = {}
    for split in config.eval.splits:
        found = split_tasks(config.env, task_set, split)
        if plan.suite is not None:
            plan.suite.check(split, len(found), task_set.source)
        ids_of[split] = spread(found, config.eval.tasks)
        check_tasks(ids_of[split])
    results: dict[str, dict[str, Any]] = {}
    for split, ids in ids_of.items():
        size = min(config.eval.batch_size, len(ids) * len(seeds))
        envs = [make_env(config.env, task_set, split) for _ in range(size)]
        if plan.method == "plain" and subject.student is not None and subject.sampler is not None:
            student = subject.student
            if plan.max_prompt_tokens is not None:
                student = replace(student, max_prompt_tokens=plan.max_prompt_tokens)
            result = evaluate(
                ids,
                envs,
                student,
                subject.sampler,
                split=split,
                max_new_tokens=config.rollout.max_new_tokens,
                temperature=config.eval.temperature,
                top_p=plan.top_p,
                seeds=seeds,
                model=subject.identity,
            )
        else:
            if plan.method != "plain":
                check_exemplars(_world(config), ids, task_set.manifest_hash)
            result = _in_text(subject, plan, config, split, ids, envs, seeds, decoding)
        if subject.iteration is not None:
            result["iteration"] = subject.iteration
        if plan.suite is not None:
            result["suite"] = plan.suite.name
        results[split] = result
    return results


def _settled(config: Config, plan: Plan) -> Config:
    """The config with what the plan says instead."""
    e = config.eval
    splits, tasks, max_steps = plan.splits, plan.tasks, plan.max_steps
    if plan.suite is not None:
        if config.env.id != plan.suite.env_id:
            raise ConfigError(
                f"The suite {plan.suite.name} is of {plan.suite.env_id}, the policy plays "
                f"{config.env.id}."
            )
        splits, tasks = tuple(plan.suite.splits), 0
        max_steps = plan.suite.max_steps if max_steps is None else max_steps
    evaluation = replace(
        e,
        splits=e.splits if splits is None else tuple(splits),
        tasks=e.tasks if tasks is None else tasks or None,
        temperature=e.temperature if plan.temperature is None else plan.temperature,
        batch_size=e.batch_size if plan.batch_size is None else plan.batch_size,
    )
    evaluation.check()
    env = config.env
    if plan.suite is not None and plan.data is None and env.data == "generated":
        env = replace(env, data=None)  # a suite is of the published data, wherever they are found
    env = env if plan.data is None else replace(env, data=plan.data)
    env = env if max_steps is None else replace(env, max_steps=max_steps)
    env.check()
    return replace(config, eval=evaluation, env=env)


def _in_text(
    subject: Subject,
    plan: Plan,
    config: Config,
    split: str,
    ids: Sequence[str],
    envs: list[gymnasium.Env[str, str]],
    seeds: Sequence[int],
    decoding: dict[str, Any],
) -> dict[str, Any]:
    """A result of a method or a model that has no token ids."""
    model, limit = _model(subject, plan, config)
    settings = TextSettings(config.rollout.max_new_tokens, config.eval.temperature, plan.top_p)
    agent: Agent
    if plan.method == "plain":
        if config.prompt.context == "chat":
            raise ConfigError(
                "prompt.context=chat is made of token ids, and this model is asked in text. Use "
                "prompt.context=window in the config, or evaluate a model's folder."
            )
        agent = PlainAgent(
            get_template(
                config.prompt.template,
                history_length=config.prompt.history_length,
                pages=environment_of(config.env.id).pages,
                layout=config.prompt.layout,
            )
        )
    else:
        _, info = envs[0].reset(options={"task_id": ids[0]})
        generation = str(info["provenance"].get("generation", "move"))
        agent = ReActAgent(_world(config), plan.list_commands, generation)
    passes: dict[int, list[Outcome]] = {}
    solved: dict[str, list[int]] = {}
    for seed in seeds:
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
        prompt={
            "prompt_template": plan.method if plan.method != "plain" else agent.name,
            "prompt_hash": reflexion_hash(agent)
            if isinstance(agent, ReActAgent) and plan.method == "reflexion"
            else agent.hash,
            "history_length": agent.history_length,
            "context": agent.context,
            "max_prompt_tokens": limit,
        },
        decoding=decoding,
        model=model.identity,
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


def _model(subject: Subject, plan: Plan, config: Config) -> tuple[ReplyModel, int | None]:
    """What answers, and the prompt limit that it is held to."""
    if subject.model is not None:
        return subject.model, None
    assert subject.student is not None
    assert subject.sampler is not None
    limit = plan.max_prompt_tokens or (
        config.prompt.max_prompt_tokens if plan.method == "plain" else _TRANSCRIPT_TOKENS
    )
    positions = getattr(getattr(subject.weights, "config", None), "max_position_embeddings", None)
    if isinstance(positions, int):
        limit = min(limit, max(1, positions - config.rollout.max_new_tokens))
    student = replace(subject.student, max_prompt_tokens=limit)
    return PolicyModel(student, subject.sampler, subject.identity), limit


def _world(config: Config) -> str:
    if config.env.id == ALFWORLD:
        return "alfworld"
    if environment_of(config.env.id).pages == "webshop":
        return "webshop"
    raise ConfigError(
        f"ReAct and Reflexion have worked examples for ALFWorld and WebShop, not for "
        f"{config.env.id}. Use --method plain."
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
