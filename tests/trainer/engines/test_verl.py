"""Our objectives in verl's layout: numbers are those of our own trainer."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.short_runs import mixed
from trainer.engines.verl.branch_rows import (
    BRANCH,
    branch_tensors,
    make_policy_loss,
    with_branches,
)
from trainer.engines.verl.estimators import ESTIMATORS
from trainer.engines.verl.layout import RowKey, row_key, rows_of
from trainer.learning.base_advantages import base_advantages
from trainer.learning.batch import training_rewards
from trainer.learning.update import AuxiliaryRow
from trainer.rollouts.data import Turn, make_segment, segments_from_turns

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
    assert {key: 1}["g"] == 1
    again = pickle.loads(pickle.dumps(key))
    assert (again, again.tid, again.t, again.anchor, again.format_valid) == (
        "g", "g.1", 3, "a state", False,
    )  # fmt: skip


def test_plain_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="row_key"):
        rows_of(torch.zeros(1, 2), torch.ones(1, 2), ["g"])


def _batch() -> dict[str, Tensor]:
    """Two rows of the policy, prompts of 3 and responses of 4 tokens."""
    return {
        "prompts": torch.tensor([[0, 1, 2], [1, 2, 3]]),
        "responses": torch.tensor([[4, 5, 0, 0], [6, 7, 8, 9]]),
        "response_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]),
        "advantages": torch.tensor([[0.5, 0.5, 0, 0], [-1.0, -1.0, -1.0, -1.0]]),
        "old_log_probs": -torch.ones(2, 4),
    }


def _branches() -> dict[str, Tensor]:
    segment = make_segment((1, 2), (3, 4, 5), mask=(False, True, True))
    return branch_tensors([AuxiliaryRow(segment, 0.25)], 0.1, prompt=3, response=4, pad_id=0)


def test_branch_rows_have_the_layout_of_the_batch() -> None:
    made = _branches()
    # What stands before the first trained token is the prompt.
    assert made["prompts"].tolist() == [[1, 2, 3]]
    assert made["responses"].tolist() == [[4, 5, 0, 0]]
    assert made["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0, 0]]
    assert made["position_ids"].tolist() == [[0, 1, 2, 3, 4, 4, 4]]
    assert made["response_mask"].tolist() == [[1, 1, 0, 0]]
    torch.testing.assert_close(made["advantages"], torch.tensor([[0.025, 0.025, 0, 0]]))
    segment = make_segment((1, 2, 3), (4,))
    with pytest.raises(ValueError, match="room for 2"):
        branch_tensors([AuxiliaryRow(segment, 1.0)], 1.0, prompt=2, response=4, pad_id=0)


def _clipped(**given: Any) -> tuple[Tensor, dict[str, Any]]:
    """Token mean of the clipped loss."""
    ratio = (given["log_prob"] - given["old_log_prob"]).exp()
    loss = torch.max(-given["advantages"] * ratio, -given["advantages"] * ratio.clamp(0.8, 1.2))
    return (loss * given["response_mask"]).sum() / given["response_mask"].sum(), {"m": 1}


def _check_loss(base: Any, config: Any) -> None:
    """Loss and gradient of a batch with a branch row: base alone, plus coefficient times NLL."""
    batch = _batch()
    joined = with_branches(batch, {k: v for k, v in _branches().items() if k in batch})
    assert joined["old_log_probs"][2, 0] == BRANCH
    log_prob = (torch.arange(12.0).reshape(3, 4) / -10 - 0.6).requires_grad_()
    loss, metrics = make_policy_loss(base)(
        joined["old_log_probs"], log_prob, joined["advantages"], joined["response_mask"],
        "token-mean", config,
    )  # fmt: skip
    loss.backward()
    own = log_prob.detach()[:2].clone().requires_grad_()
    alone, _ = base(
        old_log_prob=batch["old_log_probs"], log_prob=own, advantages=batch["advantages"],
        response_mask=batch["response_mask"], loss_agg_mode="token-mean", config=config,
        rollout_is_weights=None,
    )  # fmt: skip
    alone.backward()
    nll = -0.025 * float(log_prob[2, :2].detach().sum())
    assert loss.item() == pytest.approx(alone.item() + nll, rel=1e-5)
    assert metrics["actor/sero_loss"] == pytest.approx(nll, rel=1e-5)
    assert log_prob.grad is not None
    assert own.grad is not None
    torch.testing.assert_close(log_prob.grad[:2], own.grad)
    torch.testing.assert_close(log_prob.grad[2], torch.tensor([-0.025, -0.025, 0, 0]))


def test_the_loss_adds_the_branches_and_leaves_the_base_as_it_is() -> None:
    _check_loss(_clipped, None)


def test_other_aggregations_are_refused() -> None:
    batch = _batch()
    old = batch["old_log_probs"].clone()
    old[0] = BRANCH
    with pytest.raises(ValueError, match="token-mean"):
        make_policy_loss(_clipped)(
            old, old, batch["advantages"], batch["response_mask"], "seq-mean-token-sum"
        )


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


@needs_verl
def test_the_loss_over_verl_s_own() -> None:
    from verl.trainer.ppo import core_algos  # type: ignore[import-not-found, unused-ignore]
    from verl.workers.config import ActorConfig  # type: ignore[import-not-found, unused-ignore]

    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    _check_loss(core_algos.compute_policy_loss_vanilla, config)


def test_options_come_from_every_kind_of_config() -> None:
    turns = mixed(small.small_config())
    rewards, mask, index = _in_layout(turns)
    estimate = ESTIMATORS["sero_grpo"]
    plain, _ = estimate(rewards, mask, index=index)
    for config in ({"sero": {"use_std": False}}, SimpleNamespace(sero={"use_std": False})):
        other, _ = estimate(rewards, mask, index=index, config=config)
        assert not torch.equal(plain, other)
