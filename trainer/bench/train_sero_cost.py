"""SERO's whole cost as a share of an iteration at reference proportions.

The reference: 16 groups of 8 trajectories with 20 turns, and a branch of 8 steps at a root of each
group (128 trajectories x 20 turns, 16 roots x 8 steps). It is an iteration of
`trainer.iteration.Trainer` as a run makes it, rollouts included, with the tiny default policy after
a short warm start on the small preset's households.

Counted as SERO's are

- `branches`: choosing roots, restoring them, asking the planner, acting;
- `scoring`: prompts and targets of the branches, and z under the frozen policy;
- `rows`: forward and backward of the branches' rows;
- `snapshots`: of every state of the rollouts, without which no root could be restored;
- `records`: what is written of the roots.

All of it is run in its place, nothing beside the rollouts' scoring (`overlap: false`) and no row
left out for its small weight (`w_min: 0`), so the share is an upper bound of what a run pays.
Of each group every second trajectory counts as won, so that the base learns from every turn.
Games whose plan has exactly `depth` steps and roots at the first turn keep the proportions exact.
A larger policy makes everything dearer that is a pass of the policy, in rollouts and rows alike,
and nothing else, so the parts of the share that are no passes shrink.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

import agent_envs
from agent_envs.errors import DataError
from trainer.config import Config, load_config
from trainer.iteration import Trainer
from trainer.methods.protocol import PassLimits, Setup, Step
from trainer.methods.sero import Sero
from trainer.rollouts.dynamic_sampling import Collected
from trainer.rollouts.rollout import Trajectory
from trainer.runs.folder import RunFolder
from trainer.supervised.warmstart import warm_policy
from trainer.worlds.tasks import make_env, open_tasks

__all__ = ["QUICK", "REFERENCE", "Proportions", "measure", "share_of"]

Progress = Callable[[str], None]
PARTS = ("branches", "scoring", "rows", "snapshots", "records")


@dataclass(frozen=True, slots=True)
class Proportions:
    """Sizes of the iteration, and how long the policy is warmed up.

    Attributes:
        groups, rollouts: trajectories are groups x rollouts; each group has a root.
        turns: steps of an episode.
        depth: steps of a branch.
        games: generated games among which those with plans of `depth` steps are looked for.
        demonstrations, warm_steps, batch: of the warm start; enough to learn the form of a reply,
            so that replies are as long as those of a trained policy.
        hidden_size, layers: of the policy.
        repeats: iterations that count; one before them does not.
    """

    groups: int = 16
    rollouts: int = 8
    turns: int = 20
    depth: int = 8
    games: int = 400
    demonstrations: int = 64
    warm_steps: int = 60
    batch: int = 16
    hidden_size: int = 128
    layers: int = 3
    repeats: int = 2


REFERENCE = Proportions()
QUICK = Proportions(
    groups=2, rollouts=2, turns=9, games=60, demonstrations=4, warm_steps=2, batch=2,
    hidden_size=32, layers=2, repeats=1,
)  # fmt: skip


class _HalfWon(Trainer):
    """Counts every second trajectory of a group as won, whatever it was: without that a policy
    that never wins has no advantages, and the base's update would cost nothing."""

    def collect(self, iteration: int) -> Collected:
        found = super().collect(iteration)
        played = [
            _won(trajectory) if place % 2 else trajectory
            for place, trajectory in enumerate(found.sampled)
        ]
        return replace(found, kept=played, sampled=played)


def _won(trajectory: Trajectory) -> Trajectory:
    *before, last = trajectory.turns
    turns = (*before, replace(last, success=True))
    return replace(trajectory, success=True, turns=turns)


class _TimedSero(Sero):
    """Knows how long its passes took."""

    rows_s = 0.0
    trained_rows = 0

    def has_pass(self, step: Step) -> bool:
        start = time.perf_counter()
        found = super().has_pass(step)
        self.rows_s += time.perf_counter() - start
        return found

    def backward(self, model: nn.Module, step: Step, limits: PassLimits) -> float:
        start = time.perf_counter()
        loss = super().backward(model, step, limits)
        self.rows_s += time.perf_counter() - start
        self.trained_rows += len(self.rows(step))
        return loss


