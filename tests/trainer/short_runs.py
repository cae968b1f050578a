"""Runs on the small world, and what tests compare of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.trainer import small
from trainer.config import Config
from trainer.learning.learner import Learner
from trainer.loop import train
from trainer.methods.protocol import Setup
from trainer.methods.registry import make_methods
from trainer.metrics import Phases, read_metrics
from trainer.models.tiny import save_policy
from trainer.rollouts.data import read_turns
from trainer.runs.folder import load_trained


def run_config(tmp_path: Path, **overrides: Any) -> Config:
    policy = tmp_path / "policy"
    if not policy.exists():
        save_policy(policy, small.model(), small.tokenizer())
    return small.small_config(model__path=str(policy), run__save_turns=True, **overrides)


def untimed(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Metrics without what a clock says."""
    return [
        {k: v for k, v in line.items() if not k.startswith("time/") and not k.endswith("_s")}
        for line in metrics
    ]


def sampled(folder: Path) -> list[tuple[Any, ...]]:
    turns = [t for path in sorted((folder / "turns").iterdir()) for t in read_turns(path)]
    return [(t.task_id, t.tid, t.t, t.response_ids, t.command, t.logprobs) for t in turns]


def trained(folder: Path) -> dict[str, torch.Tensor]:
    return small.weights(load_trained(folder)[1])


def resumed_like_whole(config: Config, tmp_path: Path) -> list[dict[str, Any]]:
    """Metrics of a whole run in `tmp_path`/whole, once a run that is resumed after its first
    iteration, in `tmp_path`/parts, has its weights, metrics, sampled ids and roots."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    metrics = train(config, whole).metrics
    train(config, parts, until=1)
    train(config, parts, resume=True)
    assert small.same(trained(whole), trained(parts))
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(metrics)
    assert sampled(whole) == sampled(parts)
    one, other = whole / "roots.jsonl", parts / "roots.jsonl"
    assert one.exists() == other.exists()
    assert not one.exists() or one.read_text() == other.read_text()
    return metrics


def mixed(config: Config) -> list[Any]:
    trajectories = small.rollouts(config, small.half_expert(0.8))
    return [turn for trajectory in trajectories for turn in trajectory.turns]


def learn(config: Config, turns: list[Any], model: Any, **kwargs: Any) -> dict[str, Any]:
    student = small.student(config)
    methods = make_methods(Setup(config, student, model))
    return Learner(config, model, student, methods=methods, **kwargs).learn(0, turns, Phases())
