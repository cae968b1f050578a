"""`SeroTrainer` on verl's own worker, engine, losses and batches, on a CPU in this process.

What a CPU has not are verl's inference servers: replies come from a sampler of ours, and weights
go to its model in their place.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.engines import own_update, verl_cpu
from tests.trainer.engines.test_verl_driver import NAMED, _driver, _values
from trainer.config import Config, ConfigError
from trainer.generation.hf import HFSampler
from trainer.models.tiny import save_policy

if importlib.util.find_spec("verl") is None:
    pytest.skip("the package verl is not installed", allow_module_level=True)

Make = Callable[..., tuple[Any, Config]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("verl")
    verl_cpu.use_cpu(made / "store")
    save_policy(made / "policy", small.model(), small.tokenizer())
    return made


@pytest.fixture
def make(folder: Path) -> Make:
    """A trainer on verl's worker, from overrides of our config."""

    def made(**overrides: Any) -> tuple[Any, Config]:
        named = {**NAMED, "model__path": str(folder / "policy"), "optim__lr": 1.0, **overrides}
        config = small.small_config(**named)
        trainer = verl_cpu.local_trainer(
            config, small.tokenizer(), small.model(), small.half_expert(0.6),
            task_set=small.games(),
        )  # fmt: skip
        return trainer, config

    return made


def test_it_is_a_trainer_of_verl(make: Make) -> None:
    from verl.trainer.ppo.ray_trainer import (  # type: ignore[import-not-found, unused-ignore]
        RayPPOTrainer,
    )

    from trainer.engines.verl.sero_trainer import SeroTrainer

    trainer, _ = make()
    assert issubclass(SeroTrainer, RayPPOTrainer)
    assert isinstance(trainer, RayPPOTrainer)
    assert type(trainer.actor_rollout_wg.worker).__module__ == "verl.workers.engine_workers"
    trainer.close()


@pytest.mark.parametrize(
    "objective", ["grpo", "gigpo", "hgpo", "rloo", "reinforce_pp_baseline", "dr_grpo"]
)
def test_advantages_and_old_log_probs_are_ours(make: Make, objective: str) -> None:
    """verl's `compute_advantage` over a `DataProto`, and its actor's log-probs."""
    from verl import DataProto  # type: ignore[import-not-found, unused-ignore]

    trainer, config = make(objective__name=objective, objective__aggregation="token-mean")
    found = trainer.driver.collect(0)
    batch = trainer.base_batch(found)
    assert isinstance(batch, DataProto)
    own = own_update.learner(config, small.model(), trainer.driver.student)
    segments = own.segments(found.turns)
    tokens = own.advantages(found.turns, segments).tokens
    mask = batch.batch["response_mask"].bool()
    assert float(batch.batch["advantages"].abs().max()) > 0.1
    for m, (segment, expected) in enumerate(zip(segments, tokens, strict=True)):
        kept = mask[m]
        torch.testing.assert_close(
            batch.batch["advantages"][m][kept].double(), expected, rtol=1e-5, atol=1e-6
        )
        old = [x for x, keep in zip(segment.logprobs, segment.loss_mask, strict=True) if keep]
        assert batch.batch["old_log_probs"][m][kept].tolist() == pytest.approx(old, abs=2e-5)
    assert float(batch.batch["advantages"][~mask].abs().sum()) == 0.0
    trainer.driver.abandon()
    trainer.close()


