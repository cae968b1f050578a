"""Whole runs of what depends on the groups of all processes: dynamic sampling, and a critic."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import full_count
from tests.trainer import small
from tests.trainer.parallel.ranks import run_ranks
from tests.trainer.short_runs import run_config, sampled, trained
from trainer import loop
from trainer.config import Config
from trainer.generation.base import GenerationRequest
from trainer.iteration import Trainer
from trainer.parallel.context import Group
from trainer.parallel.iteration import ParallelTrainer
from trainer.parallel.launch import own_folder
from trainer.parallel.shard import part_of

DAPO = {
    "objective__name": "dapo", "objective__dynamic_rounds": 6, "auxiliary__sero": {},
    "optim__old_logprobs": "recompute",
}  # fmt: skip
PPO = {"objective__name": "ppo", "objective__critic__lr": 1e-3, "optim__old_logprobs": "recompute"}
LORA = {"lora__rank": 2, "objective__kl_coef": 0.1, "optim__old_logprobs": "recompute"}
ADAFACTOR = {"optim__optimizer": "adafactor", "optim__old_logprobs": "recompute"}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {"dapo": ("ddp", DAPO), "ppo": ("fsdp", PPO)}
if full_count(0, 1):
    RUNS |= {"adafactor": ("fsdp", ADAFACTOR), "ppo_ddp": ("ddp", PPO), "dapo_fsdp": ("fsdp", DAPO)}
if importlib.util.find_spec("peft") is not None:
    RUNS["lora"] = ("fsdp", LORA)


def _config(folder: Path, name: str, **overrides: Any) -> Config:
    mode, settings = RUNS[name]
    return run_config(
        folder, rollout__tasks=3, rollout__rollouts=2, parallel__mode=mode, optim__lr=1e-3,
        optim__steps=2, run__checkpoint_every=1, **settings, **overrides,
    )  # fmt: skip


def _sampler() -> Any:
    """Wins a part of the episodes, so some groups have both outcomes."""

    def choose(request: GenerationRequest, prompt: str) -> str:
        expert = request.rng is None or request.rng.random() < 0.85
        return small.walkthroughs().get(prompt, "look") if expert else "inventory"

    return small.CommandSampler(choose)


def _train(group: Group, folder: Path, config: Config, names: Sequence[str]) -> None:
    """Two iterations, resumed in between; and the second one of a run that one process began."""
    for name in names:
        own = replace(group, sharded=RUNS[name][0] == "fsdp")
        made = functools.partial(ParallelTrainer, group=own, sampler=_sampler())
        for run, until in ((name, 1), (name, 2), (f"{name}-begun", 2)):
            with own_folder(folder / run, own) as out:
                loop.train(
                    _config(folder, name), out, resume=until > 1, until=until, trainer_type=made
                )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("variants")
    alone = functools.partial(Trainer, sampler=_sampler())
    for name in RUNS:
        config = _config(folder, name).replace(**{"parallel.mode": "none"})
        loop.train(config, folder / f"{name}-begun", until=1, trainer_type=alone)
        shutil.copytree(folder / f"{name}-begun", folder / f"{name}-alone")
        loop.train(config, folder / f"{name}-alone", resume=True, trainer_type=alone)
    run_ranks(_train, folder, _config(folder, "ppo"), list(RUNS))
    return folder


def _metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("by", ["", "-begun"])
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_make_the_run_of_one(runs: Path, name: str, by: str) -> None:
    """Stopped after its first iteration, and resumed; also where one process had begun it."""
    alone, shared = runs / f"{name}-alone", runs / f"{name}{by}"
    assert [row[:5] for row in sampled(shared)] == [row[:5] for row in sampled(alone)]
    weights, theirs = trained(alone), trained(shared)
    start = small.weights(small.model())
    assert max(float((weights[n] - start[n]).abs().max()) for n in start) > 1e-3
    for key in start:
        torch.testing.assert_close(theirs[key], weights[key], rtol=0, atol=2e-5)
    one, two = _metrics(alone), _metrics(shared)
    common = ("loss/", "dynamic/", "critic/", "sero/roots", "sero/eligible_share", "success_rate")
    for key in (key for key in one[0] if key.startswith(common)):
        expected = one[0][key] if one[0][key] is None else pytest.approx(one[0][key], rel=1e-4)
        assert two[0][key] == expected, key


def test_groups_change_hands_where_sampling_drops_some(runs: Path) -> None:
    """Or the comparison above would show nothing of it."""
    kept = list(dict.fromkeys(row[1].rpartition(".")[0] for row in sampled(runs / "dapo-alone")))
    first = [uid for uid in kept if uid.startswith("0.")]
    played = [int(uid.partition(".")[2]) % 3 in part_of(3, 0, 2) for uid in first]
    assert [place in part_of(len(first), 0, 2) for place in range(len(first))] != played
    assert _metrics(runs / "dapo")[0]["dynamic/rounds"] > 1


@pytest.mark.parametrize("name", RUNS)
def test_one_process_goes_on_from_two(runs: Path, name: str) -> None:
    made = functools.partial(Trainer, sampler=_sampler())
    config = _config(runs, name, run__iterations=3)
    assert loop.train(config, runs / name, resume=True, trainer_type=made).iterations == 3