def measure(sizes: Proportions, progress: Progress, *, seed: int = 0) -> dict[str, Any]:
    """Runs iterations with SERO and returns what each part of them cost.

    Args:
        progress: called with a line of text as the measurement goes on.

    Raises:
        DataError: too few of the generated games have plans of `depth` steps.
    """
    config = _config(sizes, seed)
    tasks = open_tasks(config.env)
    chosen = _of_depth(config, tasks, sizes)
    progress("warm start")
    model, tokenizer, _ = warm_policy(config, tasks)
    with TemporaryDirectory() as folder:
        trainer = _HalfWon(config, RunFolder(Path(folder)), model, tokenizer, task_set=tasks)
        with closing(trainer):
            sero = _timed(trainer)
            trainer.task_ids = chosen
            measured = []
            for number in range(sizes.repeats + 1):
                progress(f"iteration with SERO {number}/{sizes.repeats}")
                measured.append(_iterate(trainer, sero, number))
    measured = measured[1:]
    shares = [share_of(one) for one in measured]
    middle = measured[shares.index(statistics.median_low(shares))]
    return {
        "share": share_of(middle),
        "share_spread": [min(shares), max(shares)],
        "phases": {name: middle[name] for name in (*PARTS, "rollout", "update", "other")},
        "iteration_s": middle["iteration_s"],
        "turns": middle["turns"],
        "trajectories": sizes.groups * sizes.rollouts,
        "learnt_tokens": middle["learnt_tokens"],
        "reply_tokens": middle["reply_tokens"],
        "run_tokens": middle["run_tokens"],
        "played_tokens": middle["played_tokens"],
        "roots": middle["roots"],
        "rows_trained": middle["rows_trained"],
        "branch_steps": middle["branch_steps"],
        "reply_tokens_mean": middle["reply_tokens_mean"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "proportions": asdict(sizes),
    }


def share_of(iteration: Mapping[str, Any]) -> float:
    """SERO's seconds over the iteration's."""
    seconds: float = sum(iteration[name] for name in PARTS) / iteration["iteration_s"]
    return seconds


def _config(sizes: Proportions, seed: int) -> Config:
    return load_config(
        {},
        {
            "run.seed": seed,
            "env.generated.train": sizes.games,
            "env.generated.valid_seen": 1,
            "env.generated.valid_unseen": 1,
            "env.max_steps": sizes.turns,
            "model.hidden_size": sizes.hidden_size,
            "model.layers": sizes.layers,
            "model.intermediate_size": 3 * sizes.hidden_size,
            "model.tokenizer_games": sizes.demonstrations,
            "warmstart.demonstrations": sizes.demonstrations,
            "warmstart.steps": sizes.warm_steps,
            "warmstart.batch": sizes.batch,
            "warmstart.warmup_steps": min(20, sizes.warm_steps),
            "rollout.tasks": sizes.groups,
            "rollout.rollouts": sizes.rollouts,
            "optim.lr": 1e-6,  # published; what is timed does not depend on it
            "auxiliary.sero.weight": 0.1,
            "auxiliary.sero.scheme": "first",
            "auxiliary.sero.max_depth": sizes.depth,
            "auxiliary.sero.w_min": 0.0,
            "auxiliary.sero.overlap": False,
            "eval.splits": ["valid_seen"],
        },
    )


def _of_depth(config: Config, tasks: Any, sizes: Proportions) -> Sequence[str]:
    """Games whose plan has `depth` steps."""
    ids = tasks.task_ids(config.env.split)
    found = [i for i in ids if len(tasks.walkthrough(i) or ()) == sizes.depth][: sizes.groups]
    if len(found) < sizes.groups:
        raise DataError(
            f"{len(found)} of {len(ids)} games have plans of {sizes.depth} steps, "
            f"{sizes.groups} are needed. Generate more games, or ask for another depth."
        )
    return found


def _timed(trainer: Trainer) -> _TimedSero:
    """The trainer's method, replaced by one that is timed."""
    for method in trainer.methods:
        method.close()
    config = trainer.config
    section = config.auxiliary.sero
    assert section is not None

    def new_env() -> Any:
        return make_env(config.env, trainer.task_set, config.env.split)

    setup = Setup(config, trainer.student, trainer.learner.model, new_env, trainer.sampler)
    sero = _TimedSero(setup, section)
    trainer.methods = [sero]
    trainer.learner.methods = (sero,)
    return sero


def _iterate(trainer: Trainer, sero: _TimedSero, number: int) -> dict[str, Any]:
    sero.rows_s, sero.trained_rows = 0.0, 0
    m = trainer.iterate(number)
    found = {
        "branches": m["sero/branch_s"],
        "scoring": m["time/branch"] - m["sero/branch_s"],
        "rows": sero.rows_s,
        "snapshots": m["turns"] * _snapshot_s(trainer),
        "records": m["time/record"],
        "iteration_s": m["iteration_s"],
    }
    found["rollout"] = m["time/collect"] - found["snapshots"]
    found["update"] = m["time/update"] - found["rows"]
    found["other"] = m["iteration_s"] - sum(
        m[f"time/{name}"] for name in ("collect", "branch", "update", "record")
    )
    return found | {
        "turns": m["turns"],
        "learnt_tokens": trainer.learner.work.trained,
        "run_tokens": trainer.learner.work.tokens,
        "reply_tokens": m["response_tokens"],
        "played_tokens": m["prompt_tokens"] + m["response_tokens"],
        "roots": m["sero/roots"],
        "rows_trained": sero.trained_rows,
        "branch_steps": m["sero/branch_steps"],
        "reply_tokens_mean": m["response_tokens"] / m["turns"],
    }


def _snapshot_s(trainer: Trainer, times: int = 200) -> float:
    """Seconds of one snapshot, at a game's start."""
    env = trainer.envs[0]
    env.reset(options={"task_id": trainer.task_ids[0]})
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        agent_envs.snapshot(env)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
