"""Everything that the benchmark of an oracle says of a trained policy.

The policy itself is only read: what needs gradients, and what trains, has a float32 copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from oracles.bank_format import BankRow
from oracles.bench.figures import GROUPS, ROLLOUTS, IterationCosts, Probe
from trainer.banks.policy import TrainedPolicy
from trainer.banks.rows import grown_roots
from trainer.banks.talks import turns_before
from trainer.branches.branching import score
from trainer.branches.records import GrownRoot
from trainer.config import Config, SeroConfig
from trainer.generation.hf import HFSampler
from trainer.methods.protocol import PassLimits
from trainer.oracle_bench.drift import drift
from trainer.oracle_bench.reach import agreement, reach, too_long
from trainer.oracle_bench.scale import (
    BaseIteration,
    SeroPass,
    base_config,
    base_iteration,
    in_blocks,
    scale,
    sero_pass,
    synchronised,
)
from trainer.runs.folder import make_student

__all__ = ["ModelFigures", "iteration_costs", "model_figures", "section_of"]

Target = Literal["success", "score", "reward"]
OnPart = Callable[[str], None]

NO_ROOTS = "there are no roots"
NO_OPEN = "no branch is open: the oracle is nowhere better than the policy"
NO_FIT = (
    "no branch is open: {} would be, but for a prompt or a target that is longer than "
    "prompt.max_prompt_tokens or rollout.max_new_tokens allow"
)
NO_GRADIENT = "the base objective has no gradient: {} iterations had no difference to learn from"


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Plain data, but for `iteration`; None where a figure has no value, which `reasons` explains.

    Attributes:
        reach: see `trainer.oracle_bench.reach.Reach`.
        scale: see `trainer.oracle_bench.scale.Scale`.
        format: see `trainer.oracle_bench.drift.Drift`.
        iteration: seconds measured while these were made.
        reasons: by the name of the figure that is None, why.
    """

    reach: dict[str, Any] | None
    scale: dict[str, Any] | None
    format: dict[str, Any] | None
    iteration: IterationCosts
    reasons: Mapping[str, str]


def model_figures(
    trained: TrainedPolicy,
    probes: Sequence[Probe],
    *,
    seed: int = 0,
    target: Target = "success",
    return_scale: float = 1.0,
    drift_steps: int = 20,
    drift_episodes: int = 32,
    agreement_states: int = 128,
    on_part: OnPart | None = None,
) -> ModelFigures:
    """Reach, scale and drift of a policy on the branches of an oracle, and what they cost.

    Args:
        trained: is not changed, its model included.
        probes: roots of the policy's own failed episodes, of `TrainedPolicy.walks`.
        seed: of those walks, and of what is drawn here: states to ask, episodes, the order of
            roots.
        target, return_scale: of the gate.
        on_part: called with the name of each part before it begins.

    Raises:
        ConfigError: the run's base objective cannot be played with its settings.
        BankError: a conversation before a root does not come out as it did.
    """
    tell = on_part or (lambda name: None)
    config = base_config(trained.config, trained.split)
    section = section_of(trained.config, target, return_scale)
    student = make_student(config, trained.model, trained.tokenizer)
    limits = PassLimits.of(config, student)
    reasons: dict[str, str] = {}

    tell("reach")
    rows = [_bank_row(probe, trained, seed) for probe in probes]
    # In a conversation a prompt holds what the policy said before the root.
    before = turns_before(trained, rows) if student.context == "chat" else None
    start = synchronised(trained.model)
    roots = grown_roots(rows, student, section, config.rollout.max_new_tokens, before)
    roots = score(roots, trained.model, limits)
    scoring_s = synchronised(trained.model) - start
    sampler = HFSampler(trained.model, student.stop_ids, pad_id=student.pad_id)
    asked = agreement(
        roots,
        student,
        section,
        sampler,
        config.rollout.max_new_tokens,
        states=agreement_states,
        seed=seed,
        before=[() if before is None else before(row) for row in rows],
    )
    reached = reach(roots, section.w_min, asked)
    if reached is None:
        reasons["reach"] = _why_closed(roots)

    tell("scale")
    working = _copy(trained.model)
    reference = trained.model if config.objective.kl_coef > 0 else None
    base = base_iteration(config, working, trained.tokenizer, trained.tasks, reference)
    scaled = took = None
    if not roots:
        reasons["scale"] = NO_ROOTS
    elif base.norm == 0.0:
        reasons["scale"] = NO_GRADIENT.format(base.attempts)
        block = in_blocks(roots, base.eligible)[0]
        took = sero_pass(block, section, config, student, working)
    else:
        scaled, took = scale(base, roots, section, config, student, working)
    working.zero_grad(set_to_none=True)

    tell("format")
    drifted = drift(
        config,
        working,
        trained.tokenizer,
        trained.tasks,
        roots,
        section,
        steps=drift_steps,
        episodes=drift_episodes,
        seed=seed,
    )
    if drifted is None:
        reasons["format"] = _why_closed(roots)
    return ModelFigures(
        reach=None if reached is None else reached.as_json(),
        scale=None if scaled is None else scaled.as_json(),
        format=None if drifted is None else drifted.as_json(),
        iteration=iteration_costs(
            base, took, scoring_s / len(roots) if roots else 0.0, config.optim.epochs
        ),
        reasons=reasons,
    )


def iteration_costs(
    base: BaseIteration, took: SeroPass | None, scoring_s: float, epochs: int
) -> IterationCosts:
    """What was measured, projected to `GROUPS` x `ROLLOUTS` episodes and a root in each group.

    Optimiser steps themselves, without their passes, are left out on both sides.

    Args:
        took: the passes over some roots; None: there was no root.
        scoring_s: seconds for one root until its z is known.
        epochs: of an iteration; every one of them trains the rows again.
    """
    episodes = GROUPS * ROLLOUTS / base.trajectories
    iteration_s = (base.rollout_s + base.update_s) * episodes
    if took is None:
        return IterationCosts(iteration_s, "measured")
    model_s = GROUPS * (scoring_s + epochs * took.seconds / took.roots)
    tokens = GROUPS * took.tokens / took.roots
    share = tokens / (base.tokens * episodes) if base.tokens else None
    return IterationCosts(iteration_s, "measured", model_s, share)


def section_of(
    config: Config, target: Target, return_scale: float, *, trained: bool = False
) -> SeroConfig:
    """SERO's settings: those of the run where it trained with SERO, with this gate.

    Thoughts that a policy would have to sample are left empty where branches are looked at as they
    are.

    Args:
        trained: whether runs are trained with it, which sample thoughts where theirs did.
    """
    section = config.auxiliary.sero or SeroConfig()
    gamma = section.gamma if target == "reward" else 1.0
    section = replace(section, target=target, return_scale=return_scale, gamma=gamma)
    looked_at = section.think_mode == "sampled" and not trained
    return replace(section, think_mode="empty") if looked_at else section


def _why_closed(roots: Sequence[GrownRoot]) -> str:
    misfits = too_long(roots)
    if misfits:
        return NO_FIT.format(misfits)
    return NO_OPEN if roots else NO_ROOTS


def _bank_row(probe: Probe, trained: TrainedPolicy, seed: int) -> BankRow:
    walk = probe.walk
    root = walk.seen[probe.t]
    return BankRow(probe.branch, root, probe.own, "", trained.name, seed, walk.rollout)


def _copy(model: nn.Module) -> nn.Module:
    """To be trained: parameters in float32, and no gradient yet."""
    copy = deepcopy(model)
    for parameter in copy.parameters():
        parameter.data = parameter.data.float()
        parameter.grad = None
    return copy
