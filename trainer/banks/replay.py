"""Copies of one checkpoint train on the same branches of a bank, each under another weight rule.

Promises (tests/trainer/banks/test_bank_replay*.py):

1. Every copy starts from the same weights with a new optimiser and sees the same branches in the
   same order. On a CPU two replays of one bank end with the same parameters, bit for bit.
2. A rule ends with the same parameters alone as among others, in whatever order they run.
3. Where two rules weigh every branch alike (branches of one step; decay 0 and the root alone) they
   end with the same parameters.
4. In mode `aux_only` nothing is played and no reward reaches the policy.

An optimiser step is that of a run: parts, counts, clipping and schedule are those of
`trainer.learning.learner`.
"""

from __future__ import annotations

import gc
import hashlib
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from agent_envs.errors import SeroError
from oracles.bank import Bank
from trainer import rng
from trainer.auxiliary.sero import count_roots
from trainer.banks.policy import load_policy_of
from trainer.banks.replay_figures import figures_of, parameters_digest, spread_of, summary
from trainer.banks.replay_settings import ReplaySettings, configured, section_of
from trainer.banks.rows import grown_roots
from trainer.banks.talks import check_collected, turns_before
from trainer.branches.branching import score
from trainer.branches.records import GrownRoot, branch_metrics, depth_at
from trainer.config import Config, SeroConfig
from trainer.evaluation.evaluate import compare_outcomes
from trainer.iteration import Trainer
from trainer.methods.protocol import PassLimits, Rollouts, Setup
from trainer.methods.sero import Sero
from trainer.metrics import MetricsLog, Phases
from trainer.models.tiny import load_policy, save_policy
from trainer.rollouts.rollout import Student
from trainer.runs.checkpoint import latest_checkpoint, load_checkpoint
from trainer.runs.folder import RunFolder, dtype_of, make_student, usable_device
from trainer.runs.info import write_json
from trainer.runs.outputs import ready_folder
from trainer.worlds.environments import TaskSet
from trainer.worlds.tasks import check_splits, open_tasks

__all__ = [
    "BankReplay",
    "Replay",
    "check_new",
    "open_replay",
    "places",
    "replay_all",
]

ORDER = "bank-order"
"""Purpose of the streams that shuffle the branches."""
_UNKNOWN = ("sero/eligible_share", "sero/restore_s", "sero/oracle_s", "sero/env_s")
"""What a bank does not say: groups that had no root, and times."""


class BankReplay(Sero):
    """SERO whose roots come from a bank.

    Args:
        bank: all its roots; scored already where `rescore` is false.
        per_iteration: how many an iteration takes.
        rescore: whether z is measured before each iteration.
    """

    def __init__(
        self,
        setup: Setup,
        section: SeroConfig,
        bank: Sequence[GrownRoot],
        per_iteration: int,
        rescore: bool,
    ) -> None:
        super().__init__(replace(setup, make_env=None, sampler=None), section)
        self.bank = bank
        self.per_iteration = per_iteration
        self.rescore = rescore

    def prepare(self, rollouts: Rollouts, model: nn.Module) -> None:
        super().prepare(rollouts, model)
        first = rollouts.iteration * self.per_iteration
        seed = self.setup.config.run.seed
        chosen = places(len(self.bank), first, self.per_iteration, seed)
        self.roots = [self.bank[i] for i in chosen]
        if self.rescore:
            limits = PassLimits.of(self.setup.config, self.setup.student)
            self.roots = score(self.roots, model, limits)

    def metrics(self) -> dict[str, Any]:
        """Those of SERO, and what the rule makes of the branches at hand; see `spread_of`."""
        section, roots = self.section, self.roots
        depth = depth_at(section, self.setup.config.env.max_steps, self._iteration)
        found = branch_metrics(roots, section, 0, depth)
        gates, valid = [root.gate for root in roots], [root.valid for root in roots]
        return {
            **{name: value for name, value in found.items() if name not in _UNKNOWN},
            "replay/branches": [root.choice.index for root in roots],
            "replay/n_root": count_roots(gates, valid, section.normaliser),
            **spread_of(roots, section, depth),
        }


