"""Values that make no run together are refused with their numbers; a run of before goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.short_runs import learn, mixed, run_config
from trainer.config import ConfigError, from_dict, load_config
from trainer.config.bounds import LARGEST, out_of_bounds
from trainer.config.sections import SMALLEST_VOCABULARY
from trainer.loop import train
from trainer.models.tiny import train_tokenizer
from trainer.runs.folder import RunFolder

VLLM = {
    "sampler.backend": "vllm",
    "sampler.weights_dir": "weights",
    "optim.old_logprobs": "recompute",
}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"optim.steps": 13, "rollout.tasks": 2, "rollout.rollouts": 2, "env.max_steps": 3},
            r"optim\.steps=13 .* rollout\.tasks=2 x rollout\.rollouts=2 x env\.max_steps=3 = 12",
        ),
        (
            {"optim.warmup_steps": 100, "optim.decay_steps": 10},
            r"optim\.decay_steps=10 ends before optim\.warmup_steps=100",
        ),
        ({"rollout.success_reward": 1e308}, r"rollout\.success_reward=1e\+308 must be at most 1e"),
        ({"auxiliary.sero.weight": 1e300}, r"auxiliary\.sero\.weight=1e\+300 must be at most 1e"),
        ({"lora.rank": 2, "lora.alpha": 1e30}, r"lora\.alpha=1e\+30 must be at most 1e\+12"),
        ({"sampler.backend": "hf-cb", "sampler.timeout_s": 1e10}, r"timeout_s=1e\+10 .*1e\+09"),
        ({"run.seed": 10**30}, r"run\.seed=10+ must fit 64 bits"),
        ({"model.seed": -(10**30)}, r"model\.seed=-10+ must fit 64 bits"),
        ({"model.vocab_size": 261}, r"model\.vocab_size=261 must be at least 262"),
        (VLLM | {"sampler.url": "nonsense"}, r"sampler\.url='nonsense' must be the address"),
        (VLLM | {"sampler.url": "http://h:99999"}, r"sampler\.url='http://h:99999' .*out of range"),
        (VLLM | {"sampler.url": "http://"}, r"sampler\.url='http://' .*lacks"),
        (VLLM | {"sampler.url": "http://[::1"}, r"sampler\.url='http://\[::1' must"),
    ],
)
def test_it_is_refused_with_the_setting_and_the_numbers(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)


def test_what_lies_on_the_edge_is_accepted() -> None:
    size = {"rollout.tasks": 2, "rollout.rollouts": 2, "env.max_steps": 3}
    load_config(None, size | {"optim.steps": 12})
    load_config(None, size | {"optim.steps": 24, "auxiliary.luffy.weight": 1.0})
    load_config(None, {"optim.warmup_steps": 10, "optim.decay_steps": 10})
    load_config(None, {"rollout.success_reward": LARGEST, "optim.lr": 1e30})
    load_config(None, {"run.seed": -5, "model.seed": 2**63 - 1})
    load_config(None, VLLM | {"sampler.url": "https://some.host:8000/v1"})
    load_config(None, {"model.path": "some/model", "model.vocab_size": 9})


def test_the_smallest_vocabulary_is_the_tokenizers() -> None:
    assert len(train_tokenizer(["a room"], SMALLEST_VOCABULARY)) == SMALLEST_VOCABULARY
    with pytest.raises(ValueError, match=f"alone need {SMALLEST_VOCABULARY}"):
        train_tokenizer(["a room"], SMALLEST_VOCABULARY - 1)


def test_the_largest_reward_trains() -> None:
    """Rewards of that size, twice squared and summed, are finite in float32."""
    config = small.small_config(
        rollout__success_reward=LARGEST, rollout__format_penalty=LARGEST, env__max_steps=15,
        optim__grad_clip=0.0, objective__use_std=False,
    )  # fmt: skip
    model = small.model()
    line = learn(config, mixed(config), model)
    assert line["nonfinite_steps"] == 0
    assert line["optimizer_steps"] > 0
    assert line["advantage_abs_mean"] > LARGEST / 100
    assert all(bool(torch.isfinite(tensor).all()) for tensor in small.weights(model).values())


def test_a_run_of_before_a_bound_is_read_and_goes_on(tmp_path: Path) -> None:
    train(run_config(tmp_path, run__iterations=1), tmp_path / "run")
    file = tmp_path / "run/run.json"
    data = json.loads(file.read_text())
    data["config"]["optim"] |= {"warmup_steps": 9, "decay_steps": 2}
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="ends before"):
        from_dict(data["config"])
    found = RunFolder(tmp_path / "run").read_config()
    assert out_of_bounds(found)
    more = found.replace(**{"run.iterations": 2})
    assert train(more, tmp_path / "run", resume=True).iterations == 2
    with pytest.raises(ConfigError, match="ends before"):
        small.small_config(optim__warmup_steps=9).replace(**{"optim.decay_steps": 2})