def _verl_gradient(config: Config, model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """verl's worker loss, `ppo_loss`, over log-probs of a model of float64."""
    from verl import DataProto
    from verl.utils import tensordict_utils as tu  # type: ignore[import-not-found, unused-ignore]
    from verl.utils.config import (  # type: ignore[import-not-found, unused-ignore]
        omega_conf_to_dataclass,
    )
    from verl.workers.utils.losses import ppo_loss  # type: ignore[import-not-found, unused-ignore]
    from verl.workers.utils.padding import (  # type: ignore[import-not-found, unused-ignore]
        left_right_2_no_padding,
    )

    import trainer.engines.verl.plugin  # noqa: F401
    from trainer.engines.verl.main import compose

    out = model(
        input_ids=tensors["input_ids"], attention_mask=tensors["attention_mask"],
        position_ids=tensors["position_ids"], use_cache=False,
    )  # fmt: skip
    following = tensors["input_ids"].roll(-1, dims=1)
    all_B_L = out.logits.log_softmax(dim=-1).gather(-1, following[..., None])[..., 0]
    data = left_right_2_no_padding(DataProto.from_dict(tensors=dict(tensors)).to_tensordict())
    tokens = int(tensors["response_mask"].sum())
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=len(all_B_L))
    actor = omega_conf_to_dataclass(compose(config, verl_cpu.OVERRIDES).actor_rollout_ref.actor)
    output = {"log_probs": all_B_L[tensors["attention_mask"].bool()]}
    loss, metrics = ppo_loss(actor, output, data)
    loss.backward()
    assert "actor/sero_loss" in metrics
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "objective", ["grpo", "gigpo", "hgpo", "rloo", "reinforce_pp_baseline", "dr_grpo"]
)
def test_the_gradient_of_verl_s_loss_is_ours(folder: Path, objective: str) -> None:
    """To 1e-6 of its norm, SERO's branch rows among the rows."""
    config = small.small_config(
        **NAMED | {"objective__name": objective, "objective__aggregation": "token-mean",
                   "optim__steps": 1, "model__path": str(folder / "policy")}
    )  # fmt: skip
    model = small.model().double()
    driver = _driver(config, model)
    found = driver.collect(0)
    joined = driver.update_batch(found, _values(config, found, model), ranks=1)
    assert joined.branch_rows > 3
    through = _verl_gradient(config, model, joined.tensors)
    expected = own_update.gradients(config, small.model().double(), driver.student, found)
    driver.close()
    assert own_update.apart(through, expected) < 1e-6


REGULARISED: dict[str, Any] = {"objective__kl_coef": 0.2, "objective__entropy_coef": 0.05}


@pytest.mark.parametrize("extra", [{}, REGULARISED], ids=["plain", "kl_entropy"])
@pytest.mark.parametrize("sero", [{"weight": 0.5}, None], ids=["sero", "alone"])
def test_the_actor_s_gradient_is_that_of_our_trainer(
    make: Make, extra: dict[str, Any], sero: dict[str, Any] | None
) -> None:
    """Through verl's FSDP engine in float32. With KL and entropy it also shows that neither counts
    a token of a branch row."""
    trainer, config = make(optim__steps=1, auxiliary__sero=sero, optim__lr=0.0, **extra)
    found = trainer.driver.collect(0)
    # The policy has moved off its reference, or there is no KL.
    moved = small.model(seed=3)
    with torch.no_grad():
        new = dict(moved.named_parameters())
        for name, value in trainer.actor_rollout_wg.module.named_parameters():
            value.to_local().copy_(new[name])
    metrics = trainer.update(found, trainer.base_batch(found))
    assert (metrics["verl/branch_rows"] > 0) == (sero is not None)
    reference = small.model() if extra else None
    expected = own_update.gradients(config, moved, trainer.driver.student, found, reference)
    assert own_update.apart(trainer.actor_rollout_wg.gradients, expected) < 5e-6
    trainer.close()


@pytest.mark.parametrize("passes", [4096, 250])
def test_two_optimiser_steps_are_those_of_our_trainer(make: Make, passes: int) -> None:
    """With turns and branch rows cut into passes of any size."""
    trainer, config = make(optim__steps=2, optim__micro_batch_tokens=passes)
    before = trainer.actor_rollout_wg.weights()
    found = trainer.driver.collect(0)
    metrics = trainer.update(found, trainer.base_batch(found))
    after = trainer.actor_rollout_wg.weights()
    assert metrics["verl/branch_rows"] > 3
    ours = small.model()
    own = own_update.learn(config, ours, trainer.driver.student, found)
    assert own["optimizer_steps"] == 2
    through = {name: after[name] - before[name] for name in before}
    expected = {name: p.detach() - before[name] for name, p in ours.named_parameters()}
    assert own_update.apart(through, expected) < 1e-5
    trainer.close()