def places(n: int, first: int, count: int, seed: int) -> list[int]:
    """`count` numbers below `n` of the schedule, from place `first` on.

    The schedule is endless: one permutation of all numbers after another, each from the stream
    (seed, epoch, "bank-order").
    """
    epochs = range(first // n, (first + count - 1) // n + 1)
    order = {e: rng.stream(seed, e, purpose=ORDER).permutation(n) for e in epochs}
    return [int(order[place // n][place % n]) for place in range(first, first + count)]


@dataclass(frozen=True, slots=True)
class Replay:
    """A bank and a checkpoint that fit each other, and how the one is replayed on the other.

    Attributes:
        config: of all copies: without auxiliary objectives, which `BankReplay` stands for.
        section: what all rules share.
        policy, checkpoint: folder of the checkpoint, and SHA-256 (hex) of its manifest.
        initial: folder of the policy that the run began with, the reference of a KL.
        roots: of the whole bank, tokenised; with their z where it is `stored`.
        iterations, per_iteration: of each copy; branches in each iteration.
    """

    settings: ReplaySettings
    config: Config
    section: SeroConfig
    policy: Path
    checkpoint: str
    initial: Path
    task_set: TaskSet
    roots: Sequence[GrownRoot]
    iterations: int
    per_iteration: int

    def trainer(self, name: str, folder: Path) -> Trainer:
        """A new copy under a rule."""
        c = self.config
        model, tokenizer = load_policy(self.policy)
        model = model.to(c.run.device)
        reference = None
        if c.objective.kl_coef > 0:
            reference = load_policy(self.initial, dtype=dtype_of(c))[0].to(c.run.device)
            reference.requires_grad_(False)
        trainer = Trainer(
            c, RunFolder(folder), model, tokenizer, task_set=self.task_set, reference=reference
        )
        trainer.learner.methods = (
            BankReplay(
                Setup(c, trainer.student, model),
                section_of(name, self.section, self.settings),
                self.roots,
                self.per_iteration,
                self.settings.z == "rescore",
            ),
        )
        return trainer

    def before(self, folder: Path) -> dict[str, dict[str, Any]]:
        """The evaluation of the checkpoint itself, by split; empty where none is wanted."""
        if not self.settings.eval_tasks:
            return {}
        with _threads(self.config):
            return self.trainer(self.settings.rules[0], folder).evaluate(0)

    def train(
        self,
        name: str,
        folder: Path,
        before: Mapping[str, Mapping[str, Any]],
        on_iteration: Callable[[int], None] | None = None,
    ) -> dict[str, Any]:
        """Trains one copy and returns its summary; the rest lies in `folder`.

        Args:
            before: from `before`.
            on_iteration: called with the number of finished iterations.
        """
        with _threads(self.config):
            return self._train(name, folder, before, on_iteration)

    def _train(
        self,
        name: str,
        folder: Path,
        before: Mapping[str, Mapping[str, Any]],
        on_iteration: Callable[[int], None] | None,
    ) -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        trainer = self.trainer(name, folder)
        log = MetricsLog(folder / "metrics.jsonl")
        metrics: list[dict[str, Any]] = []
        for iteration in range(self.iterations):
            if self.settings.mode == "aux+rl":
                metrics.append(trainer.iterate(iteration))
            else:
                found = trainer.learner.learn(iteration, (), Phases())
                metrics.append({"iteration": iteration, **found})
            log.write(metrics[-1])
            if on_iteration is not None:
                on_iteration(iteration + 1)
        after = trainer.evaluate(self.iterations) if before else {}
        if self.settings.save:
            save_policy(folder / "model", trainer.learner.model, trainer.student.tokenizer)
        return {
            **summary(metrics),
            "optimizer_steps": trainer.learner.counters.optimizer_steps,
            "skipped_steps": trainer.learner.counters.skipped_steps,
            "nonfinite_steps": trainer.learner.counters.nonfinite_steps,
            "parameters_sha256": parameters_digest(trainer.learner.model),
            "after": {
                split: figures_of(result)
                | {"against_before": compare_outcomes(before[split], result)}
                for split, result in after.items()
            },
        }


@contextmanager
def _threads(config: Config) -> Iterator[None]:
    """The run's number of threads, on which sums may depend."""
    threads = torch.get_num_threads()
    torch.set_num_threads(config.run.threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        gc.collect()  # a copy holds itself in a circle; the next should not wait for it


def open_replay(bank: Bank, run: Path, settings: ReplaySettings) -> Replay:
    """Everything that is the same for all rules, once it is known to fit.

    Raises:
        ConfigError: a setting is out of range, or excludes another of the run's.
        BankError: the bank is of another environment or other data than the run, its tasks are
            those of the evaluation, or it has no branch with an open gate.
        RunFolderError, CheckpointError, ModelFolderError, MissingData: name what is wrong.
    """
    from trainer.banks.fit import check_fit, check_open

    settings.check()
    folder = RunFolder(run)
    trained = folder.read_config()
    usable_device(trained.run.device)
    path = (
        latest_checkpoint(folder.checkpoints)
        if settings.checkpoint is None
        else folder.checkpoints / f"{settings.checkpoint:06d}"
    )
    load_checkpoint(path)  # verifies its files
    config, section = configured(trained, settings)
    task_set = open_tasks(config.env)
    check_fit(bank, config, task_set, evaluated=settings.eval_tasks > 0)
    if settings.eval_tasks:
        check_splits(config, task_set)
    model, tokenizer = load_policy(path, verified=True)
    student = make_student(config, model, tokenizer)
    digest = hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest()
    before = None
    if student.context == "chat":
        check_collected(bank, digest)
        split = bank.header.env_kwargs.get("split")
        before = turns_before(load_policy_of(run, split, int(path.name)), bank.rows)
    roots = grown_roots(bank.rows, student, section, config.rollout.max_new_tokens, before)
    check_open(roots, section)
    per_iteration = config.rollout.tasks if settings.roots is None else settings.roots
    replay = Replay(
        settings,
        config,
        section,
        path,
        digest,
        folder.initial,
        task_set,
        roots,
        settings.iterations or math.ceil(len(roots) / per_iteration),
        per_iteration,
    )
    for name in settings.rules:
        section_of(name, section, settings)
    return (
        replace(replay, roots=_stored(replay, model, student)) if settings.z == "stored" else replay
    )


def check_new(out: Path) -> None:
    """Raises SeroError where `out` exists."""
    if out.exists():
        raise SeroError(f"{out} exists, and a replay never changes another. Name a new folder.")


def replay_all(
    replay: Replay,
    bank: Bank,
    out: Path,
    on_iteration: Callable[[str, int], None] | None = None,
) -> dict[str, Any]:
    """Trains a copy under every rule; returns what is written to `out`/replay.json.

    The folder appears when all is done: a replay that is broken off leaves none. It has, for each
    rule, metrics.jsonl, eval/ and, if asked for, model/; and before/eval/.

    Args:
        on_iteration: called with the rule and its finished iterations.

    Raises:
        SeroError: `out` exists, or cannot be written.
    """
    check_new(out)
    ready_folder(out.parent, "--out")
    work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        before = replay.before(work / "before")
        rules = {}
        for name in replay.settings.rules:

            def tell(done: int, name: str = name) -> None:
                if on_iteration is not None:
                    on_iteration(name, done)

            rules[name] = replay.train(name, work / name, before, tell)
        report = {
            "format": 1,
            "bank": _bank_json(bank),
            "checkpoint": {
                "run": replay.policy.parent.parent.resolve().name,
                "iteration": int(replay.policy.name),
                "sha256": replay.checkpoint,
                "collected_the_bank": bank.header.provenance.get("checkpoint") == replay.checkpoint,
            },
            "settings": _settings_json(replay),
            "gates": dict(Counter(root.gate_reason for root in replay.roots)),
            "invalid_reasons": dict(Counter(r for root in replay.roots for r in root.reasons)),
            "rows": sum(len(root.rows) for root in replay.roots),
            "before": {split: figures_of(result) for split, result in before.items()},
            "rules": rules,
        }
        write_json(work / "replay.json", report)
        work.chmod(0o755)
        check_new(out)
        os.replace(work, out)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return report


def _stored(replay: Replay, model: nn.Module, student: Student) -> Sequence[GrownRoot]:
    """The roots with z under the checkpoint."""
    limits = PassLimits.of(replay.config, student)
    model = model.to(replay.config.run.device)
    with _threads(replay.config):
        return score(replay.roots, model, limits)


def _settings_json(replay: Replay) -> dict[str, Any]:
    """What was asked for, with everything that was left to the run filled in."""
    c = replay.config
    return {
        **asdict(replay.settings),
        "rules": list(replay.settings.rules),
        "iterations": replay.iterations,
        "roots": replay.per_iteration,
        "weight": replay.section.weight,
        "lr": c.optim.lr,
        "seed": c.run.seed,
        "optim": asdict(c.optim),
        "objective": c.objective.name,
        "section": asdict(replay.section),
    }


def _bank_json(bank: Bank) -> dict[str, Any]:
    header = bank.header
    names = ("env_id", "data_revision", "manifest_hash", "oracle", "policy", "seed")
    told = {name: getattr(header, name) for name in names}
    return {"digest": bank.digest, "branches": len(bank.rows), **told}
