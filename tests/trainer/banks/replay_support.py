"""Replays of a small bank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oracles.bank import (
    Bank,
    BankRow,
    header_of,
    read_bank,
    write_bank,
)
from oracles.branches import EnvRecipe
from tests.trainer import small
from trainer.banks.replay import open_replay, replay_all
from trainer.banks.replay_settings import ReplaySettings
from trainer.config import Config
from trainer.models.tiny import load_policy
from trainer.runs.folder import make_student

FAST: dict[str, Any] = {"eval_tasks": 0, "roots": 4, "iterations": 3, "weight": 1.0}
"""What most tests need: three iterations of four branches and no evaluation."""


def replay_config(**overrides: Any) -> Config:
    return small.small_config(
        run__iterations=1,
        run__checkpoint_every=1,
        env__max_steps=12,
        **overrides,
    )


def kept_bank(path: Path, recipe: EnvRecipe, rows: Sequence[BankRow], checkpoint: str = "") -> Bank:
    header = header_of(
        recipe(),
        recipe,
        oracle="planner",
        policy="p",
        seed=0,
        provenance={"checkpoint": checkpoint},
    )
    write_bank(path, header, rows)
    return read_bank(path)


def report_of(bank: Bank, run: Path, folder: Path, **settings: Any) -> dict[str, Any]:
    replay = open_replay(bank, run, ReplaySettings(**{**FAST, **settings}))
    return replay_all(replay, bank, folder)


def of_run(run: Path) -> tuple[Config, Any]:
    config = replay_config()
    model, tokenizer = load_policy(run / "checkpoints" / "000001")
    return config, make_student(config, model, tokenizer)


# ------------------------------------------------------------------ equal and different ends
