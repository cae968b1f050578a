"""SEED's first stage: teaching a policy to write hindsight skills, before reinforcement learning.

    python -m trainer.supervised.skill_sft --policy FOLDER --turns RUN/turns/000000.parquet
        --analyser my_module:make_analyser --out FOLDER

Trajectories of the base policy (a run with `run.save_turns`) are analysed, as a rule by a larger
model; every answer of the right form is a training pair, whatever the outcome and however good the
skill. The trained policy starts both the actor and the analyser of a SEED run (`model.path`).

It simplifies: one process, no packing of rows, full fine-tuning, AdamW and schedule of the warm
start (`trainer.supervised.warmstart.supervised`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from torch import nn

from trainer import rng
from trainer.auxiliary.hindsight_sft import SkillPair, sft_nll, skill_pair, split_pairs
from trainer.auxiliary.skills import SkillMode
from trainer.config import Config, ConfigError, WarmstartConfig
from trainer.config.auxiliary.skills import POLICY
from trainer.config.sections import positive
from trainer.learning.update import score_segments
from trainer.methods.protocol import PassLimits
from trainer.methods.skills.contexts import Attempt, analyse_all, attempts_of
from trainer.models.policy import pad_rows
from trainer.models.text_model import PolicyTextModel, TextModel, encode_chat, load_text_model
from trainer.models.tiny import load_policy, save_policy
from trainer.rollouts.data import Segment, Turn, make_segment, read_turns
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import encode_rendered, end_of_turn
from trainer.runs.folder import make_student, usable_device
from trainer.runs.info import write_json
from trainer.supervised.warmstart import Progress, supervised

__all__ = ["Collected", "SftSettings", "collect_pairs", "joined", "pair_segment", "skill_sft"]

PURPOSE = "skill-sft"


@dataclass(frozen=True, slots=True)
class SftSettings:
    """How the pairs are trained on."""

    epochs: int = 3  # published
    batch: int = 8  # published
    lr: float = 5e-6  # published
    warmup_steps: int = 0  # ours
    max_tokens: int = 8192  # published: 8,192 to 12,288; a longer pair is left out
    train_share: float = 0.9  # published
    hold_out_tasks: bool = False  # published split: single trajectories; true: whole tasks
    seed: int = 0

    def check(self) -> None:
        """Raises ConfigError for numbers that cannot be used."""
        for name in ("epochs", "batch", "lr", "max_tokens"):
            positive(name, getattr(self, name))
        positive("warmup_steps", self.warmup_steps, zero=True)
        if not 0.0 < self.train_share < 1.0:
            raise ConfigError(
                f"train_share={self.train_share} must lie between 0 and 1, both excluded: some "
                "pairs are trained on and the others held out."
            )


@dataclass(frozen=True, slots=True)
class Collected:
    """Training pairs from recorded turns.

    Attributes:
        pairs: one a trajectory whose answer had the right form.
        task_ids: of each pair's trajectory.
        trajectories: how many were analysed.
    """

    pairs: tuple[SkillPair, ...]
    task_ids: tuple[str, ...]
    trajectories: int


def collect_pairs(
    turns: Sequence[Turn],
    model: TextModel,
    *,
    mode: SkillMode = "episode_only",
    text_limit: int | None = None,
    calls: int = 1,
    seed: int = 0,
    file: int = 0,
) -> Collected:
    """Has every trajectory analysed; keeps the answers whose form is right.

    Args:
        turns: of whole trajectories, in any order; of one file, as ids repeat in others.
        model: the analyser.
        mode, text_limit: see `trainer.auxiliary.analyser.analyser_prompt`.
        calls: answers asked for at most, of each trajectory.
        seed, file: key the draws, where the analyser draws from streams; `file` is the number of
            the file among several.

    Raises:
        RepeatedTurn: a turn is there twice.
    """

    def stream(attempt: Attempt, call: int) -> np.random.Generator:
        task = f"{attempt.uid}/{attempt.tid}"
        return rng.stream(seed, file, task, turn=call, purpose=PURPOSE)

    attempts = attempts_of(turns)
    found = analyse_all(model, attempts, stream, mode=mode, calls=calls, text_limit=text_limit)
    pairs, task_ids = [], []
    for attempt, text in zip(attempts, found.texts, strict=True):
        pair = None
        if text is not None:
            pair = skill_pair(attempt.episode, text, mode, text_limit=text_limit)
        if pair is not None:
            pairs.append(pair)
            task_ids.append(turns[attempt.rows[0]].task_id)
    return Collected(tuple(pairs), tuple(task_ids), len(attempts))


def joined(parts: Sequence[Collected]) -> Collected:
    """What was collected from several files, as one."""
    return Collected(
        tuple(pair for part in parts for pair in part.pairs),
        tuple(task for part in parts for task in part.task_ids),
        sum(part.trajectories for part in parts),
    )


def pair_segment(pair: SkillPair, student: Student) -> Segment:
    """The analyser's prompt, and the answer with its end token, which alone is trained."""
    prompt = encode_chat(student.tokenizer, list(pair.prompt))
    answer = encode_rendered(pair.response, student.tokenizer, "text")
    end = end_of_turn(student.tokenizer, student.stop_ids)
    return make_segment(prompt, [*answer, student.end_id if end is None else end])


