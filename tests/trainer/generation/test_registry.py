"""From a config to a sampler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.generation.stand_in_vllm import StandIn
from tests.trainer.short_runs import run_config, trained
from trainer.config import ConfigError, from_dict, resolve
from trainer.evaluation.run import evaluate_run
from trainer.generation.base import StreamingSampler
from trainer.generation.hf import HFSampler
from trainer.generation.hf_cb import ContinuousSampler
from trainer.generation.registry import make_sampler
from trainer.generation.vllm import VLLMSampler
from trainer.loop import train
from trainer.rollouts.data import read_turns

VLLM = {
    "sampler__backend": "vllm",
    "sampler__weights_dir": "weights",
    "optim__old_logprobs": "recompute",
}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, HFSampler),
        ({"sampler__backend": "hf-cb"}, ContinuousSampler),
        (VLLM, VLLMSampler),
    ],
)
def test_every_backend_is_made_and_streams(settings: dict[str, Any], kind: type) -> None:
    config = small.small_config(**settings)
    sampler = make_sampler(config, small.model(), small.student(config))
    assert type(sampler) is kind
    assert isinstance(sampler, StreamingSampler)
    assert from_dict(resolve(config)) == config
    sampler.close()


def test_settings_reach_the_sampler() -> None:
    def made(**settings: Any) -> Any:
        config = small.small_config(**{f"sampler__{k}": v for k, v in settings.items()})
        return make_sampler(config, small.model(), small.student(config))

    config = small.small_config(sampler__max_batch_tokens=77, sampler__join_share=0.25)
    chat = replace(config, sampler=replace(config.sampler, cache_tokens=66))  # of conversations
    hf: Any = make_sampler(chat, small.model(), small.student(config))
    assert (hf.max_batch_tokens, hf.store.max_tokens, hf.join_share) == (77, 66, 0.25)
    cb = made(backend="hf-cb", max_batch_tokens=77, cache_tokens=66, timeout_s=5)
    assert (cb.max_batch_tokens, cb.cache_tokens, cb.timeout_s) == (77, 66, 5.0)
    server = small.small_config(
        **VLLM,
        sampler__url="http://10.0.0.1:9000",
        sampler__served_model="m",
        sampler__concurrency=3,
        sampler__timeout_s=4,
    )
    vllm: Any = make_sampler(server, small.model(), small.student(server))
    assert (vllm.server.url, vllm.name, vllm.concurrency) == ("http://10.0.0.1:9000", "m", 3)
    assert (vllm.server.timeout_s, vllm.weights_dir) == (4.0, Path("weights"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout__top_p": 0.9}, "rollout.top_p=0.9 must be 1"),
        ({"sampler__url": "http://x"}, "sampler.url=http://x has no effect .*vllm"),
        ({"sampler__timeout_s": 3}, "sampler.timeout_s=3.0 has no effect .*hf-cb or vllm"),
        ({**VLLM, "sampler__join_share": 0.5}, "sampler.join_share=0.5 has no effect"),
        ({"sampler__join_share": 0}, "sampler.join_share=0.0 must lie"),
        ({"sampler__max_batch_tokens": 0}, "sampler.max_batch_tokens=0 must be positive"),
        ({"sampler__backend": "hf-cb", "sampler__cache_tokens": 0}, "sampler.cache_tokens=0"),
        ({**VLLM, "sampler__weights_dir": None}, "needs sampler.weights_dir"),
        ({**VLLM, "optim__old_logprobs": "sampler"}, "old_logprobs=recompute"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small.small_config(**settings)


def _replies(folder: Path) -> list[tuple[Any, ...]]:
    turns = [t for path in sorted((folder / "turns").iterdir()) for t in read_turns(path)]
    return [(t.tid, t.t, t.response_ids) for t in turns]


def test_a_run_with_continuous_batching_samples_as_one_without(tmp_path: Path) -> None:
    shared = {"run__iterations": 2, "eval__tasks": 2, "rollout__max_new_tokens": 6}
    config = run_config(tmp_path, **shared)
    continuous = {
        "sampler__backend": "hf-cb",
        "sampler__cache_tokens": 8192,
        "sampler__max_batch_tokens": 256,
    }
    train(config, tmp_path / "hf")
    train(run_config(tmp_path, **shared, **continuous), tmp_path / "cb")
    assert _replies(tmp_path / "hf") == _replies(tmp_path / "cb")


def test_a_run_with_a_server_samples_and_evaluates_with_the_weights_of_each_iteration(
    tmp_path: Path,
) -> None:
    with StandIn(small.model(seed=5)) as server:
        config = run_config(
            tmp_path,
            **{**VLLM, "sampler__weights_dir": str(tmp_path / "weights")},
            sampler__url=server.url,
            rollout__max_new_tokens=6,
            rollout__rollouts=2,
            eval__tasks=2,
            run__iterations=2,
            objective__entropy_coef=0.1,  # a gradient without rewards
        )
        result = train(config, tmp_path / "run")
        assert server.resets == 3, "before each iteration, and before the evaluation after them"
        weights = trained(tmp_path / "run")
        assert not small.same(weights, small.weights(small.model()))
        assert small.same(weights, small.weights(server.model))
        server.model.load_state_dict(small.model(seed=5).state_dict())
        found = evaluate_run(tmp_path / "run", tasks=2)
        assert small.same(weights, small.weights(server.model))
    assert found["valid_seen"]["n"] == 2
    assert result.evaluations["valid_seen"]["tasks"] == found["valid_seen"]["tasks"]
