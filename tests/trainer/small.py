"""A small world for trainer tests: generated households, their tokenizer, a tiny model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from agent_envs.alfworld.games import GameSet
from trainer.config import Config, load_config
from trainer.generation.base import Generation, GenerationRequest
from trainer.models.tiny import TinyConfig, build_model, train_tokenizer
from trainer.rollouts.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.runs.folder import make_student
from trainer.supervised.warmstart import demonstrate, demonstration_texts
from trainer.worlds.tasks import make_env, open_tasks, split_tasks

BASE: dict[str, Any] = {
    "env.generated.train": 8,
    "env.generated.valid_seen": 10,
    "env.generated.valid_unseen": 4,
    "env.generated.task_types": ["pick_and_place_simple", "look_at_obj_in_light"],
    "env.max_steps": 6,
    "rollout.tasks": 2,
    "rollout.rollouts": 3,
    "rollout.max_new_tokens": 24,
    "model.hidden_size": 32,
    "model.layers": 2,
    "model.heads": 2,
    "model.kv_heads": 1,
    "model.intermediate_size": 48,
    "model.vocab_size": 400,
    "model.tokenizer_games": 8,
    "warmstart.demonstrations": 8,
    "warmstart.steps": 4,
    "warmstart.batch": 8,
    "optim.lr": 1e-2,
    "optim.warmup_steps": 0,
    "eval.splits": ["valid_seen"],
    "eval.tasks": 4,
    "eval.initial": False,
    "run.iterations": 2,
}


def small_config(**overrides: Any) -> Config:
    """A config for the small world; keys use `__` for the dot."""
    return load_config({}, BASE | {key.replace("__", "."): v for key, v in overrides.items()})


@lru_cache(maxsize=4)
def games() -> GameSet:
    return open_tasks(small_config().env)


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    config = small_config()
    env = make_env(config.env, games(), "train")
    demonstrations = [
        demonstrate(env, task, config.warmstart)
        for task in split_tasks(config.env, games(), "train")
    ]
    template = student_for(config, None).template
    return train_tokenizer(demonstration_texts(demonstrations, template), 400)


def student_for(config: Config, tok: Any) -> Student:
    if tok is None:  # only the template is wanted
        from tests.fakes import ByteTokenizer

        tok = ByteTokenizer()
    return make_student(config, None, tok)


def student(config: Config | None = None) -> Student:
    return student_for(config or small_config(), tokenizer())


def model(seed: int = 0, std: float = 0.3) -> Any:
    """A fresh tiny model; the large standard deviation makes its choices far from uniform."""
    m = small_config().model
    return build_model(
        len(tokenizer()),
        TinyConfig(m.hidden_size, m.intermediate_size, m.layers, m.heads, m.kv_heads, 1024, std),
        seed=seed,
        pad_id=tokenizer().pad_token_id,
        end_id=tokenizer().eos_token_id,
    )


def twin(original: Any) -> Any:
    return copy.deepcopy(original)


class CommandSampler:
    """Replies that send the command which `choose` picks for (request, prompt text).

    `choose` may return a whole reply; anything with a tag is sent as it is. Batch sizes are
    recorded. Log-probs are `logprob` for every token.
    """

    def __init__(
        self, choose: Callable[[GenerationRequest, str], str], logprob: float = -0.5
    ) -> None:
        self.choose = choose
        self.logprob = logprob
        self.sizes: list[int] = []
        self.prompts: list[str] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.sizes.append(len(requests))
        tok, result = tokenizer(), []
        for request in requests:
            prompt = tok.decode(list(request.prompt_ids))
            self.prompts.append(prompt)
            text = self.choose(request, prompt)
            if "<" not in text:
                text = f"<think></think><action>{text}</action>"
            ids = (*tok.encode(text, add_special_tokens=False), tok.eos_token_id)
            ids = ids[: request.max_new_tokens]
            result.append(Generation(ids, (self.logprob,) * len(ids), "stop"))
        return result


@lru_cache(maxsize=1)
def walkthroughs() -> dict[str, str]:
    """Prompt text -> shortest-plan command, along the plan of every training task."""
    config = small_config(env__max_steps=15)
    table: dict[str, str] = {}

    def follow(task_id: str) -> None:
        plan = iter(games().walkthrough(task_id) or ())

        def choose(request: GenerationRequest, prompt: str) -> str:
            return table.setdefault(prompt, next(plan))

        play(
            [Episode(task_id, "g", "t", 0)],
            [make_env(config.env, games(), "train")],
            student(config),
            CommandSampler(choose),
            PlaySettings(64),
        )

    for task_id in split_tasks(config.env, games(), "train"):
        follow(task_id)
    return table


def half_expert(share: float = 0.5) -> CommandSampler:
    """Follows the plan with probability `share` at each turn, else looks around.

    One draw from the request's own stream decides, so groups have mixed outcomes and the
    behaviour is a function of the keys.
    """

    def choose(request: GenerationRequest, prompt: str) -> str:
        assert request.rng is not None
        expert = request.rng.random() < share
        return walkthroughs().get(prompt, "look") if expert else "inventory"

    return CommandSampler(choose)


def rollouts(
    config: Config, sampler: Any, *, iteration: int = 0, snapshots: bool = True
) -> list[Trajectory]:
    """One iteration's groups, as the loop collects them."""
    from trainer.worlds.tasks import tasks_at

    c = config
    ids = split_tasks(c.env, games(), "train")
    episodes = [
        Episode(task, f"{iteration}.{i}", f"{iteration}.{i}.{j}", c.run.seed, iteration, i, j)
        for i, task in enumerate(tasks_at(ids, c.rollout.tasks, c.run.seed, iteration))
        for j in range(c.rollout.rollouts)
    ]
    return play(
        episodes,
        [make_env(c.env, games(), "train") for _ in episodes],
        student(c),
        sampler,
        PlaySettings(c.rollout.max_new_tokens, c.rollout.temperature, snapshots=snapshots),
    )


def weights(m: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in m.state_dict().items()}


def untimed(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without those that a clock decides."""
    return {k: v for k, v in figures.items() if not k.startswith(("perf/", "time/"))}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)
