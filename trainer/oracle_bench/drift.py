"""Does training on the oracle's commands alone spoil the form of the policy's replies?

The policy plays the same episodes with the same draws before and after some optimiser steps that
have no base loss. The steps are those of a run: blocks of roots as large as an iteration's groups,
scored with the present weights and cut as in training; learning rate, warm-up and clipping of the
run, with fresh moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from agent_envs.streams import stream
from trainer.branches.branching import score
from trainer.branches.records import GrownRoot
from trainer.config import Config, SeroConfig
from trainer.generation.hf import HFSampler
from trainer.learning.optim import build_optimizer, optimiser_step
from trainer.methods.protocol import PassLimits, Setup, Step
from trainer.methods.sero import Sero
from trainer.metrics import mean_or_none
from trainer.models.policy import evaluation_mode
from trainer.rollouts.rollout import Episode, PlaySettings, Student, play
from trainer.runs.folder import make_student
from trainer.worlds.environments import TaskSet
from trainer.worlds.tasks import make_env, split_tasks, tasks_from

__all__ = ["Drift", "Form", "drift", "form", "train_on_oracle"]

THINK = "<think>"
_PLAY, _ORDER = "bench-form", "bench-drift"
_AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class Form:
    """Shares of `replies`; None: there are none.

    Attributes:
        think_first: begin with the think tag, white space apart.
        format_valid: have the form that the prompt asks for.
        command_valid: send a command that the environment accepts.
    """

    replies: int
    think_first: float | None
    format_valid: float | None
    command_valid: float | None


@dataclass(frozen=True, slots=True)
class Drift:
    """The form of replies before and after `steps` optimiser steps without a base loss."""

    steps: int
    episodes: int
    before: Form
    after: Form

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def drift(
    config: Config,
    model: nn.Module,
    tokenizer: Any,
    tasks: TaskSet,
    roots: Sequence[GrownRoot],
    section: SeroConfig,
    *,
    steps: int = 20,
    episodes: int = 32,
    seed: int = 0,
) -> Drift | None:
    """Trains `model`, so give a copy. None: no branch is open, so nothing can be trained.

    Args:
        config: names environment, split and optimiser.
        model: float32.
        roots: with rows; their z is measured here.
        episodes: tasks to play, from the schedule of tasks for `seed`.
    """
    if not any(root.gate > 0 and root.rows for root in roots):
        return None
    before = form(config, model, tokenizer, tasks, episodes=episodes, seed=seed)
    student = make_student(config, model, tokenizer)
    taken = train_on_oracle(config, model, student, roots, section, steps=steps, seed=seed)
    after = form(config, model, tokenizer, tasks, episodes=episodes, seed=seed)
    return Drift(taken, episodes, before, after)


def train_on_oracle(
    config: Config,
    model: nn.Module,
    student: Student,
    roots: Sequence[GrownRoot],
    section: SeroConfig,
    *,
    steps: int,
    seed: int = 0,
) -> int:
    """Takes `steps` optimiser steps of SERO alone and returns how many it took.

    Blocks without a row to train take none; fewer than `steps` are taken only where no block has a
    row, or where gradients are not finite.
    """
    section = replace(section, weight=section.weight or 1.0, depth_iterations=0)
    limits = PassLimits.of(config, student)
    optimizer = build_optimizer(model, config.optim)
    per_epoch = -(-len(roots) // config.rollout.tasks)
    taken = idle = 0
    for iteration, block in enumerate(_blocks(roots, config.rollout.tasks, seed)):
        method = Sero(Setup(config, student, model), section)
        method.roots = score(block, model, limits)
        before = taken
        for step in _steps(config, iteration):
            if not method.has_pass(step):
                continue

            def passes(method: Sero = method, step: Step = step) -> None:
                method.backward(model, step, limits)

            with evaluation_mode(model):
                result = optimiser_step(
                    model, optimizer, config.optim, taken, None, passes, measure=False
                )
            taken += result.stepped
            if taken == steps:
                return taken
        # A root may come first in one pass over the roots and last in the next.
        idle = 0 if taken > before else idle + 1
        if idle == 2 * per_epoch:
            break
    return taken


def form(
    config: Config,
    model: nn.Module,
    tokenizer: Any,
    tasks: TaskSet,
    *,
    episodes: int,
    seed: int,
) -> Form:
    """Plays episodes as rollouts are played and looks at every reply."""
    student = make_student(config, model, tokenizer)
    sampler = HFSampler(model, student.stop_ids, pad_id=student.pad_id)
    ids = tasks_from(split_tasks(config.env, tasks, config.env.split), 0, episodes, seed)
    envs = [make_env(config.env, tasks, config.env.split) for _ in range(min(episodes, _AT_A_TIME))]
    try:
        played = play(
            [
                Episode(task, task, f"{task}#{i}", seed, rollout=i, purpose=_PLAY)
                for i, task in enumerate(ids)
            ],
            envs,
            student,
            sampler,
            PlaySettings(config.rollout.max_new_tokens, config.rollout.temperature),
        )
    finally:
        for env in envs:
            env.close()
    turns = [turn for trajectory in played for turn in trajectory.turns]
    return Form(
        len(turns),
        mean_or_none(float(turn.reply.lstrip().startswith(THINK)) for turn in turns),
        mean_or_none(float(turn.format_valid) for turn in turns),
        mean_or_none(float(turn.command_valid) for turn in turns),
    )


def _blocks(roots: Sequence[GrownRoot], size: int, seed: int) -> Iterator[list[GrownRoot]]:
    """Blocks of `size` roots without end, each pass in an order of its own."""
    epoch = 0
    while True:
        order = stream(seed, epoch, purpose=_ORDER).permutation(len(roots)).tolist()
        for first in range(0, len(order), size):
            yield [roots[i] for i in order[first : first + size]]
        epoch += 1


def _steps(config: Config, iteration: int) -> Iterator[Step]:
    for epoch in range(config.optim.epochs):
        for index in range(config.optim.steps):
            yield Step(iteration, epoch, index, config.optim.steps, ())
