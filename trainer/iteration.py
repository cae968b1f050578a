"""One run in memory, and what an iteration of it is.

Promises (tests/trainer/test_loop.py, test_resume.py):

1. Every draw is keyed by (run seed, iteration, task, rollout, turn, purpose). Two runs of one
   config on one machine are equal bit for bit on a CPU.
2. Rollouts are the same with any auxiliary objective, as long as the parameters are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.config import Config, config_hash
from trainer.evaluation.evaluate import evaluate
from trainer.generation.base import Sampler, streaming
from trainer.generation.registry import make_sampler
from trainer.learning.learner import Counters, Learner
from trainer.methods.protocol import Method, Setup
from trainer.metrics import MetricsLog, Phases
from trainer.models.critic import make_critic
from trainer.models.lora import adapter_state, has_adapters, load_adapter_state, merged
from trainer.planning.performance import iteration_performance, peak_of, policy_shape
from trainer.pools.registry import make_envs
from trainer.rollouts.data import Turn, write_turns
from trainer.rollouts.dynamic_sampling import Collected, collect_rounds
from trainer.rollouts.metrics import rollout_metrics
from trainer.rollouts.rollout import Episode, PlaySettings, TextEnvironment, Trajectory, play
from trainer.runs.checkpoint import (
    Checkpoint,
    CheckpointError,
    read_tensors,
    restore_optimizer,
    save_checkpoint,
)
from trainer.runs.folder import RunFolder, make_student
from trainer.runs.info import write_json
from trainer.worlds.environments import TaskSet
from trainer.worlds.tasks import make_env, open_tasks, split_tasks, spread, tasks_from

__all__ = ["OnEvaluation", "Trainer"]

OnEvaluation = Callable[[str, Any], None]
"""Gets (split, number of its tasks) before they are played, (split, result) afterwards."""

CRITIC_FILE = "critic"
ADAPTER_FILE = "adapter"


class Trainer:
    """One run in memory. `iterate` is the definition of an iteration; `train` drives it.

    Args:
        task_set: opened from the config unless given.
        sampler: as `config.sampler` says, on the model, unless given.
        reference: frozen policy for the KL term.
    """

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        model: nn.Module,
        tokenizer: Any,
        *,
        task_set: TaskSet | None = None,
        sampler: Sampler | None = None,
        reference: nn.Module | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.task_set = open_tasks(config.env) if task_set is None else task_set
        self.student = make_student(config, model, tokenizer)
        # Weights are trained in float32: a step of 1e-6 is lost in bfloat16. What samples is a
        # rounded copy, which costs half the memory and time of its own.
        self.acting = model if config.run.dtype == "float32" else _rounded(model)
        self._own_sampler = sampler is None
        self.sampler: Sampler = sampler or make_sampler(config, self.acting, self.student)
        self.task_ids = split_tasks(config.env, self.task_set, config.env.split)
        count = config.rollout.tasks * config.rollout.rollouts
        self.envs = make_envs(config.env, self.task_set, config.env.split, count)
        self.phases = Phases()
        self.shape = policy_shape(model)
        self.peak_flops = peak_of(config.run.device)
        self.methods = self._methods(model)
        # Groups drawn from the schedule of tasks so far; part of a checkpoint.
        self.groups_drawn = 0
        critic = make_critic(config, model) if config.objective.has_critic else None
        self.learner = Learner(config, model, self.student, reference, self.methods, critic)

    def _methods(self, model: nn.Module) -> list[Method]:
        c = self.config
        if not any(True for _ in c.auxiliary.active()):
            return []
        # The one place where training may reach for oracles; evaluation never gets here.
        from trainer.methods.registry import make_methods

        def new_env() -> TextEnvironment:
            return make_env(c.env, self.task_set, c.env.split)

        return make_methods(Setup(c, self.student, model, new_env, self.sampler))

    def iterate(self, iteration: int) -> dict[str, Any]:
        """One iteration; returns its metrics."""
        start = time.perf_counter()
        self.phases = Phases()
        with self.phases("collect"):
            found = self.collect(iteration)
        turns = _turns(found.kept)
        learned = self.learner.learn(iteration, turns, self.phases, found.kept)
        with self.phases("record"):
            self.record(iteration, found.kept, turns)
        played = rollout_metrics(found.sampled, _turns(found.sampled))
        metrics = {"iteration": iteration, **played, **found.metrics, **learned}
        metrics |= {f"time/{name}": seconds for name, seconds in self.phases.seconds.items()}
        metrics["iteration_s"] = time.perf_counter() - start
        tokens = metrics["prompt_tokens"] + metrics["response_tokens"]
        metrics["tokens_per_s"] = tokens / metrics["iteration_s"]
        metrics["perf/update_mfu"] = learned["perf/mfu"]
        return metrics | iteration_performance(
            self.config,
            self.shape,
            self.peak_flops,
            sampled=_turns(found.sampled),
            learnt=turns,
            update=self.learner.work,
            seconds=self.phases.seconds,
            iteration_s=metrics["iteration_s"],
        )

    def collect(self, iteration: int) -> Collected:
        """Groups of rollouts: `rollout.rollouts` of each of `rollout.tasks` tasks.

        With `objective.dynamic_rounds`, in as many rounds as it takes to find enough groups of
        different outcomes.
        """
        self.refresh()
        c = self.config
        settings = self.play_settings()
        # Without rounds the place follows from the iteration, so any one can be played alone.
        drawn = self.groups_drawn if c.objective.dynamic_rounds else iteration * c.rollout.tasks

        def play_round(number: int) -> list[Trajectory]:
            first = number * c.rollout.tasks
            tasks = tasks_from(self.task_ids, drawn + first, c.rollout.tasks, c.run.seed)
            episodes = self.episodes(iteration, enumerate(tasks, first))
            return play(episodes, self.envs, self.student, self.sampler, settings)

        found = collect_rounds(c, play_round)
        self.groups_drawn = drawn + found.groups
        return found

    def play_settings(self) -> PlaySettings:
        """How the replies of rollouts are drawn."""
        c = self.config
        return PlaySettings(
            c.rollout.max_new_tokens,
            c.rollout.temperature,
            policy_version=self.learner.counters.optimizer_steps,
            snapshots=bool(self.methods) or c.run.save_turns,
            provenance={"prompt_hash": self.student.template.hash},
        )

    def episodes(self, iteration: int, groups: Iterable[tuple[int, str]]) -> list[Episode]:
        """`rollout.rollouts` episodes of each group, a (number, task); the number names it."""
        c = self.config
        return [
            Episode(task, f"{iteration}.{i}", f"{iteration}.{i}.{j}", c.run.seed, iteration, i, j)
            for i, task in groups
            for j in range(c.rollout.rollouts)
        ]

    def refresh(self) -> None:
        """Gives the acting policy the current weights."""
        if self.acting is not self.learner.model:
            with torch.no_grad():
                pairs = zip(self.acting.parameters(), self.learner.model.parameters(), strict=True)
                for acting, trained in pairs:
                    acting.copy_(trained)
        streaming(self.sampler).refresh()

    def record(
        self,
        iteration: int,
        trajectories: Sequence[Trajectory],
        turns: Sequence[Turn],
    ) -> None:
        """Writes what was learnt from: roots of oracle branches, and the turns if asked for."""
        records = [record for method in self.methods for record in method.records(trajectories)]
        if records:
            log = MetricsLog(self.folder.roots)
            for record in records:
                log.write({"iteration": iteration, **record})
        if self.config.run.save_turns:
            snapshots = [s for trajectory in trajectories for s in trajectory.snapshots]
            path = self.folder.turns(iteration)
            path.parent.mkdir(exist_ok=True)
            pairs = zip(turns, snapshots, strict=True)
            write_turns(path, [replace(turn, snapshot=s.to_bytes()) for turn, s in pairs])

    def evaluate(
        self, iteration: int, tell: OnEvaluation | None = None
    ) -> dict[str, dict[str, Any]]:
        """Evaluates on every split of the config and writes the results.

        Args:
            tell: called with a split and the number of its tasks before they are played, and with
                the split and its result afterwards.
        """
        self.refresh()
        c = self.config
        results = {}
        for split in c.eval.splits:
            tasks = spread(split_tasks(c.env, self.task_set, split), c.eval.tasks)
            if tell is not None:
                tell(split, len(tasks))
            count = max(min(c.eval.batch_size, self.evaluated_here(len(tasks))), 1)
            with ExitStack() as opened:
                made = (make_env(c.env, self.task_set, split) for _ in range(count))
                result = self.evaluator()(
                    tasks,
                    [opened.enter_context(closing(env)) for env in made],
                    self.student,
                    self.sampler,
                    split=split,
                    max_new_tokens=c.rollout.max_new_tokens,
                    temperature=c.eval.temperature,
                    seed=c.eval.seed,
                )
            results[split] = {"iteration": iteration, **result}
            write_json(self.folder.evaluation(iteration, split), results[split])
            if tell is not None:
                tell(split, results[split])
        return results

    def evaluated_here(self, tasks: int) -> int:
        """How many of so many tasks this process plays."""
        return tasks

    def evaluator(self) -> Callable[..., dict[str, Any]]:
        """`trainer.evaluation.evaluate.evaluate`, or what stands in for it."""
        return evaluate

    def save(self, iteration: int) -> Path:
        """Checkpoint after `iteration` finished iterations."""
        counters, model = self.learner.counters, self.learner.model
        return save_checkpoint(
            self.folder.checkpoints,
            iteration,
            model=model,
            policy=merged(model) if has_adapters(model) else None,
            optimizer=self.learner.optimizer,
            save_tokenizer=self.student.tokenizer.save_pretrained,
            state={
                "config_hash": config_hash(self.config),
                "seed": self.config.run.seed,
                "optimizer_steps": counters.optimizer_steps,
                "skipped_steps": counters.skipped_steps,
                "nonfinite_steps": counters.nonfinite_steps,
                "nonfinite_in_a_row": counters.nonfinite_in_a_row,
                "groups_drawn": self.groups_drawn,
            },
            others=self._others(),
        )

    def close(self) -> None:
        """The run is over: ends what it started. Closing twice is no error."""
        for method in self.methods:
            method.close()
        if self._own_sampler:
            streaming(self.sampler).close()
        for env in self.envs:
            env.close()

    def _others(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds besides the policy, by the name of its file."""
        critic = self.learner.critic
        others = {method.name: method.state() for method in self.methods}
        if critic is not None:
            others[CRITIC_FILE] = critic.state()
        if has_adapters(self.learner.model):
            others[ADAPTER_FILE] = adapter_state(self.learner.model)
        return {name: tensors for name, tensors in others.items() if tensors}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Optimiser and counters of a checkpoint; the model was loaded from its folder."""
        state, file = checkpoint.state, checkpoint.path / "state.json"
        try:
            names = ("optimizer_steps", "skipped_steps", "nonfinite_steps")
            counters, seed = Counters(*(int(state[name]) for name in names)), state["seed"]
            # Checkpoints of before it was counted have none.
            counters.nonfinite_in_a_row = int(state.get("nonfinite_in_a_row", 0))
            # Only rounds make it more than what follows from the iteration.
            drawn = int(state["groups_drawn"]) if self.config.objective.dynamic_rounds else 0
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{file} lacks sampler or step state: {error!r}.") from error
        if seed != self.config.run.seed:
            raise CheckpointError(
                f"{file} was made with run.seed={seed}, the config says {self.config.run.seed}. "
                "Resume with the seed of the run."
            )
        if has_adapters(self.learner.model):
            path = checkpoint.path / f"{ADAPTER_FILE}.safetensors"
            try:
                load_adapter_state(self.learner.model, read_tensors(path))
            except ValueError as error:
                raise CheckpointError(f"{path}: {error}.") from error
        restore_optimizer(checkpoint, self.learner.model, self.learner.optimizer)
        self.learner.counters, self.groups_drawn = counters, drawn
        critic = self.learner.critic
        keepers: list[tuple[str, Any]] = [(method.name, method) for method in self.methods]
        if critic is not None:
            keepers.append((CRITIC_FILE, critic))
        for name, keeper in keepers:
            path = checkpoint.path / f"{name}.safetensors"
            if not path.exists() and not keeper.state():
                continue
            try:
                keeper.load_state(read_tensors(path))
            except ValueError as error:
                raise CheckpointError(
                    f"{path}: {error}. Resume with the config of the run."
                ) from error


def _rounded(model: nn.Module) -> nn.Module:
    """A copy with bfloat16 parameters. Buffers stay: rotary frequencies in 8 bits would move
    tokens a thousand places on by whole turns, and a saved model is not loaded like that."""
    copy = deepcopy(model)
    for parameter in copy.parameters():
        parameter.data = parameter.data.bfloat16()
    return copy


def _turns(trajectories: Sequence[Trajectory]) -> list[Turn]:
    return [turn for trajectory in trajectories for turn in trajectory.turns]
