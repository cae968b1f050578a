"""Whole runs over two processes: rollouts, branches, evaluation, checkpoints and figures."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.parallel.ranks import run_ranks
from tests.trainer.short_runs import run_config, sampled, trained
from trainer import loop
from trainer.config import Config
from trainer.parallel.context import Group
from trainer.parallel.launch import own_folder
from trainer.parallel.run import trainer_of

MODES = ("ddp", "fsdp")
FIGURES = (
    "success_rate", "score_mean", "episode_steps", "turns", "response_tokens", "entropy",
    "frac_degenerate_groups", "format_valid_share", "loss/policy", "loss/auxiliary", "grad/norm",
    "sero/roots", "sero/gate_mean", "sero/z", "optimizer_steps", "advantage_abs_mean",
)  # fmt: skip


def _config(folder: Path, mode: str, **overrides: Any) -> Config:
    return run_config(
        folder, rollout__tasks=3, rollout__rollouts=2, parallel__mode=mode, auxiliary__sero={},
        # Of a gradient that is all but 0 AdamW's step is its sign, whatever rounds it: hence eps.
        optim__lr=1e-3, optim__eps=1e-5, optim__steps=2, run__checkpoint_every=1,
        objective__kl_coef=0.1,
        **overrides,
    )  # fmt: skip


def _train(
    group: Group, folder: Path, config: Config, runs: Sequence[tuple[str, str, int]]
) -> None:
    """Runs (or resumes) each of (name, mode, iterations) up to so many iterations."""
    for name, mode, until in runs:
        own = replace(group, sharded=mode == "fsdp")
        made = config.replace(**{"parallel.mode": mode})
        with own_folder(folder / name, own) as out, pytest.MonkeyPatch.context() as patch:
            ways: dict[str, Any] = {"resume": until > 1, "until": until}
            if "trainer_type" in inspect.signature(loop.train).parameters:
                ways["trainer_type"] = trainer_of(own)
            else:
                patch.setattr(loop, "Trainer", trainer_of(own))
            loop.train(made, out, **ways)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    config = _config(folder, "ddp")
    alone = config.replace(**{"parallel.mode": "none"})
    loop.train(alone, folder / "alone")
    plan = [("ddp", "ddp", 1), ("fsdp", "fsdp", 1), ("ddp", "ddp", 2), ("fsdp", "fsdp", 2)]
    run_ranks(_train, folder, config, plan)
    return folder


def _lines(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_make_the_run_of_one(runs: Path, mode: str) -> None:
    """Stopped after its first iteration, and resumed by new processes."""
    alone, shared = runs / "alone", runs / mode
    first = [row for row in sampled(alone) if row[1].startswith("0.")]
    assert [row[:5] for row in sampled(shared) if row[1].startswith("0.")] == [
        row[:5] for row in first
    ]
    one, two = _lines(alone, "metrics.jsonl"), _lines(shared, "metrics.jsonl")
    assert len(one) == len(two) == 2
    for key in FIGURES:
        assert one[0][key] is not None, key
        assert two[0][key] == pytest.approx(one[0][key], rel=1e-4, abs=1e-7), key
    assert two[0]["sero/gate_reasons"] == one[0]["sero/gate_reasons"]
    start = small.weights(small.model())
    weights, theirs = trained(alone), trained(shared)
    moved = max(float((weights[n] - start[n]).abs().max()) for n in start)
    assert moved > 1e-3
    for name in start:
        torch.testing.assert_close(theirs[name], weights[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_roots_are_those_of_one_process(runs: Path, mode: str) -> None:
    roots = [_lines(runs / name, "roots.jsonl") for name in ("alone", mode)]
    facts = [[(r["tid"], r["root"], r["actions"]) for r in found] for found in roots]
    assert facts[0]
    assert facts[0] == facts[1]


@pytest.mark.parametrize("mode", MODES)
def test_each_task_is_evaluated_once(runs: Path, mode: str) -> None:
    files = sorted((runs / "alone" / "eval").iterdir())
    assert files
    for file in files:
        alone, shared = (
            json.loads((runs / n / "eval" / file.name).read_text()) for n in ("alone", mode)
        )
        assert [row["task_id"] for row in shared["tasks"]] == [r["task_id"] for r in alone["tasks"]]
        assert shared["wins"] == alone["wins"]
        assert shared["tasks_hash"] == alone["tasks_hash"]


@pytest.mark.parametrize("mode", MODES)
def test_one_process_goes_on_from_a_checkpoint_of_two(runs: Path, mode: str) -> None:
    """`parallel.mode` stays; without torchrun there is one process whatever it says."""
    config = _config(runs, mode, run__iterations=3)
    result = loop.train(config, runs / mode, resume=True)
    assert result.iterations == 3
    assert not list(runs.glob(f"{mode}/checkpoints/.*"))
