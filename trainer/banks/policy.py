"""Walks of a trained policy, for an oracle bank."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from oracles.base import HistoryItem
from oracles.branch import RootRecord
from oracles.branches import EnvRecipe
from oracles.walks import PLAY, Walk
from trainer.config import Config
from trainer.generation.hf import HFSampler
from trainer.rollouts.rollout import Episode, PlaySettings, Trajectory, play
from trainer.runs.folder import RunFolder, load_trained, make_student
from trainer.worlds.environments import environment_of
from trainer.worlds.sources import ImportedRecipe
from trainer.worlds.tasks import make_env, open_tasks, split_tasks, tasks_from
from trainer.worlds.user_env import UserTasks

__all__ = ["TrainedPolicy", "load_policy_of"]

_AT_A_TIME = 16
"""Episodes in one batch; changes nothing but the time."""


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """A checkpoint and the tasks that its run was trained on."""

    name: str
    """Folder of the run and iteration of the checkpoint."""
    digest: str
    """SHA-256 (hex) of the checkpoint's manifest, and so of its weights."""
    config: Config
    recipe: EnvRecipe
    """Makes the environment of the run from plain values."""
    tasks: Any
    model: Any
    tokenizer: Any
    split: str

    def walks(self, seed: int) -> Iterator[Walk]:
        """Episodes without end, sampled as in training, over the schedule of tasks for `seed`."""
        stage = self._stage(seed)
        for first in count(0, _AT_A_TIME):
            for trajectory in stage(range(first, first + _AT_A_TIME)):
                yield _walk(trajectory)

    def play(self, seed: int, rollouts: Sequence[int]) -> list[Trajectory]:
        """The episodes of `walks` with these numbers.

        A reply depends on nothing but its own stream, up to what floating point makes of what it
        is computed with; so those are played too that shared a batch with them.
        """
        stage = self._stage(seed)
        found: dict[int, Trajectory] = {}
        for first in sorted({n - n % _AT_A_TIME for n in rollouts}):
            batch = range(first, first + _AT_A_TIME)
            found |= dict(zip(batch, stage(batch), strict=True))
        return [found[n] for n in rollouts]

    def _stage(self, seed: int) -> Callable[[Sequence[int]], list[Trajectory]]:
        """What plays `_AT_A_TIME` episodes, given the number of each."""
        config = self.config
        student = make_student(config, self.model, self.tokenizer)
        sampler = HFSampler(self.model, student.stop_ids, pad_id=student.pad_id)
        settings = PlaySettings(
            config.rollout.max_new_tokens, config.rollout.temperature, snapshots=True
        )
        envs = [make_env(config.env, self.tasks, self.split) for _ in range(_AT_A_TIME)]
        for env in envs:
            env.reset(seed=seed)  # snapshots hold the env's generator, whose seed is else drawn
        ids = split_tasks(config.env, self.tasks, self.split)

        def stage(numbers: Sequence[int]) -> list[Trajectory]:
            tasks = [tasks_from(ids, i, 1, seed)[0] for i in numbers]
            episodes = [
                Episode(task, task, f"{task}#{i}", seed, rollout=i, purpose=PLAY)
                for i, task in zip(numbers, tasks, strict=True)
            ]
            return play(episodes, envs, student, sampler, settings)

        return stage


def load_policy_of(run: Path, split: str | None, checkpoint: int | None = None) -> TrainedPolicy:
    """A checkpoint of a run.

    Args:
        split: of the tasks to play; None: that of the run.
        checkpoint: its iteration; None: the last.

    Raises:
        RunFolderError, CheckpointError, MissingData: name what is wrong.
    """
    config, model, tokenizer, iteration = load_trained(run, checkpoint)
    torch.set_num_threads(config.run.threads)
    tasks = open_tasks(config.env)
    chosen = config.env.split if split is None else split
    manifest = RunFolder(run).checkpoints / f"{iteration:06d}" / "manifest.json"
    return TrainedPolicy(
        name=f"{run.resolve().name}@{iteration}",
        digest=hashlib.sha256(manifest.read_bytes()).hexdigest(),
        config=config,
        recipe=_recipe(config, tasks, chosen),
        tasks=tasks,
        model=model,
        tokenizer=tokenizer,
        split=chosen,
    )


def _recipe(config: Config, tasks: Any, split: str) -> EnvRecipe:
    options = environment_of(config.env.id).options(config.env, tasks, split)
    plain: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in options.items()
    }
    if isinstance(tasks, UserTasks):
        # `module:name`: nothing that gymnasium can make, and it gets what it takes.
        if "max_steps" in tasks.takes:
            plain["max_steps"] = config.env.max_steps
        return ImportedRecipe(config.env.id, plain)
    # The tasks themselves are no plain value; this names them.
    plain["data"] = str(tasks.source)
    return EnvRecipe(config.env.id, {**plain, "max_steps": config.env.max_steps})


def _walk(trajectory: Trajectory) -> Walk:
    return Walk(
        rollout=trajectory.episode.rollout,
        seen=tuple(RootRecord(turn.observation, turn.admissible) for turn in trajectory.turns),
        snapshots=trajectory.snapshots,
        history=tuple(HistoryItem(*item) for item in trajectory.history.items),
        rewards=tuple(turn.reward for turn in trajectory.turns),
        success=trajectory.success,
        score=trajectory.score,
        end=trajectory.turns[-1].next_observation if trajectory.turns else "",
    )
