"""Trains a tiny policy on `switch_world` and says by how much the best commands became likelier.

What is measured is the mean log-probability of the best command, over a fixed set of prompts and
over the command's tokens behind `<think></think><action>`: the format is no part of it. The start
is a policy that writes the format and takes the best command in about half of its turns, the other
commands alike, so that outcomes are mixed and a signal that says nothing cannot raise the figure.

Everything follows from the seed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from tests.trainer.matrix import shuffling, switch_world
from trainer import rng
from trainer.auxiliary.teacher_prompt import CLOSING
from trainer.config import Config, WarmstartConfig, load_config
from trainer.config.objective import CRITIC
from trainer.generation.base import Generation, GenerationRequest
from trainer.iteration import Trainer
from trainer.learning.optim import learning_rate
from trainer.learning.update import AuxiliaryRow, auxiliary_backward, score_segments
from trainer.methods.protocol import PassLimits
from trainer.models.tiny import TinyConfig, build_model, train_tokenizer
from trainer.rollouts.data import Segment, Turn, make_segment
from trainer.rollouts.rollout import Episode, PlaySettings, Student, play
from trainer.runs.folder import RunFolder, make_student
from trainer.supervised.warmstart import supervised
from trainer.worlds.tasks import make_env

VOCABULARY = 400
HINT = "At this step the command to send is: {}"
"""How teachers are told a command."""
TITLES = (
    "\n\nWhat the environment answered to your action at this step:\n",
    "\n\nCommands that solve the task from here:\n1. ",
    "\n\nWhat earlier experience with this task teaches:\n- ",
    f"\n\nAdvice for this very step:\n{HINT}",
    f"\n\n{CLOSING}\n",
)
"""What teachers are told with, so that few tokens spell it."""
SHAPE = TinyConfig(
    hidden_size=48, intermediate_size=96, layers=2, heads=2, kv_heads=1, init_std=0.15
)
BEST_SHARE = 0.7
"""Of the best command in the weak policy; the other three share the rest."""
LEARN = WarmstartConfig(steps=300, batch=32, lr=4e-3, warmup_steps=10)
WEAKEN_STEPS, WEAKEN_LR, WEAKEN_BATCH = 60, 1e-3, 24
WARM_ROLLOUTS = 24
"""Of each task, played half at random: the prompts of the warm start."""
MEASURED_ROLLOUTS = 3

SETTINGS: dict[str, Any] = {
    "env.id": switch_world.ENV_ID,
    "env.max_steps": 5,
    "prompt.history_length": 0,
    "prompt.max_prompt_tokens": 400,
    "rollout.tasks": 6,
    "rollout.rollouts": 24,
    "rollout.max_new_tokens": 12,
    "optim.lr": 1e-3,
    "optim.warmup_steps": 0,
    "optim.weight_decay": 0.0,
    "optim.steps": 1,
    "optim.micro_batch_tokens": 8192,
    "eval.initial": False,
    "eval.splits": [],
}


def config(seed: int = 0, **overrides: Any) -> Config:
    """The settings of the matrix; keys use `__` for the dot."""
    own = {key.replace("__", "."): value for key, value in overrides.items()}
    if own.get("objective.name") in CRITIC:
        own.setdefault("objective.critic.lr", 1e-2)
    return load_config({}, SETTINGS | {"run.seed": seed} | own)


# ------------------------------------------------------------------------------ states


_STATE = re.compile(r"in the (cellar|hall|attic)\. (\d) pressed")
_GOAL = re.compile(r"press (\w+) in the (\w+), then (\w+) in the (\w+)\.")


def best_at(goal: str, observation: str) -> str:
    """The best command, from what the student is shown."""
    found, switches = _STATE.findall(observation), _GOAL.search(goal)
    assert found, observation
    assert switches, goal
    rooms = switch_world.ROOMS
    first, where, second, there = switches.groups()
    wanted = ((rooms.index(where), first), (rooms.index(there), second))
    return switch_world.best((rooms.index(found[-1][0]), int(found[-1][1])), wanted)


def advice(goal: str, observation: str) -> str:
    """The best command in a sentence."""
    return HINT.format(best_at(goal, observation))


class HalfAtRandom:
    """Takes the best command in half of the turns, else one of all four, refused or not."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        replies = []
        for request in requests:
            assert request.rng is not None
            prompt = self.tokenizer.decode(list(request.prompt_ids))
            command = switch_world.COMMANDS[int(request.rng.integers(4))]
            if request.rng.random() < 0.5:
                command = best_at(prompt, prompt)
            text = f"<think></think><action>{command}</action>"
            ids = (
                *self.tokenizer.encode(text, add_special_tokens=False),
                self.tokenizer.eos_token_id,
            )
            replies.append(Generation(ids, (0.0,) * len(ids), "stop"))
        return replies


