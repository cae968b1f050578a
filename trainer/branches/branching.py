"""SERO's branches: choose roots, let the oracle continue, and make what the policy is trained on.

Promises (tests/trainer/branches/test_branching.py, test_no_leak.py):

1. Roots are drawn from a stream of their own; with SERO on or off the rollouts are the same.
2. A branch runs in an environment that no rollout uses, from a snapshot whose restored
   observation and admissible commands were compared with the record.
3. The prompt at branch state k is what the student would have seen there: its own history up to
   the root, then the branch's observations with the oracle's commands. The privileged view goes
   to the oracle and nowhere else.
4. The target is `<think></think><action>COMMAND</action>` and the end token. The loss covers
   command, closing tag and end token; z covers the command alone. Switches say otherwise
   (`trainer.branches.targets`, tests/trainer/methods/test_sero_switches.py).
5. A thought that the policy samples comes from a stream keyed by its group and its step.

Of the training loop, only this module, `trainer.branches.records`, `trainer.branches.roots`,
`trainer.branches.targets`, `trainer.methods.imitation.oracle_rows` and `trainer.worlds.oracles`
import `oracles`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
from torch import nn

from oracles.bank_format import PolicyEnd
from oracles.base import Oracle
from oracles.branch import Branch, BranchStatus, Reason
from oracles.branches import BranchRunner, run_request
from trainer import rng
from trainer.auxiliary.sero import count_roots, row_coefficients
from trainer.auxiliary.sero_weighting import Weighting
from trainer.auxiliary.sero_weights import (
    gate,
    log_z,
    success_return,
    suffix_return,
)
from trainer.branches.records import (
    GrownRoot,
    RootChoice,
    branch_metrics,
    depth_at,
    root_record,
    weighting,
)
from trainer.branches.roots import branch_request, policy_end, select_roots
from trainer.branches.targets import branch_prompts, branch_target
from trainer.config import Config, ConfigError, SeroConfig
from trainer.generation.base import GenerationRequest, Sampler
from trainer.learning.update import AuxiliaryRow, score_segments
from trainer.methods.protocol import PassLimits
from trainer.rollouts.data import Segment, Turn, make_segment
from trainer.rollouts.rollout import Student, Trajectory
from trainer.worlds.oracles import make_oracle
from trainer.worlds.tasks import WorldRecipe

THOUGHT = "sero-thought"
"""Purpose of the streams that sample thoughts."""

__all__ = [
    "Brancher",
    "GrownRoot",
    "RootChoice",
    "branch_request",
    "gated",
    "grow",
    "play_on",
    "policy_end",
    "score",
    "select_roots",
    "step_rows",
    "with_rows",
]


def grow(
    choice: RootChoice,
    trajectory: Trajectory,
    env: gymnasium.Env[str, str],
    oracle: Oracle[Any],
    student: Student,
    config: SeroConfig,
    max_target_tokens: int,
) -> GrownRoot:
    """`play_on`, and `with_rows` for every think mode but `sampled`, which needs replies."""
    root = play_on(choice, trajectory, env, oracle, config)
    before = trajectory.turns[: choice.t]
    prompts = branch_prompts(root.branch, student, config, before) if root.gate > 0 else ()
    return with_rows(root, prompts, student, config, max_target_tokens)


def play_on(
    choice: RootChoice,
    trajectory: Trajectory,
    env: gymnasium.Env[str, str],
    oracle: Oracle[Any],
    config: SeroConfig,
) -> GrownRoot:
    """Runs one branch in `env` and gates it; rows are made later."""
    branch = run_request(env, oracle, branch_request(choice, trajectory), config.max_depth)
    return gated(choice, branch, policy_end(choice, trajectory), config)


def gated(choice: RootChoice, branch: Branch, own: PolicyEnd, config: SeroConfig) -> GrownRoot:
    """A branch with its gate and without rows.

    Args:
        own: what the policy did from the root to the end of its episode.
    """
    reasons = list(branch.reasons)
    G_pi, G_O = _returns(branch, own, config)
    if not (math.isfinite(G_pi) and math.isfinite(G_O)):
        reasons.append(Reason.NON_FINITE)
    g = gate(G_pi, G_O, config.return_scale, not reasons)
    unique = tuple(dict.fromkeys(reasons))
    return GrownRoot(choice, branch, not reasons, unique, G_pi, G_O, g)


def with_rows(
    root: GrownRoot,
    prompts: Sequence[tuple[int, ...]],
    student: Student,
    config: SeroConfig,
    max_target_tokens: int,
    replies: Sequence[Sequence[int]] | None = None,
) -> GrownRoot:
    """The root with the rows of its branch; without any where its gate is 0.

    A step without a target makes the whole branch invalid: the weights of the others would be
    those of a way that the policy was not shown.

    Args:
        prompts: of each step, see `branch_prompts`.
        replies: ids that the policy sampled at each step; for think mode `sampled`.

    Raises:
        ValueError: think mode `sampled` without replies.
    """
    if not root.gate > 0:
        return root
    if replies is None:
        if config.think_mode == "sampled":
            raise ValueError("think_mode=sampled needs the policy's replies at the branch states.")
        replies = ((),) * len(prompts)
    reasons: list[str] = []
    rows: list[Segment] = []
    z_rows: list[Segment] = []
    for prompt_ids, step, reply in zip(prompts, root.branch.steps, replies, strict=True):
        target = branch_target(step, prompt_ids, student, config, max_target_tokens, reply)
        if isinstance(target, str):
            reasons.append(target)
        else:
            rows.append(make_segment(prompt_ids, target.ids, mask=target.loss_mask))
            z_rows.append(make_segment(prompt_ids, target.ids, mask=target.z_mask))
    if reasons:
        return replace(root, valid=False, reasons=tuple(dict.fromkeys(reasons)), gate=0.0)
    return replace(root, rows=tuple(rows), z_rows=tuple(z_rows))


def _before(choice: RootChoice, trajectories: Sequence[Trajectory]) -> tuple[Turn, ...]:
    """The turns of a rollout before a root."""
    return trajectories[choice.index].turns[: choice.t]


def _returns(branch: Branch, own: PolicyEnd, config: SeroConfig) -> tuple[float, float]:
    """(G_pi, G_O) over the steps that both had left at the root; raw env figures only.

    Rewards of a branch that `max_depth` cut short are compared with those of the policy's first
    steps, as many: else every step that costs something would count against the policy alone.
    """
    if config.target == "score":
        return own.score, branch.score
    oracle = [step.reward for step in branch.steps]
    left = branch.steps_left
    if left is None:
        left = max(len(own.rewards), len(oracle))
    if config.target == "reward":
        if branch.status is BranchStatus.HORIZON:
            left = len(oracle)
        return (
            suffix_return(own.rewards, 0, left, config.gamma),
            suffix_return(oracle, 0, left, config.gamma),
        )
    return (
        success_return(own.success, len(own.actions), left),
        success_return(branch.success, len(oracle), left),
    )


def score(roots: Sequence[GrownRoot], model: nn.Module, limits: PassLimits) -> list[GrownRoot]:
    """Fills `logz` of open branches under the frozen behaviour policy, in one batch.

    Once per iteration, before its first optimiser step, in eval mode and at temperature 1; once
    per epoch where `z_every` says so.
    """
    rows = [row for root in roots for row in root.z_rows]
    values = iter([log_z(row) for row in score_segments(model, rows, limits)])
    return [replace(root, logz=tuple(next(values) for _ in root.z_rows)) for root in roots]


def step_rows(
    roots: Sequence[GrownRoot], config: SeroConfig, scheme: Weighting | None = None
) -> list[AuxiliaryRow]:
    """Rows of one optimiser step with their coefficients; N_root counts this step's roots.

    Args:
        scheme: how the whole iteration's roots are weighted; None: these are all.
    """
    scheme = weighting(roots, config) if scheme is None else scheme
    gates = [root.gate for root in roots]
    counts = [[row.trained for row in root.rows] for root in roots]
    coefficients = row_coefficients(
        gates,
        [scheme.weights(root.logz) for root in roots],
        counts,
        n_root=count_roots(gates, [root.valid for root in roots], config.normaliser),
        w_min=config.w_min,
        branch_norm=config.branch_norm,
    )
    return [
        AuxiliaryRow(row, coefficient)
        for root, of_root in zip(roots, coefficients, strict=True)
        for row, coefficient in zip(root.rows, of_root, strict=True)
        if coefficient > 0.0
    ]


class Brancher:
    """Everything SERO needs besides the rollouts: its environment, oracle and settings.

    Args:
        env: of its own: branches never disturb a rollout. None where worker processes have one
            each (`auxiliary.sero.workers`).
        sampler: generates with the acting policy; needed for think mode `sampled`.
    """

    def __init__(
        self,
        config: Config,
        section: SeroConfig,
        env: gymnasium.Env[str, str] | None,
        student: Student,
        sampler: Sampler | None = None,
    ) -> None:
        if section.think_mode == "sampled" and sampler is None:
            raise ConfigError(
                "auxiliary.sero.think_mode=sampled lets the policy think at the states of a "
                "branch, and there is nothing to sample with. Use another think_mode."
            )
        if env is None and not section.workers:
            raise ValueError("Without worker processes, branches need an environment.")
        depth_at(section, config.env.max_steps, 0)
        self.config = config
        self.section = section
        self.env = env
        self.student = student
        self.sampler = sampler
        factory = partial(
            make_oracle, section.oracle, section.oracle_budget_s, config.env.id
        )  # can be sent to workers
        self.oracle = factory()
        self.runner = (
            BranchRunner(
                factory, WorldRecipe(config.env, config.env.split), workers=section.workers
            )
            if section.workers
            else None
        )

    def branch(
        self, iteration: int, trajectories: Sequence[Trajectory], model: nn.Module
    ) -> list[GrownRoot]:
        """Selects, grows and scores the roots of one iteration. `model` is not changed."""
        return self.finish(iteration, self.play(iteration, trajectories), trajectories, model)

    def play(
        self,
        iteration: int,
        trajectories: Sequence[Trajectory],
        wanted: Callable[[], bool] = lambda: True,
    ) -> list[GrownRoot]:
        """Selects the roots of one iteration and runs their branches. Needs no model.

        Args:
            wanted: asked before every branch; where it says no, the rest is left out.
        """
        choices = select_roots(trajectories, self.section, self.config.run.seed, iteration)
        if self.runner is not None:
            requests = [branch_request(c, trajectories[c.index]) for c in choices]
            branches = self.runner.run(requests, self.section.max_depth)
            return [
                gated(c, branch, policy_end(c, trajectories[c.index]), self.section)
                for c, branch in zip(choices, branches, strict=True)
            ]
        assert self.env is not None
        return [
            play_on(choice, trajectories[choice.index], self.env, self.oracle, self.section)
            for choice in choices
            if wanted()
        ]

    def finish(
        self,
        iteration: int,
        roots: Sequence[GrownRoot],
        trajectories: Sequence[Trajectory],
        model: nn.Module,
    ) -> list[GrownRoot]:
        """The roots of `play` with their rows and their z. `model` is not changed."""
        c, section = self.config, self.section
        prompts = [
            branch_prompts(root.branch, self.student, section, _before(root.choice, trajectories))
            if root.gate > 0
            else []
            for root in roots
        ]
        uids = [trajectories[root.choice.index].episode.uid for root in roots]
        replies = self._replies(iteration, uids, prompts)
        grown = [
            with_rows(root, own, self.student, section, c.rollout.max_new_tokens, thoughts)
            for root, own, thoughts in zip(roots, prompts, replies, strict=True)
        ]
        return score(grown, model, PassLimits.of(c, self.student))

    def close(self) -> None:
        """Ends worker processes and closes the environment; a second call does nothing."""
        if self.runner is not None:
            self.runner.close()
        if self.env is not None:
            self.env.close()

    def _replies(
        self, iteration: int, uids: Sequence[str], prompts: Sequence[Sequence[tuple[int, ...]]]
    ) -> Sequence[Sequence[tuple[int, ...]] | None]:
        """What the policy says at every step of the open branches, sampled in one batch; nothing
        where the prompt is too long. None in other think modes."""
        c = self.config
        if self.section.think_mode != "sampled" or self.sampler is None:
            return [None for _ in prompts]
        places = [
            (r, k)
            for r, own in enumerate(prompts)
            for k, prompt_ids in enumerate(own)
            if self.student.fits(prompt_ids)
        ]
        requests = [
            GenerationRequest(
                prompts[r][k],
                rng.stream(c.run.seed, iteration, uids[r], 0, k, THOUGHT),
                c.rollout.max_new_tokens,
                c.rollout.temperature,
            )
            for r, k in places
        ]
        generated = self.sampler.generate(requests) if requests else []
        found = {place: reply.ids for place, reply in zip(places, generated, strict=True)}
        return [[found.get((r, k), ()) for k in range(len(own))] for r, own in enumerate(prompts)]

    def metrics(
        self, roots: Sequence[GrownRoot], groups: int, iteration: int = 0
    ) -> dict[str, Any]:
        """See `trainer.branches.records.branch_metrics`.

        Args:
            groups: that the roots were selected from; sampling in rounds may keep fewer, or more,
                than `rollout.tasks`.
        """
        return branch_metrics(roots, self.section, groups, self._depth(iteration))

    def records(
        self,
        roots: Sequence[GrownRoot],
        trajectories: Sequence[Trajectory],
        iteration: int = 0,
    ) -> list[dict[str, Any]]:
        """One record a root for `roots.jsonl`; the first open one with all its texts."""
        first = next((i for i, root in enumerate(roots) if root.gate > 0), None)
        scheme = weighting(roots, self.section, self._depth(iteration))
        return [
            root_record(root, trajectories[root.choice.index], scheme, i == first)
            for i, root in enumerate(roots)
        ]

    def _depth(self, iteration: int) -> int | None:
        return depth_at(self.section, self.config.env.max_steps, iteration)
