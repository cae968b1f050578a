"""Settings of memory and speed in whole runs: none changes what is learnt, all go on as they were.

1. Packing and recomputed layers give the parameters of a plain run, to rounding.
2. With adapters, or another optimiser, 2 iterations equal 1, a resume, and 1 more, bit for bit;
   what a checkpoint holds loads without peft.
3. What an update cost is logged.
4. Settings without effect are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer import small
from tests.trainer.short_runs import mixed, run_config, sampled, trained, untimed
from trainer.config import ConfigError
from trainer.learning.learner import Learner
from trainer.loop import train
from trainer.metrics import Phases, read_metrics
from trainer.models.packed_attention import PACKED_SDPA, implementation
from trainer.planning.accounting import Work, flops_of, shape_of


@pytest.mark.parametrize(
    "settings",
    [{"optim__packing": True}, {"optim__gradient_checkpointing": True},
     {"optim__packing": True, "optim__gradient_checkpointing": True}],
)  # fmt: skip
def test_the_update_is_that_of_a_plain_run(settings: dict[str, Any]) -> None:
    """Plain gradient steps: Adam would make a sign of what rounds to 0."""
    kinds = {"optim__optimizer": "sgd", "optim__lr": 0.5, "objective__kl_coef": 0.1}
    found = []
    for more in ({}, settings):
        config = small.small_config(**kinds, **more)
        model = small.model()
        learner = Learner(config, model, small.student(config), small.model(seed=1))
        metrics = learner.learn(0, mixed(config), Phases())
        found.append((small.weights(model), metrics))
        if "optim__packing" in more:
            assert implementation(model) == PACKED_SDPA
    start = small.weights(small.model())
    assert not small.same(start, found[0][0])
    for name, value in found[0][0].items():
        torch.testing.assert_close(found[1][0][name], value, atol=1e-5, rtol=1e-4)
    assert found[1][1]["loss/kl"] == pytest.approx(found[0][1]["loss/kl"], rel=1e-4)


def test_what_an_update_cost_is_logged() -> None:
    config, model = small.small_config(), small.model()
    learner = Learner(config, model, small.student(config))
    turns = mixed(config)
    metrics = learner.learn(0, turns, Phases())
    assert metrics["perf/tokens_per_s"] > 0
    assert metrics["perf/mfu"] is None, "a CPU has no peak here"
    ids = [s.ids for s in learner.segments(turns)]
    most = flops_of(
        shape_of(model.config), Work.of(map(len, ids), sum(len(t.response_ids) for t in turns))
    )
    assert 0 < metrics["perf/model_flops"] <= most


@pytest.mark.parametrize(
    "settings",
    [{"lora__rank": 2, "objective__kl_coef": 0.1}, {"optim__optimizer": "adafactor"},
     {"optim__optimizer": "sgd", "optim__lr": 0.5}],
)  # fmt: skip
def test_o25_resuming_is_a_continuation(tmp_path: Path, settings: Any) -> None:
    if "lora__rank" in settings:
        pytest.importorskip("peft", reason="the extra `lora` is not installed")
    # The entropy term has a gradient although nothing succeeds.
    config = run_config(tmp_path, objective__entropy_coef=0.1, **settings)
    straight = train(config, tmp_path / "straight")
    train(config, tmp_path / "parts", until=1)
    train(config, tmp_path / "parts", resume=True)
    parts = tmp_path / "parts"
    assert sampled(parts) == sampled(tmp_path / "straight")
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    assert small.same(trained(parts), trained(tmp_path / "straight"))
    first, last = load_file(parts / "initial" / "model.safetensors"), trained(parts)
    assert any(not torch.equal(first[name], last[name]) for name in first)
    if "lora__rank" in settings:
        adapters = load_file(parts / "checkpoints" / "000002" / "adapter.safetensors")
        assert all("lora_" in name for name in adapters)
        assert not any("lora_" in name for name in last), "merged: it loads without peft"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optim__optimizer": "sgd", "optim__beta1": 0.8}, r"optim\.beta1=0\.8 has no effect"),
        ({"optim__optimizer": "adafactor", "optim__eps": 1e-6}, r"optim\.eps=1e-06 has no"),
        ({"lora__alpha": 8.0}, r"lora\.alpha=8\.0 has no effect with lora\.rank=0"),
        ({"lora__targets": ["q_proj"]}, r"lora\.targets=.* has no effect"),
        ({"lora__seed": 4}, r"lora\.seed=4 has no effect"),
    ],
)
def test_a_setting_without_effect_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small.small_config(**settings)
