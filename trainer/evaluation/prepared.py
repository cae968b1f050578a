"""What an evaluation is going to measure, before anything is played.

`prepare` looks up the tasks of every split, `way_of` makes the prompts' side, and `expected` says
what the result will hold about both: enough to name its file, and to refuse a comparison that it
could not stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import gymnasium

from agent_envs.prompting import get_template
from trainer.baselines.episodes import Agent
from trainer.baselines.models import PolicyModel, ReplyModel
from trainer.baselines.plain import PlainAgent
from trainer.baselines.react import ReActAgent, check_exemplars
from trainer.baselines.reflexion import reflexion_hash
from trainer.config import Config, ConfigError
from trainer.evaluation.evaluate import check_tasks, decoding_of, measured_on, prompt_of
from trainer.evaluation.plan import Plan
from trainer.evaluation.subjects import Subject
from trainer.rollouts.rollout import Student
from trainer.runs.preflight import check_places, places_of
from trainer.worlds.environments import ALFWORLD, TaskSet, environment_of
from trainer.worlds.tasks import make_env, open_tasks, split_tasks, spread

__all__ = ["Prepared", "Way", "expected", "prepare", "way_of"]

_TRANSCRIPT_TOKENS = 16_384
"""Prompt limit of ReAct and Reflexion, unless the model takes less."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An evaluation that only has to be played.

    Attributes:
        config: of the subject, with what the plan says instead.
        decoding: how replies are drawn, as a result states it.
        ids: the tasks of each split.
    """

    subject: Subject
    plan: Plan
    config: Config
    seeds: tuple[int, ...]
    decoding: Mapping[str, Any]
    task_set: TaskSet
    ids: Mapping[str, tuple[str, ...]]

    def env(self, split: str) -> gymnasium.Env[str, str]:
        """A new environment over the tasks of a split."""
        return make_env(self.config.env, self.task_set, split)


@dataclass(frozen=True, slots=True)
class Way:
    """How replies are asked for: of a policy by token ids, or of a model in text.

    Attributes:
        prompt: template, hash, history length, context and prompt limit, for the result.
        student: None: in text, by `agent` from `model`.
        identity: what is known of the weights.
    """

    prompt: Mapping[str, Any]
    identity: Mapping[str, Any]
    student: Student | None = None
    agent: Agent | None = None
    model: ReplyModel | None = None


def prepare(subject: Subject, plan: Plan) -> Prepared:
    """Settles what is played; every split is looked up before the first is played.

    Raises:
        MissingData, ConfigError, ValueError: name what is wrong.
    """
    plan.check()
    config = plan.settled(subject.config)
    seeds = tuple(config.eval.seed + i for i in range(plan.seeds))
    decoding = decoding_of(
        config.rollout.max_new_tokens, config.eval.temperature, plan.top_p, seeds
    )
    task_set = open_tasks(config.env, "--data")
    ids: dict[str, tuple[str, ...]] = {}
    for split in config.eval.splits:
        found = split_tasks(config.env, task_set, split)
        if plan.suite is not None:
            plan.suite.check(split, len(found), task_set.source)
        ids[split] = spread(found, config.eval.tasks)
        check_tasks(ids[split])
        if plan.method != "plain":
            check_exemplars(_world(config), ids[split], task_set.manifest_hash)
    return Prepared(subject, plan, config, seeds, decoding, task_set, ids)


def way_of(ready: Prepared, split: str, env: gymnasium.Env[str, str]) -> Way:
    """How the tasks of a split are asked; `env` is reset where that depends on the games.

    Raises:
        ConfigError: the method does not go with the environment or the model.
    """
    subject, plan, config = ready.subject, ready.plan, ready.config
    if plan.method == "plain" and subject.student is not None and subject.sampler is not None:
        student, asked = subject.student, plan.max_prompt_tokens
        if asked is None:
            asked = _held(student.max_prompt_tokens, subject, config)
        else:
            check_places(subject.weights, asked, config.rollout.max_new_tokens)
        student = replace(student, max_prompt_tokens=asked)
        return Way(prompt_of(student), subject.identity, student)
    agent = _agent(plan, config, ready.ids[split][0], env)
    model, limit = _model(subject, plan, config)
    name, digest = plan.method, agent.hash
    if plan.method == "plain":
        name = agent.name
    elif plan.method == "reflexion":
        assert isinstance(agent, ReActAgent)
        digest = reflexion_hash(agent)
    prompt = {
        "prompt_template": name,
        "prompt_hash": digest,
        "history_length": agent.history_length,
        "context": agent.context,
        "max_prompt_tokens": limit,
    }
    return Way(prompt, model.identity, agent=agent, model=model)


def expected(ready: Prepared, split: str) -> dict[str, Any]:
    """What the result of a split will say it was measured on, with `n` and the ids of `tasks`."""
    ids = ready.ids[split]
    with closing(ready.env(split)) as env:
        way = way_of(ready, split, env)
        _, info = env.reset(options={"task_id": ids[0]})
        told = measured_on(ids, env, info["provenance"])
    return {
        "split": split,
        "n": len(ids),
        "tasks": [{"task_id": task_id} for task_id in ids],
        "method": ready.plan.method,
        "trials": ready.plan.trials,
        "decoding": dict(ready.decoding),
        "model": dict(way.identity),
        **way.prompt,
        **told,
    }


def _agent(plan: Plan, config: Config, first: str, env: gymnasium.Env[str, str]) -> Agent:
    if plan.method == "plain":
        if config.prompt.context == "chat":
            raise ConfigError(
                "prompt.context=chat is made of token ids, and this model is asked in text. Use "
                "prompt.context=window in the config, or evaluate a model's folder."
            )
        return PlainAgent(
            get_template(
                config.prompt.template,
                history_length=config.prompt.history_length,
                pages=environment_of(config.env.id).pages,
                layout=config.prompt.layout,
            )
        )
    _, info = env.reset(options={"task_id": first})
    generation = str(info["provenance"].get("generation", "move"))
    return ReActAgent(_world(config), plan.list_commands, generation)


def _model(subject: Subject, plan: Plan, config: Config) -> tuple[ReplyModel, int | None]:
    """What answers, and the prompt limit that it is held to."""
    if subject.model is not None:
        return subject.model, None
    assert subject.student is not None
    assert subject.sampler is not None
    limit = plan.max_prompt_tokens or (
        config.prompt.max_prompt_tokens if plan.method == "plain" else _TRANSCRIPT_TOKENS
    )
    limit = _held(limit, subject, config)
    student = replace(subject.student, max_prompt_tokens=limit)
    return PolicyModel(student, subject.sampler, subject.identity), limit


def _held(limit: int, subject: Subject, config: Config) -> int:
    """A prompt limit, or the largest below it that the model has places for."""
    places = places_of(subject.weights)
    return limit if places is None else min(limit, max(1, places - config.rollout.max_new_tokens))


def _world(config: Config) -> str:
    if config.env.id == ALFWORLD:
        return "alfworld"
    if environment_of(config.env.id).pages == "webshop":
        return "webshop"
    raise ConfigError(
        f"ReAct and Reflexion have worked examples for ALFWorld and WebShop, not for "
        f"{config.env.id}. Use --method plain."
    )
