"""Our objectives in verl's layout: numbers are those of our own trainer."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.short_runs import mixed
from trainer.engines.verl.estimators import ESTIMATORS
from trainer.engines.verl.layout import RowKey, row_key, rows_of
from trainer.learning.base_advantages import base_advantages
from trainer.learning.batch import training_rewards
from trainer.rollouts.data import Turn, segments_from_turns

has_verl = importlib.util.find_spec("verl") is not None
needs_verl = pytest.mark.skipif(not has_verl, reason="the package verl is not installed")


def _in_layout(turns: list[Turn]) -> tuple[Tensor, Tensor, Any]:
    """Token rewards on the last token, mask and uid, as a batch of verl has them."""
    config = small.small_config()
    width = max(len(turn.response_ids) for turn in turns)
    rewards, mask = torch.zeros(len(turns), width), torch.zeros(len(turns), width)
    paid = training_rewards(turns, config.rollout.success_reward)
    index = np.empty(len(turns), dtype=object)
    for m, turn in enumerate(turns):
        mask[m, : len(turn.response_ids)] = 1
        rewards[m, len(turn.response_ids) - 1] = paid[m]
        index[m] = row_key(turn)
    return rewards, mask, index


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_estimators_give_our_advantages(name: str) -> None:
    config = small.small_config(objective__name=name.removeprefix("sero_"))
    turns = mixed(config)
    segments = segments_from_turns(turns)
    ours = base_advantages(turns, segments, config.objective, config.rollout).tokens
    rewards, mask, index = _in_layout(turns)
    options = {"flavor": config.objective.flavor, "use_std": config.objective.use_std}
    adv, returns = ESTIMATORS[name](rewards, mask, index=index, config={"sero": options})
    assert adv.shape == mask.shape
    assert torch.equal(adv, returns)
    assert float(adv.abs().max()) > 0.1
    for row, own, kept in zip(adv, ours, mask, strict=True):
        torch.testing.assert_close(row[kept > 0].double(), own, rtol=1e-5, atol=1e-6)
        assert float(row[kept == 0].abs().sum()) == 0.0


def test_a_row_key_is_its_group_everywhere() -> None:
    key = RowKey("g", "g.1", 3, "a state", False)
    assert key == "g"
    assert {str(key): 1}[key] == 1
    again = pickle.loads(pickle.dumps(key))
    assert (again, again.tid, again.t, again.anchor, again.format_valid) == (
        "g", "g.1", 3, "a state", False,
    )  # fmt: skip


def test_plain_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="row_key"):
        rows_of(torch.zeros(1, 2), torch.ones(1, 2), ["g"])


@needs_verl
def test_verl_finds_the_plugin() -> None:
    code = (
        "import verl; from verl.trainer.ppo import core_algos as c;"
        "print(sorted(n for n in c.ADV_ESTIMATOR_REGISTRY if str(n).startswith('sero_')));"
        "print(c.get_policy_loss_fn('sero').__name__)"
    )
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "trainer.engines.verl.plugin"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [str(sorted(ESTIMATORS)), "loss"]


@needs_verl
def test_verl_finds_the_plugin_by_its_entry_point(tmp_path: Path) -> None:
    """An installed package that names the plugin in the group `verl.plugins` needs no variable."""
    metadata = tmp_path / "some_plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: some-plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[verl.plugins]\nsero_test = trainer.engines.verl.plugin\n"
    )
    code = (
        "import verl; from verl.trainer.ppo import core_algos as c;"
        "print(sorted(n for n in c.ADV_ESTIMATOR_REGISTRY if str(n).startswith('sero_')))"
    )
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    environment = {k: v for k, v in os.environ.items() if k != "VERL_USE_EXTERNAL_MODULES"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(sorted(ESTIMATORS))


@needs_verl
def test_estimators_in_verl_s_own_data() -> None:
    from verl import DataProto  # type: ignore[import-not-found, unused-ignore]

    config = small.small_config(objective__name="gigpo")
    turns = mixed(config)
    rewards, mask, index = _in_layout(turns)
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": mask},
        non_tensors={"uid": index},
    )
    order = torch.arange(len(turns)).flip(0)
    data.reorder(order)
    name = "sero_gigpo"
    adv, _ = ESTIMATORS[name](
        data.batch["token_level_rewards"], data.batch["response_mask"],
        index=data.non_tensor_batch["uid"], config={"sero": {"use_std": config.objective.use_std}},
    )  # fmt: skip
    own, _ = ESTIMATORS[name](
        rewards, mask, index=index, config={"sero": {"use_std": config.objective.use_std}}
    )
    torch.testing.assert_close(adv, own[order])


def test_options_come_from_every_kind_of_config() -> None:
    turns = mixed(small.small_config())
    rewards, mask, index = _in_layout(turns)
    estimate = ESTIMATORS["sero_grpo"]
    plain, _ = estimate(rewards, mask, index=index)
    for config in ({"sero": {"use_std": False}}, SimpleNamespace(sero={"use_std": False})):
        other, _ = estimate(rewards, mask, index=index, config=config)
        assert not torch.equal(plain, other)
