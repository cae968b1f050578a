"""The training loop: equal runs, equal arms, what is logged, precision."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from agent_envs.errors import MissingData
from tests.trainer import small
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from trainer.iteration import Trainer
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.models.tiny import load_policy
from trainer.rollouts.data import read_turns
from trainer.runs.folder import RunFolder


def test_two_runs_of_one_config_are_equal(tmp_path: Path) -> None:
    config = run_config(tmp_path, auxiliary__sero={})
    first = train(config, tmp_path / "a")
    second = train(config, tmp_path / "b")
    assert untimed(first.metrics) == untimed(second.metrics)
    assert small.same(trained(tmp_path / "a"), trained(tmp_path / "b"))
    other = train(config.replace(**{"run.seed": 1}), tmp_path / "c")
    assert untimed(other.metrics) != untimed(first.metrics)


def test_no_global_generator_moves(tmp_path: Path) -> None:
    """Neither by iterations with a reference, a critic and branches, nor by evaluations."""
    config = run_config(
        tmp_path, auxiliary__sero={}, objective__name="ppo", objective__kl_coef=0.01,
        eval__initial=True, eval__temperature=0.7,
    )  # fmt: skip
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    result = train(config, tmp_path / "run")
    assert result.metrics[-1]["optimizer_steps"] > 0
    assert random.getstate() == before[0]
    for now, then in zip(np.random.get_state(), before[1], strict=True):
        assert np.array_equal(now, then)
    assert torch.equal(torch.get_rng_state(), before[2])


def test_arms_see_the_same_tasks_and_the_same_first_rollouts(tmp_path: Path) -> None:
    """The auxiliary objective draws from streams of its own."""
    for name in ("none", "sero"):
        sero = {"auxiliary__sero": {}} if name == "sero" else {}
        train(run_config(tmp_path, **sero), tmp_path / name)
    left, right = sampled(tmp_path / "none"), sampled(tmp_path / "sero")
    first = [turn for turn in left if turn[1].startswith("0.")]
    assert first == [turn for turn in right if turn[1].startswith("0.")]
    assert left != right, "the policies differ after the first update"
    assert {t[0] for t in left} == {t[0] for t in right}


def test_metrics_hold_what_a_run_needs_to_be_judged(tmp_path: Path) -> None:
    config = run_config(tmp_path, auxiliary__sero={}, run__iterations=1)
    (metrics,) = train(config, tmp_path / "run").metrics
    assert metrics == read_metrics(tmp_path / "run/metrics.jsonl")[0]
    for key in (
        "success_rate", "command_valid_share", "invalid_format_rate", "frac_degenerate_groups",
        "mixed_group_share", "sero/gate_mean", "sero/gate_zero_share", "sero/gate_reasons",
        "sero/z", "sero/effective_depth", "grad/aux_over_base", "clip_fraction", "loss/kl",
        "entropy", "time/collect", "time/branch", "time/update", "tokens_per_s", "skipped_steps",
    ):  # fmt: skip
        assert key in metrics, key
    assert metrics["mixed_group_share"] + metrics["frac_degenerate_groups"] == 1
    assert metrics["turns"] == len(read_turns(tmp_path / "run/turns/000000.parquet"))
    info = json.loads((tmp_path / "run/run.json").read_text())
    assert info["config"]["auxiliary"]["sero"]["weight"] == 0.1
    assert info["manifest_hash"] == small.games().manifest_hash
    roots = [json.loads(line) for line in (tmp_path / "run/roots.jsonl").read_text().splitlines()]
    assert len(roots) == metrics["sero/roots"]
    assert sum("branch_steps" in root for root in roots) == 1


def test_bfloat16_acts_and_computes_rounded_and_trains_float32(tmp_path: Path) -> None:
    """A step of 1e-6 would be lost in bfloat16 weights."""
    config = run_config(
        tmp_path,
        run__dtype="bfloat16",
        optim__lr=1e-6,
        run__iterations=1,
        auxiliary__sero={},
        objective__kl_coef=0.01,
        optim__old_logprobs="recompute",
    )
    (metrics,) = train(config, tmp_path / "run").metrics
    assert (metrics["optimizer_steps"], metrics["nonfinite_steps"]) == (2, 0)
    start = small.weights(load_policy(tmp_path / "policy")[0])
    end = small.weights(load_policy(tmp_path / "run/checkpoints/000001")[0])
    assert all(value.dtype == torch.float32 for value in end.values())
    largest = max(float((end[k] - start[k]).abs().max()) for k in start)
    assert 5e-7 < largest < 1e-5
    assert all(v.dtype == torch.bfloat16 for v in trained(tmp_path / "run").values())


def test_the_acting_bfloat16_policy_is_the_one_that_would_be_loaded(tmp_path: Path) -> None:
    """Also far behind the start of a prompt: rotary frequencies are not rounded."""
    config = run_config(tmp_path, run__dtype="bfloat16", optim__old_logprobs="recompute")
    model, tokenizer = load_policy(tmp_path / "policy")
    trainer = Trainer(config, RunFolder(tmp_path / "run"), model, tokenizer, task_set=small.games())
    loaded, _ = load_policy(tmp_path / "policy", dtype=torch.bfloat16)
    ids = torch.arange(600)[None] % 300
    with torch.no_grad():
        assert torch.equal(trainer.acting(input_ids=ids).logits, loaded(input_ids=ids).logits)
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_and_bfloat16_smoke(tmp_path: Path) -> None:
    config = run_config(
        tmp_path,
        run__device="cuda",
        run__dtype="bfloat16",
        run__iterations=2,
        auxiliary__sero={},
        objective__kl_coef=0.01,
        optim__old_logprobs="recompute",
    )
    result = train(config, tmp_path / "run")
    assert result.metrics[-1]["optimizer_steps"] > 0
    assert result.metrics[-1]["nonfinite_steps"] == 0


def test_a_split_without_tasks_is_said_before_any_work(tmp_path: Path) -> None:
    def warm(step: int, loss: float) -> None:
        raise AssertionError("the warm start has begun")

    for key in ("eval.splits", "env.split"):
        config = small.small_config().replace(**{key: "vaild_seen"})
        with pytest.raises(MissingData, match=f"{key} names 'vaild_seen'.*valid_seen"):
            train(config, tmp_path / "run", on_warmstart=warm)
    assert not (tmp_path / "run").exists()