def played(student: Student, rollouts: int, purpose: str) -> list[Turn]:
    """Turns of all training tasks, half at random; the same in every call."""
    c = config()
    tasks = switch_world.SwitchTasks()
    episodes = [
        Episode(task, task, f"{task}.{i}", 0, 0, task, i, purpose)
        for task in tasks.task_ids("train")
        for i in range(rollouts)
    ]
    envs = [make_env(c.env, tasks, "train") for _ in range(16)]
    settings = PlaySettings(c.rollout.max_new_tokens)
    trajectories = play(episodes, envs, student, HalfAtRandom(student.tokenizer), settings)
    return [turn for trajectory in trajectories for turn in trajectory.turns]


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    from tests.fakes import ByteTokenizer

    turns = played(make_student(config(), None, ByteTokenizer()), 4, "vocabulary")
    texts = [bytes(turn.prompt_ids).decode() + turn.reply for turn in turns]
    return train_tokenizer([*texts, *TITLES * 10], VOCABULARY)


def student() -> Student:
    return make_student(config(), None, tokenizer())


@lru_cache(maxsize=1)
def measured() -> tuple[Segment, ...]:
    """Prompts with the best command behind them, as often as they are met."""
    s = student()
    rows = []
    for turn in played(s, MEASURED_ROLLOUTS, "measured"):
        target = s.target(best_at(turn.goal, turn.observation))
        rows.append(make_segment(turn.prompt_ids, target.ids, mask=target.z_mask))
    return tuple(rows)


def likelihood(model: Any) -> float:
    """Mean log-prob of the best command, in nats."""
    scored = score_segments(model, measured(), PassLimits(8192, 0))
    return sum(float(row.double().sum()) for row in scored) / len(scored)


# ------------------------------------------------------------------------------ start


@lru_cache(maxsize=1)
def situations() -> tuple[tuple[Turn, str], ...]:
    """A turn of each prompt that is met, with the best command."""
    turns = {turn.prompt_ids: turn for turn in played(student(), WARM_ROLLOUTS, "warm")}
    return tuple((turn, best_at(turn.goal, turn.observation)) for turn in turns.values())


def skilled_rows() -> list[Segment]:
    """The best command in every situation."""
    s = student()
    return [make_segment(turn.prompt_ids, s.target(best).ids) for turn, best in situations()]


def weaken(model: Any, seed: int) -> None:
    """Teaches all commands in every situation, each with its probability in the weak policy."""
    s = student()
    targets = {command: s.target(command).ids for command in switch_world.COMMANDS}
    other = (1.0 - BEST_SHARE) / (len(targets) - 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=WEAKEN_LR, weight_decay=0.0)
    for step in range(WEAKEN_STEPS):
        draws = rng.stream(seed, step, purpose="weaken")
        chosen = draws.permutation(len(situations()))[:WEAKEN_BATCH]
        rows = [
            AuxiliaryRow(
                make_segment(turn.prompt_ids, ids),
                (BEST_SHARE if command == best else other) / WEAKEN_BATCH,
            )
            for turn, best in (situations()[int(i)] for i in chosen)
            for command, ids in targets.items()
        ]
        optimizer.zero_grad(set_to_none=True)
        auxiliary_backward(model, rows, 1.0, PassLimits(8192, s.pad_id))
        optimizer.param_groups[0]["lr"] = learning_rate(WEAKEN_LR, 5, WEAKEN_STEPS, step)
        optimizer.step()


def weak_rows() -> list[Segment]:
    """The same as rows of equal weight, in as many copies as fit."""
    s = student()
    return [
        make_segment(turn.prompt_ids, s.target(command).ids)
        for turn, best in situations()
        for command in switch_world.COMMANDS
        for _ in range(6 if command == best else 1)
    ]


def fresh(seed: int) -> Any:
    tok = tokenizer()
    return build_model(len(tok), SHAPE, seed=seed, pad_id=tok.pad_token_id, end_id=tok.eos_token_id)


@lru_cache(maxsize=3)
def skilled(seed: int = 1) -> Any:
    """A policy that knows the best command everywhere; do not change it, take a copy."""
    model = fresh(seed)
    supervised(model, skilled_rows(), replace(LEARN, seed=seed), pad_id=student().pad_id)
    return model


@lru_cache(maxsize=3)
def start(seed: int = 1) -> Any:
    """The weak policy; do not change it, take a copy."""
    model = copy.deepcopy(skilled(seed))
    weaken(model, seed)
    return model


# ------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Outcome:
    """What training did.

    Attributes:
        rise: nats by which the best command became likelier.
        metrics: of each iteration.
    """

    rise: float
    metrics: list[Mapping[str, Any]] = field(repr=False)


def train(c: Config, iterations: int, *, model: Any = None, changes: Sequence[str] = ()) -> Outcome:
    """Trains a copy of `model` (None: the weak policy) under some of `shuffling.KINDS`."""
    model = copy.deepcopy(start() if model is None else model)
    before = likelihood(model)
    commands = [best for _, best in situations()]
    with TemporaryDirectory() as folder, shuffling.changed(changes, c.run.seed, commands, advice):
        trainer = Trainer(
            c,
            RunFolder(Path(folder)),
            model,
            tokenizer(),
            task_set=switch_world.SwitchTasks(),
            reference=copy.deepcopy(model) if c.objective.kl_coef > 0 else None,
        )
        metrics = [trainer.iterate(iteration) for iteration in range(iterations)]
    return Outcome(likelihood(model) - before, metrics)
