"""A run on one of several ranks: its own groups, everybody's steps, one run folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from trainer.config import Config
from trainer.generation.base import streaming
from trainer.iteration import Trainer
from trainer.learning.learner import Learner
from trainer.methods.protocol import Method, Setup
from trainer.models.lora import has_adapters
from trainer.parallel.context import Group
from trainer.parallel.critic import SharedCritic
from trainer.parallel.evaluation import evaluate_shared
from trainer.parallel.metrics import joined_metrics
from trainer.parallel.rounds import collect_shared_rounds
from trainer.parallel.shard import part_of
from trainer.parallel.wrap import (
    copy_weights,
    put_whole_moments,
    put_whole_weights,
    share,
    whole_optimizer,
    whole_policy,
)
from trainer.rollouts.data import Turn, read_turns, write_turns
from trainer.rollouts.dynamic_sampling import Collected
from trainer.rollouts.rollout import TextEnvironment, Trajectory, play
from trainer.runs.checkpoint import Checkpoint
from trainer.runs.folder import RunFolder
from trainer.worlds.tasks import make_env, tasks_from

__all__ = ["ParallelTrainer"]


class ParallelTrainer(Trainer):
    """`Trainer` as one rank of `group`; its folder is `own_folder`'s.

    With `fsdp` a rank holds its part of the weights, gradients and moments, and besides a whole
    copy that samples: `refresh` gathers it, a tensor at a time.
    """

    def __init__(
        self, config: Config, folder: RunFolder, model: nn.Module, tokenizer: Any, *,
        group: Group, **options: Any,
    ) -> None:  # fmt: skip
        self.group = group
        whole = deepcopy(model) if group.sharded else model
        super().__init__(config, folder, whole, tokenizer, **options)
        if group.sharded and self.acting is not whole:
            # Methods keep their setup and with it this copy, which nobody reads any more: it need
            # not hold float32 weights of its own beside those of the one that samples.
            for kept, acting in zip(whole.parameters(), self.acting.parameters(), strict=True):
                kept.data = acting.data
        trained = share(model, group, packing=config.optim.packing)
        self.learner = Learner(
            config,
            trained,
            self.student,
            options.get("reference"),
            self.methods,
            self._critic(),
            group,
        )
        self._played = 0, 0, 0  # trajectories, groups, groups that were kept
        self.own = part_of(config.rollout.tasks, group.rank, group.world)
        del self.envs[max(len(self.own), 1) * config.rollout.rollouts :]

    def _methods(self, model: nn.Module) -> list[Method]:
        c = self.config
        if not any(True for _ in c.auxiliary.active()):
            return []
        from trainer.parallel.methods import make_shared_methods

        def new_env() -> TextEnvironment:
            return make_env(c.env, self.task_set, c.env.split)

        setup = Setup(c, self.student, model, new_env, self.sampler)
        return make_shared_methods(setup, self.group)

    def _critic(self) -> SharedCritic | None:
        whole = self.learner.critic
        return None if whole is None else SharedCritic(self.config, whole.model, self.group)

    def iterate(self, iteration: int) -> dict[str, Any]:
        metrics = super().iterate(iteration)
        return joined_metrics(metrics, *self._played, self.group)

    def collect(self, iteration: int) -> Collected:
        """This rank's groups of the iteration, under the names that one process gives them."""
        self.refresh()
        c, settings = self.config, self.play_settings()
        rounds = bool(c.objective.dynamic_rounds)
        drawn = self.groups_drawn if rounds else iteration * c.rollout.tasks

        def play_round(number: int) -> list[Trajectory]:
            first = number * c.rollout.tasks
            tasks = tasks_from(self.task_ids, drawn + first, c.rollout.tasks, c.run.seed)
            episodes = self.episodes(iteration, [(first + i, tasks[i]) for i in self.own])
            return play(episodes, self.envs, self.student, self.sampler, settings)

        if rounds:
            found = collect_shared_rounds(c, play_round, self.group)
            self.groups_drawn = drawn + found.groups
        else:
            played = play_round(0)
            found = Collected(played, played, len(self.own), {})
            self.groups_drawn = drawn + c.rollout.tasks
        sampled, kept = (len({t.episode.uid for t in ts}) for ts in (found.sampled, found.kept))
        self._played = len(found.sampled), sampled, kept
        return found

    def refresh(self) -> None:
        if not self.group.sharded:
            super().refresh()
            return
        copy_weights(self.learner.model, self.acting)
        streaming(self.sampler).refresh()

    def record(
        self, iteration: int, trajectories: Sequence[Trajectory], turns: Sequence[Turn]
    ) -> None:
        """What every rank learnt from, in the order of the groups, written by rank 0."""
        folder = self.folder
        with tempfile.TemporaryDirectory(prefix="sero-record-") as name:
            self.folder = RunFolder(Path(name))
            try:
                super().record(iteration, trajectories, turns)
                mine = [
                    path.read_bytes() if path.exists() else b""
                    for path in (self.folder.roots, self.folder.turns(iteration))
                ]
            finally:
                self.folder = folder
            roots, files = (self.group.gather_bytes(part) for part in mine)
            if self.group.writes:
                _append(folder.roots, b"".join(roots))
                _write_turns(folder.turns(iteration), files, Path(name))

    def evaluated_here(self, tasks: int) -> int:
        return len(part_of(tasks, self.group.rank, self.group.world))

    def evaluator(self) -> Callable[..., dict[str, Any]]:
        return partial(evaluate_shared, group=self.group)

    def save(self, iteration: int) -> Path:
        """A checkpoint in the form of one process: any number of processes can go on from it."""
        critic = self.learner.critic
        gathered = critic.gathered() if isinstance(critic, SharedCritic) else nullcontext()
        with self._whole(), gathered:
            path = self.folder.checkpoints / f"{iteration:06d}"
            if self.group.writes:
                path = super().save(iteration)
        self.group.wait()
        return path

    def restore(self, checkpoint: Checkpoint) -> None:
        with self._whole() as (model, optimizer):
            super().restore(checkpoint)
            if self.group.sharded:
                twin, moments = self.learner.model, self.learner.optimizer
                put_whole_moments(twin, moments, model, optimizer)
                if has_adapters(twin):  # else the policy was loaded from the checkpoint
                    put_whole_weights(model, dict(twin.named_parameters()))

    @contextmanager
    def _whole(self) -> Iterator[tuple[Any, Any]]:
        """Inside, the learner has a policy and an optimiser that no other rank holds parts of."""
        learner = self.learner
        kept = learner.model, learner.optimizer
        if self.group.sharded:
            twin = whole_policy(learner.model, self.acting)
            moments = whole_optimizer(*kept, twin, self.config.optim, self.group)
            learner.model, learner.optimizer = twin, moments
        try:
            yield kept
        finally:
            learner.model, learner.optimizer = kept


def _append(path: Path, lines: bytes) -> None:
    if lines:
        with path.open("ab") as file:
            file.write(lines)


def _write_turns(path: Path, files: Sequence[bytes], scratch: Path) -> None:
    turns: list[Turn] = []
    for rank, content in enumerate(files):
        if content:
            part = scratch / f"{rank}.parquet"
            part.write_bytes(content)
            turns += read_turns(part)
    if any(files):
        path.parent.mkdir(exist_ok=True)
        write_turns(path, turns)
