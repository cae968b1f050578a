"""Our side of a run that verl drives: environments, oracle branches and optimiser steps.

Nothing here imports verl. An iteration asks for three things that verl's workers do: replies (a
sampler), log-probs of segments (a `Scorer`), and an update with a `Joined` batch.

Promises (tests/trainer/engines/test_verl_driver.py):

1. Turns, optimiser steps, roots, gates, weights and coefficients are those that our own trainer
   makes of the same rollouts: the same streams, the same functions.
2. Branches are made from recorded rollouts and reach the update alone. Rewards, advantages, old
   log-probs and counts are computed of turns, before there is a branch row.

Axis letters: M turns, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from trainer import rng
from trainer.auxiliary.sero_weights import log_z
from trainer.branches.branching import Brancher, GrownRoot, with_rows
from trainer.branches.targets import branch_prompts
from trainer.config import Config
from trainer.engines.verl.rows import turn_rows
from trainer.engines.verl.settings import check_config
from trainer.engines.verl.steps import Joined, StepError, join
from trainer.evaluation.evaluate import evaluate
from trainer.generation.base import Sampler
from trainer.learning.batch import partition, partition_whole, trajectory_sizes
from trainer.methods.protocol import Rollouts, Setup, Step
from trainer.methods.sero import Sero
from trainer.pools.registry import make_envs
from trainer.rollouts.data import Segment, Turn, segments_from_turns
from trainer.rollouts.metrics import rollout_metrics
from trainer.rollouts.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.worlds.environments import TaskSet
from trainer.worlds.tasks import make_env, open_tasks, split_tasks, spread, tasks_from

__all__ = ["Driver", "Iteration", "Scorer"]

Scorer = Callable[[Sequence[Segment]], list[Tensor]]
"""Log-probs of each segment's trained tokens under the acting policy, at temperature 1."""


class _ScoredElsewhere(Brancher):
    """A brancher whose z is measured by a `Scorer` in place of a model of this process."""

    scorer: Scorer

    def finish(
        self,
        iteration: int,
        roots: Sequence[GrownRoot],
        trajectories: Sequence[Trajectory],
        model: nn.Module,
    ) -> list[GrownRoot]:
        section = self.section
        prompts = [
            branch_prompts(
                root.branch,
                self.student,
                section,
                trajectories[root.choice.index].turns[: root.choice.t],
            )
            if root.gate > 0
            else []
            for root in roots
        ]
        uids = [trajectories[root.choice.index].episode.uid for root in roots]
        replies = self._replies(iteration, uids, prompts)
        limit = self.config.rollout.max_new_tokens
        grown = [
            with_rows(root, own, self.student, section, limit, thoughts)
            for root, own, thoughts in zip(roots, prompts, replies, strict=True)
        ]
        rows = [row for root in grown for row in root.z_rows]
        found = iter([log_z(values) for values in self.scorer(rows)] if rows else [])
        return [replace(root, logz=tuple(next(found) for _ in root.z_rows)) for root in grown]


class Iteration:
    """One iteration's rollouts, from when they are played until they are learnt from.

    Attributes:
        number: of the iteration.
        trajectories, turns, segments: what was played; a segment a turn.
        tensors, arrays: the M turns as verl's batch has them, see `turn_rows`.
    """

    def __init__(
        self, number: int, trajectories: Sequence[Trajectory], config: Config, pad_id: int
    ) -> None:
        self.number = number
        self.trajectories = trajectories
        self.turns: list[Turn] = [t for trajectory in trajectories for t in trajectory.turns]
        if not self.turns:
            raise StepError(
                f"Iteration {number} has no turn: the first prompt of every episode is longer than "
                f"prompt.max_prompt_tokens={config.prompt.max_prompt_tokens}. Raise it."
            )
        self.segments = segments_from_turns(self.turns)
        self.tensors, self.arrays = turn_rows(self.turns, self.segments, config.rollout, pad_id)