def test_z_is_measured_by_the_actor(make: Make) -> None:
    trainer, config = make()
    found = trainer.driver.collect(0)
    trainer.update(found, trainer.base_batch(found))
    own = own_update.learner(config, small.model(), trainer.driver.student)
    (method,) = own.methods
    from trainer.methods.protocol import Rollouts

    method.prepare(Rollouts(0, found.turns, found.segments, found.trajectories), own.model)
    expected = [z for root in method.roots for z in root.logz]
    measured = [z for root in trainer.driver.sero.roots for z in root.logz]
    assert len(measured) > 3
    assert measured == pytest.approx(expected, abs=2e-5)
    assert trainer.score([]) == []
    trainer.close()


def test_a_run_and_its_continuation(make: Make, folder: Path, tmp_path: Path) -> None:
    """`fit` for two iterations, and one iteration with its continuation from verl's checkpoint:
    the same weights."""

    def run(iterations: int, place: Path) -> Any:
        named = {**NAMED, "model__path": str(folder / "policy"), "run__iterations": iterations,
                 "optim__lr": 1e-2, "optim__optimizer": "adamw", "run__checkpoint_every": 1,
                 "eval__initial": True, "rollout__tasks": 2}  # fmt: skip
        config = small.small_config(**named)
        acting = small.model()
        trainer = verl_cpu.local_trainer(
            config, small.tokenizer(), acting, HFSampler(acting, small.student().stop_ids),
            task_set=small.games(),
        )  # fmt: skip
        trainer.config.trainer.default_local_dir = str(place)
        trainer.fit()
        return trainer

    whole = run(2, tmp_path / "whole")
    assert whole.global_steps == 2
    assert whole.checkpoint_manager.updates == 3
    run(1, tmp_path / "parts")
    second = run(2, tmp_path / "parts")
    expected = whole.actor_rollout_wg.weights()
    start = dict(small.model().named_parameters())
    assert any(not torch.equal(expected[k], start[k].detach()) for k in expected)
    for name, value in second.actor_rollout_wg.weights().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)


def test_an_iteration_says_what_it_did(make: Make, tmp_path: Path) -> None:
    trainer, _ = make(optim__lr=1e-3)
    trainer.config.trainer.rollout_data_dir = str(tmp_path / "data")
    metrics = trainer.iterate(0)
    roots = [
        json.loads(line) for line in (tmp_path / "data" / "roots.jsonl").read_text().splitlines()
    ]
    assert [root["iteration"] for root in roots] == [0] * metrics["sero/roots"]
    assert all("detail" not in root for root in roots)
    for name in (
        "actor/pg_loss", "actor/sero_loss", "actor/grad_norm", "sero/roots", "success_rate",
        "verl/branch_rows", "time/collect", "iteration_s", "advantage_abs_mean",
    ):  # fmt: skip
        assert math.isfinite(metrics[name]), name
    trainer.close()


def test_settings_that_must_follow_may_not_differ(folder: Path) -> None:
    from omegaconf import OmegaConf  # type: ignore[import-not-found, unused-ignore]

    from trainer.engines.verl.main import compose
    from trainer.engines.verl.sero_trainer import SeroTrainer

    config = small.small_config(**NAMED | {"model__path": str(folder / "policy")})
    settings = compose(config, [*verl_cpu.OVERRIDES, "actor_rollout_ref.actor.shuffle=true"])
    with pytest.raises(ConfigError, match=r"shuffle=True .* expected False"):
        SeroTrainer(settings, small.tokenizer(), role_worker_mapping={}, resource_pool_manager=None)
    settings = compose(config, verl_cpu.OVERRIDES)
    OmegaConf.update(settings, "sero.objective.name", "ppo")
    with pytest.raises(ConfigError, match="does not run through verl"):
        SeroTrainer(settings, small.tokenizer(), role_worker_mapping={}, resource_pool_manager=None)
