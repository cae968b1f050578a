from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer import small
from tests.trainer.supervised.test_demonstrations import chat_tokenizer
from trainer.config import ConfigError
from trainer.loop import train
from trainer.models.tiny import load_policy, save_policy
from trainer.runs.folder import load_trained


@pytest.mark.parametrize("template", ["field", "compact"])
def test_a_run_warm_starts_a_given_model_where_it_is_told_to(tmp_path: Path, template: str) -> None:
    policy, losses = tmp_path / "policy", []
    save_policy(policy, small.model(std=0.02), chat_tokenizer())
    config = small.small_config(
        model__path=str(policy),
        prompt__template=template,
        prompt__max_prompt_tokens=900,
        run__iterations=1,
        warmstart__lr=1e-2,
    )
    train(config, tmp_path / "plain")
    assert not (tmp_path / "plain" / "warmstart.json").exists()
    before = small.weights(load_policy(policy)[0])
    assert small.same(before, small.weights(load_policy(tmp_path / "plain" / "initial")[0]))
    told = config.replace(**{"warmstart.given_model": True})
    train(told, tmp_path / "warm", on_warmstart=lambda step, loss: losses.append(loss))
    report = json.loads((tmp_path / "warm" / "warmstart.json").read_text())
    assert (report["steps"], len(losses)) == (4, 4)
    assert not small.same(before, small.weights(load_policy(tmp_path / "warm" / "initial")[0]))
    assert load_trained(tmp_path / "warm")[0] == told


def test_a_prompt_limit_that_holds_nothing_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    save_policy(tmp_path / "policy", small.model(), small.tokenizer())
    config = small.small_config(model__path=str(tmp_path / "policy"), prompt__max_prompt_tokens=9)
    with pytest.raises(ConfigError, match="max_prompt_tokens=9 does not hold"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