class Driver:
    """See the module.

    Args:
        config: ours; it names the environment, the objective and SERO's settings.
        student: how observations become prompts.
        sampler: replies of the acting policy.
        scorer: log-probs under the acting policy; needed with `auxiliary.sero`.
        task_set: opened from the config unless given.

    Raises:
        ConfigError: the config asks for what does not run through verl.
    """

    def __init__(
        self,
        config: Config,
        student: Student,
        sampler: Sampler,
        scorer: Scorer | None = None,
        task_set: TaskSet | None = None,
    ) -> None:
        check_config(config)
        self.config = config
        self.student = student
        self.sampler = sampler
        self.task_set = open_tasks(config.env) if task_set is None else task_set
        self.task_ids = split_tasks(config.env, self.task_set, config.env.split)
        count = config.rollout.tasks * config.rollout.rollouts
        self.envs = make_envs(config.env, self.task_set, config.env.split, count)
        self.sero = None if config.auxiliary.sero is None else self._sero(scorer)

    def _sero(self, scorer: Scorer | None) -> Sero:
        c, section = self.config, self.config.auxiliary.sero
        if scorer is None or section is None:
            raise ValueError("auxiliary.sero measures z under the policy: give a scorer.")
        # Without `make_env` the method makes no brancher of its own.
        method = Sero(Setup(c, self.student, nn.Identity(), sampler=self.sampler), section)
        env = None if section.workers else make_env(c.env, self.task_set, c.env.split)
        brancher = _ScoredElsewhere(c, section, env, self.student, self.sampler)
        brancher.scorer = scorer
        method.brancher = brancher
        return method

    def collect(self, number: int, policy_version: int = 0) -> Iteration:
        """Plays the groups of one iteration and starts their branches, which need no model."""
        c = self.config
        tasks = tasks_from(self.task_ids, number * c.rollout.tasks, c.rollout.tasks, c.run.seed)
        episodes = [
            Episode(task, f"{number}.{i}", f"{number}.{i}.{j}", c.run.seed, number, i, j)
            for i, task in enumerate(tasks)
            for j in range(c.rollout.rollouts)
        ]
        settings = PlaySettings(
            c.rollout.max_new_tokens,
            c.rollout.temperature,
            policy_version=policy_version,
            snapshots=self.sero is not None,
            provenance={"prompt_hash": self.student.template.hash},
        )
        played = play(episodes, self.envs, self.student, self.sampler, settings)
        found = Iteration(number, played, c, self.student.pad_id)
        if self.sero is not None:
            self.sero.start_ahead(number, played)
        return found

    def parts(self, iteration: Iteration) -> list[list[int]]:
        """Turns of each optimiser step, as `trainer.learning.learner` cuts them."""
        c = self.config
        stream = rng.stream(c.run.seed, iteration.number, 0, purpose=rng.SHUFFLE)
        if c.prompt.context == "chat":
            return partition_whole(trajectory_sizes(iteration.turns), c.optim.steps, stream)
        return partition(len(iteration.turns), c.optim.steps, stream)

    def update_batch(
        self, iteration: Iteration, values: Mapping[str, Tensor], ranks: int
    ) -> Joined:
        """The batch of the update: turns with what verl found of them, and branch rows.

        Args:
            values: (M, T) `advantages`, `old_log_probs` and, with a KL, `ref_log_prob`.
            ranks: data-parallel ranks of the actor.

        Raises:
            StepError: an optimiser step without turns, or a row that no pass can take.
        """
        parts = self.parts(iteration)
        branches: list[list[Any]] = [[] for _ in parts]
        weight = 0.0
        if self.sero is not None:
            rollouts = Rollouts(
                iteration.number, iteration.turns, iteration.segments, iteration.trajectories
            )
            self.sero.prepare(rollouts, nn.Identity())
            weight = self.sero.weight
            if weight > 0:
                branches = [
                    self.sero.rows(Step(iteration.number, 0, index, len(parts), tuple(part)))
                    for index, part in enumerate(parts)
                ]
        joined = join(
            iteration.segments,
            values,
            parts,
            branches,
            weight,
            ranks=ranks,
            pad_id=self.student.pad_id,
        )
        longest = int(joined.tensors["attention_mask"].sum(dim=-1).max())
        if longest > self.config.optim.micro_batch_tokens:
            raise StepError(
                f"A row has {longest} tokens, a pass takes optim.micro_batch_tokens="
                f"{self.config.optim.micro_batch_tokens}. Raise it."
            )
        return joined

    def abandon(self) -> None:
        """The iteration broke off: ends branches that are being played."""
        if self.sero is not None:
            self.sero.abandon()

    def metrics(self, iteration: Iteration) -> dict[str, Any]:
        """Figures of the rollouts and of the branches."""
        found = dict(rollout_metrics(iteration.trajectories, iteration.turns))
        return found if self.sero is None else {**found, **self.sero.metrics()}

    def records(self, iteration: Iteration) -> list[Mapping[str, Any]]:
        """What `roots.jsonl` says of the branches: what the student could see."""
        found = [] if self.sero is None else self.sero.records(iteration.trajectories)
        return [{"iteration": iteration.number, **record} for record in found]

    def evaluate(self) -> dict[str, dict[str, Any]]:
        """Evaluates on every split of the config with the acting policy."""
        c = self.config
        results = {}
        for split in c.eval.splits:
            tasks = spread(split_tasks(c.env, self.task_set, split), c.eval.tasks)
            with ExitStack() as opened:
                made = [
                    opened.enter_context(closing(make_env(c.env, self.task_set, split)))
                    for _ in range(max(min(c.eval.batch_size, len(tasks)), 1))
                ]
                results[split] = evaluate(
                    tasks,
                    made,
                    self.student,
                    self.sampler,
                    split=split,
                    max_new_tokens=c.rollout.max_new_tokens,
                    temperature=c.eval.temperature,
                    seed=c.eval.seed,
                )
        return results

    def close(self) -> None:
        """Ends what the driver started. Closing twice is no error."""
        if self.sero is not None:
            self.sero.close()
        for env in self.envs:
            env.close()
