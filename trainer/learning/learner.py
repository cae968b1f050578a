"""Learning from one iteration's turns: advantages, losses, optimiser steps.

Promises (tests/trainer/learning/test_learner.py, test_sero_promises.py):

1. An auxiliary objective is added to the loss and touches neither what was paid nor the KL. With
   weight 0, or with nothing to learn from, the parameters after a step are those of the base
   objective alone, bit for bit.
2. An iteration takes `optim.steps` optimiser steps per epoch: turns are shuffled and cut into as
   many parts, roots likewise, and every part is normalised by its own counts.
3. Over several processes an iteration is that of one: see `trainer.parallel`.
4. A step with nothing to learn from is skipped and counted, also where every advantage is 0, no
   term has a loss or the gradient is exactly 0: otherwise momentum and weight decay would move the
   policy for no reason. Teachers that follow the policy do not move either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer import rng
from trainer.config import Config
from trainer.learning.base_advantages import BaseAdvantages, base_advantages
from trainer.learning.batch import (
    partition,
    partition_whole,
    trained_turns,
    trajectory_sizes,
    untrained,
    with_logprobs,
)
from trainer.learning.optim import StepResult, build_optimizer, optimiser_step
from trainer.learning.update import BaseStep, LossStats, base_backward, contributing, score_segments
from trainer.methods.protocol import Method, PassLimits, Rollouts, Step
from trainer.metrics import Phases, mean_or_none
from trainer.models.lora import has_adapters
from trainer.models.policy import enable_gradient_checkpointing
from trainer.parallel.advantages import shared_advantages
from trainer.parallel.context import ALONE, Group
from trainer.parallel.counts import add_stats, shared_mean, shared_stats, shared_step
from trainer.parallel.reduce import even_passes, sum_gradients
from trainer.parallel.shard import own_parts
from trainer.planning.accounting import AccountingError, Work, performance, shape_of
from trainer.rollouts.data import Segment, Turn, segments_from_turns
from trainer.rollouts.metrics import step_metrics
from trainer.rollouts.rollout import Student, Trajectory

if TYPE_CHECKING:
    from trainer.models.critic import Critic

__all__ = ["Counters", "Learner"]


@dataclass(slots=True)
class Counters:
    """Running totals; part of the checkpoint."""

    optimizer_steps: int = 0
    skipped_steps: int = 0
    nonfinite_steps: int = 0
    nonfinite_in_a_row: int = 0  # up to now


class Learner:
    """The policy with its optimiser.

    Args:
        reference: frozen policy for the KL term; needed if `objective.kl_coef` > 0.
        methods: auxiliary objectives.
        critic: value model; needed by the objectives that have one.
        group: the processes of the run. Turns are those of this one, steps those of all.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        student: Student,
        reference: nn.Module | None = None,
        methods: Sequence[Method] = (),
        critic: Critic | None = None,
        group: Group = ALONE,
    ) -> None:
        if reference is None and config.objective.kl_coef > 0:
            raise ValueError("objective.kl_coef > 0 needs a reference model.")
        if critic is None and config.objective.has_critic:
            raise ValueError(f"objective.name={config.objective.name} needs a critic.")
        self.config = config
        self.model = model
        self.student = student
        self.reference = reference
        self.methods = tuple(methods)
        self.critic = critic
        self.group = group
        if config.optim.gradient_checkpointing:
            enable_gradient_checkpointing(model)
            if critic is not None:
                enable_gradient_checkpointing(critic.model.backbone)
        self.optimizer = build_optimizer(model, config.optim)
        self.counters = Counters()
        self.work = Work()  # of the last iteration's base passes
        self.limits = PassLimits.of(config, student)

    def learn(
        self,
        iteration: int,
        turns: Sequence[Turn],
        phases: Phases,
        trajectories: Sequence[Trajectory] = (),
    ) -> dict[str, Any]:
        """All optimiser steps of one iteration; returns their metrics.

        Args:
            turns: of all groups; turns read from a file serve as well.
            trajectories: that the turns are from; without them no method can play on.
        """
        c = self.config
        # Not in train mode: dropout would move ratios off 1 and draw from the global random state.
        self.model.eval()
        try:
            for method in self.methods:
                method.start_ahead(iteration, trajectories)
            with phases("scoring"):
                with even_passes(self.model, self.group):
                    segments = self.segments(turns)
                reference, values = self._passes(segments)
            with phases("branch"):
                rollouts = Rollouts(iteration, turns, segments, trajectories)
                for method in self.methods:
                    method.prepare(rollouts, self.model)
        finally:
            for method in self.methods:
                method.abandon()
        joined = [turn for method in self.methods for turn in method.joined()]
        if self.group.any([bool(joined)])[0]:
            more = segments_from_turns(joined, first=len(segments))
            turns, segments = [*turns, *joined], [*segments, *more]
            with phases("scoring"):
                their_reference, their_values = self._passes(more)
            reference = _appended(reference, their_reference)
            values = _appended(values, their_values)
        with phases("advantages"):
            found = self.advantages(turns, segments, values, reference)
            tokens: Sequence[Tensor] = found.tokens
            for method in self.methods:
                tokens = method.shaped(tokens)
        stats = LossStats()  # of this process
        results: list[StepResult] = []
        losses: dict[str, list[float]] = {method.name: [] for method in self.methods}
        before = replace(self.counters)
        with phases("update"):
            for epoch in range(c.optim.epochs):
                parts = self._partition(turns, iteration, epoch, len(joined))
                for index, part in enumerate(parts):
                    step = Step(iteration, epoch, index, len(parts), tuple(part))
                    base = self.base_step(step, segments, tokens, reference)
                    results.append(self.step(base, step, stats, losses))
                    if self.critic is not None and values is not None:
                        self.critic.learn(part, segments, found, values, self.limits)
            for method in self.methods:
                method.finished_iteration(iteration, self.model)
        self.work = stats.work
        total = shared_stats(stats, self.group)
        return {
            **_finite(total.metrics(c.objective)),
            **_finite(self._auxiliary_losses(losses)),
            **step_metrics(results),
            "advantage_abs_mean": shared_mean(
                [float(row.abs().mean()) for row in found.tokens if row.numel()], self.group
            ),
            "optimizer_steps": self.counters.optimizer_steps,
            "skipped_steps": self.counters.skipped_steps,
            "skipped_now": self.counters.skipped_steps - before.skipped_steps,
            "nonfinite_steps": self.counters.nonfinite_steps,
            **self._performance(total, phases),
            **({} if found.kl is None else {"kl_reward": found.kl}),
            **({} if self.critic is None else _finite(self.critic.metrics())),
            **{name: value for method in self.methods for name, value in method.metrics().items()},
        }

    def advantages(
        self,
        turns: Sequence[Turn],
        segments: Sequence[Segment],
        values: Sequence[Tensor] | None = None,
        reference: Sequence[Tensor] | None = None,
    ) -> BaseAdvantages:
        """The base objective's, one number a trained token."""
        if not self.group.alone:
            c = self.config
            return shared_advantages(
                turns, segments, c.objective, c.rollout, reference, values, self.group
            )
        return base_advantages(
            turns,
            segments,
            self.config.objective,
            self.config.rollout,
            values=values,
            reference=reference,
        )

    def segments(self, turns: Sequence[Turn]) -> list[Segment]:
        """One segment per turn, in order; turns that are left out get an empty mask."""
        keep = trained_turns(turns, self.config.objective)
        segments = [
            segment if kept else untrained(segment)
            for segment, kept in zip(segments_from_turns(turns), keep, strict=True)
        ]
        if self.config.optim.old_logprobs == "sampler":
            return segments
        scored = self._score(self.model, segments)
        return [with_logprobs(s, v.tolist()) for s, v in zip(segments, scored, strict=True)]

    def _passes(
        self, segments: Sequence[Segment]
    ) -> tuple[list[Tensor] | None, list[Tensor] | None]:
        """Reference log-probs and the critic's values; None where there is no such model."""
        values = None if self.critic is None else self.critic.values(segments, self.limits)
        with even_passes(self.model, self.group):  # adapters' reference is the policy itself
            return self.reference_logprobs(segments), values

    def reference_logprobs(self, segments: Sequence[Segment]) -> list[Tensor] | None:
        """Reference log-probs at each segment's own temperature; None where KL is off."""
        if self.reference is None or self.config.objective.kl_coef == 0:
            return None
        return self._score(self.reference, segments) if self.config.base_active else None

    def base_step(
        self,
        step: Step,
        segments: Sequence[Segment],
        advantages: Sequence[Tensor],
        reference: Sequence[Tensor] | None,
    ) -> BaseStep:
        """What one optimiser step does with the policy's own tokens."""
        terms = [method.token_term(step) for method in self.methods]
        objective = self.config.objective
        # A critic that knows nothing yet would teach the policy its own ignorance.
        waits = objective.has_critic and step.iteration < objective.critic.warmup_iterations
        scale = 1.0 if self.config.base_active and not waits else 0.0
        for method in self.methods:
            scale *= method.base_scale(step.iteration)
        return BaseStep(
            [segments[i] for i in step.turns],
            step.turns,
            [advantages[i] for i in step.turns],
            None if reference is None else [reference[i] for i in step.turns],
            [term for term in terms if term is not None],
            scale,
            self.config.rollout.max_new_tokens,
        )

    def step(
        self,
        base: BaseStep,
        step: Step,
        stats: LossStats,
        losses: dict[str, list[float]],
    ) -> StepResult:
        """One optimiser step on one part of the turns, and of what methods have prepared.

        All processes take it together if one of them has anything to learn from.
        """
        c, group = self.config, self.group
        base, part = shared_step(base, c.objective, group)
        wanted = [m for m in self.methods if m.weight > 0]
        flags = [bool(contributing(base, c.objective)), *(m.has_pass(step) for m in wanted)]
        has_base, *has_pass = group.any(flags)
        due = [method for method, has in zip(wanted, has_pass, strict=True) if has]
        measure = c.auxiliary.measure_gradients

        def base_pass() -> None:
            own = LossStats()
            with even_passes(self.model, group):
                base_backward(self.model, base, c.objective, self.limits, own)
            add_stats(stats, own, part)
            if measure or not due:  # else both gradients are added up together
                sum_gradients(self.model, group)

        def auxiliary_pass() -> None:
            for method in due:
                with even_passes(self.model, group):
                    own = method.has_pass(step)
                    loss = method.backward(self.model, step, self.limits) if own else 0.0
                losses[method.name].append(loss)
            sum_gradients(self.model, group)

        result = optimiser_step(
            self.model,
            self.optimizer,
            c.optim,
            self.counters.optimizer_steps,
            base_pass if has_base else None,
            auxiliary_pass if due else None,
            measure=measure,
        )
        if result.stepped:
            self.counters.optimizer_steps += 1
            self.counters.nonfinite_in_a_row = 0
            for method in self.methods:
                method.finished_step(self.model)
        elif result.finite:
            self.counters.skipped_steps += 1
        else:
            self.counters.nonfinite_steps += 1
            self.counters.nonfinite_in_a_row += 1
        return result

    def finite_weights(self) -> bool:
        """Whether every trained weight is finite; one read over all of them."""
        trained = [p.detach() for p in self.model.parameters() if p.requires_grad]
        # Of a sharded weight, the part that is here.
        own = [p.to_local() if isinstance(p, DTensor) else p for p in trained]
        finite = bool(torch.isfinite(torch.stack([p.abs().sum() for p in own])).all())
        return not self.group.any([not finite])[0]

    def _auxiliary_losses(self, losses: dict[str, list[float]]) -> dict[str, float | None]:
        """Mean loss of each method with a pass of its own, without weight, and their sum with."""
        summed = {name: self.group.sum(values) for name, values in losses.items()}
        means = {method: mean_or_none(summed[method.name]) for method in self.methods}
        weighted = [m.weight * mean for m, mean in means.items() if mean is not None]
        named = {f"loss/{method.name}": mean for method, mean in means.items() if mean is not None}
        return {**named, "loss/auxiliary": math.fsum(weighted) if weighted else None}

    def _performance(self, stats: LossStats, phases: Phases) -> dict[str, float | None]:
        """Speed of the base objective's passes in the time of the whole update."""
        device = next(self.model.parameters()).device
        try:
            shape = shape_of(self.model.config)
        except AccountingError:
            shape = None
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        frozen = has_adapters(self.model)
        return performance(
            shape,
            stats.work,
            phases.seconds["update"],
            name,
            devices=self.group.world,
            frozen=frozen,
        )

    def _partition(
        self, turns: Sequence[Turn], iteration: int, epoch: int, joined: int = 0
    ) -> list[list[int]]:
        """This process's turns in each step: all processes' are shuffled and cut as one list.

        In chat the turns of a trajectory stay in one step, where one pass runs them all.

        Args:
            joined: of the turns, the last ones that came from elsewhere.
        """
        stream = rng.stream(self.config.run.seed, iteration, epoch, purpose=rng.SHUFFLE)
        # As in one process, turns that joined stand behind those of all rollouts.
        lists = turns[: len(turns) - joined], turns[len(turns) - joined :]
        counts = [n for own in lists for n in self.group.counts(len(own))]
        steps = self.config.optim.steps
        if self.config.prompt.context == "chat":
            parts = partition_whole(
                [
                    size
                    for own in lists
                    for sizes in self.group.gather(trajectory_sizes(own))
                    for size in sizes
                ],
                steps,
                stream,
            )
        else:
            parts = partition(sum(counts), steps, stream)
        rank, world = self.group.rank, self.group.world
        first, behind = own_parts(parts, counts, rank), own_parts(parts, counts, world + rank)
        return [
            [*own, *(len(lists[0]) + i for i in more)]
            for own, more in zip(first, behind, strict=True)
        ]

    def _score(self, model: nn.Module, segments: Sequence[Segment]) -> list[Tensor]:
        return score_segments(model, segments, self.limits)


def _appended(first: list[Tensor] | None, second: list[Tensor] | None) -> list[Tensor] | None:
    return first if first is None or second is None else [*first, *second]


def _finite(losses: dict[str, float | None]) -> dict[str, float | None]:
    """A step that is not finite is refused and counted; its loss has no value to log."""
    return {k: v if v is None or math.isfinite(v) else None for k, v in losses.items()}