def skill_sft(
    model: nn.Module,
    student: Student,
    collected: Collected,
    settings: SftSettings | None = None,
    *,
    micro_batch_tokens: int = 16_384,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fine-tunes `model` on the pairs, in place.

    Returns:
        The report: counts (`nonfinite_steps` of `steps` were refused), and mean NLL a token of both
        parts before and after.

    Raises:
        ConfigError: too few pairs to train on some and hold out others.
    """
    c = SftSettings() if settings is None else settings
    c.check()
    rows = [pair_segment(pair, student) for pair in collected.pairs]
    fits = [len(row.ids) <= c.max_tokens for row in rows]
    kept = [row for row, fit in zip(rows, fits, strict=True) if fit]
    tasks = [task for task, fit in zip(collected.task_ids, fits, strict=True) if fit]
    training, held_out = split_pairs(
        kept,
        rng.stream(c.seed, purpose=f"{PURPOSE}-split"),
        train_share=c.train_share,
        keys=tasks if c.hold_out_tasks else None,
    )
    if not training or not held_out:
        raise ConfigError(
            f"{len(kept)} pairs of {collected.trajectories} trajectories leave {len(training)} to "
            f"train on and {len(held_out)} held out; both need at least one. Collect more turns, "
            "raise max_tokens, or look at what the analyser answers."
        )
    size = min(c.batch, len(training))
    steps = math.ceil(len(training) * c.epochs / size)
    limits = PassLimits(micro_batch_tokens, student.pad_id)
    parts = {"train": training, "held_out": held_out}
    before = {f"{name}_nll_before": _mean_nll(model, part, limits) for name, part in parts.items()}
    warmup = min(c.warmup_steps, steps)
    outcome = supervised(
        model,
        training,
        WarmstartConfig(steps=steps, batch=size, lr=c.lr, warmup_steps=warmup, seed=c.seed),
        pad_id=student.pad_id,
        progress=progress,
    )
    after = {f"{name}_nll_after": _mean_nll(model, part, limits) for name, part in parts.items()}
    return {
        "trajectories": collected.trajectories,
        "wrong_form": collected.trajectories - len(collected.pairs),
        "too_long": len(rows) - len(kept),
        "train": len(training),
        "held_out": len(held_out),
        "steps": steps,
        "nonfinite_steps": outcome.nonfinite_steps,
        **before,
        **after,
    }


def _mean_nll(model: nn.Module, rows: Sequence[Segment], limits: PassLimits) -> float:
    scores = score_segments(model, rows, limits)
    logp_B_T = pad_rows([row.tolist() for row in scores], torch.float64)
    mask_B_T = pad_rows([[1] * len(row) for row in scores], torch.bool)
    return float(sft_nll(logp_B_T, mask_B_T))


@dataclass(frozen=True, slots=True)
class Args:
    """Options of `python -m trainer.supervised.skill_sft`."""

    policy: Path
    """Folder of the policy to start from."""
    turns: tuple[Path, ...]
    """Files of turns, as a run with run.save_turns writes them; of several runs as well."""
    out: Path
    """Folder for the trained policy and the report, skill_sft.json."""
    analyser: str = POLICY
    """`module:factory` of a function from chat messages to text; `policy`: the policy itself."""
    mode: Literal["episode_only", "episode_step"] = "episode_only"
    """Also skills of single steps."""
    calls: int = 2
    """Answers asked for at most, of each trajectory."""
    max_new_tokens: int = 1024
    """Of an answer of the policy."""
    text_limit: int | None = None
    """Characters kept of each observation and reply."""
    device: str = "cpu"
    """Where to run."""
    sft: SftSettings = field(default_factory=SftSettings)
    """How the pairs are trained on."""


def run(args: Args) -> dict[str, Any]:
    """Collect, train, save; returns the report."""
    args.sft.check()
    device = usable_device(args.device)
    model, tokenizer = load_policy(args.policy)
    model = model.to(device)
    student = make_student(Config(), model, tokenizer)
    analyser: TextModel
    if args.analyser == POLICY:
        from trainer.generation.hf import HFSampler

        analyser = PolicyTextModel(
            HFSampler(model, student.stop_ids, pad_id=student.pad_id),
            student,
            max_new_tokens=args.max_new_tokens,
            max_prompt_tokens=args.sft.max_tokens,
        )
    else:
        analyser = load_text_model(args.analyser, "--analyser")
    parts = [
        collect_pairs(
            read_turns(path),
            analyser,
            mode=args.mode,
            text_limit=args.text_limit,
            calls=args.calls,
            seed=args.sft.seed,
            file=file,
        )
        for file, path in enumerate(args.turns)
    ]
    report = skill_sft(model, student, joined(parts), args.sft)
    save_policy(args.out, model, tokenizer)
    write_json(args.out / "skill_sft.json", report)
    return report


def main(argv: Sequence[str] | None = None) -> None:
    """The command; prints the report."""
    report = run(tyro.cli(Args, args=argv, prog="python -m trainer.supervised.skill_sft"))
    for key, value in report.items():
        print(f"{key}: {value}")


if __name__ == "__main__":
    main()
