"""verl's trainer with our rollouts, and with SERO's branch rows in the actor's update.

`SeroTrainer` is a subclass of `verl.trainer.ppo.ray_trainer.RayPPOTrainer` (verl 0.9). Of verl it
uses the worker groups, inference servers, weight synchronisation, checkpoints and trackers as they
are, and these public or overridable parts:

- `init_workers`, `_compute_old_log_prob`, `_compute_ref_log_prob`, `_update_actor`,
  `_save_checkpoint`, `_load_checkpoint`, `_get_dp_size`;
- `verl.trainer.ppo.ray_trainer.compute_advantage`, which calls the estimator registered under
  `algorithm.adv_estimator`;
- `verl.DataProto`, and `pad_dataproto_to_divisor` / `unpad_dataproto` of `verl.protocol`.

It replaces `fit`: verl's own takes prompts from a data set and has one row a prompt; an episode has
as many rows as turns.

An iteration, in this order:

1. play groups of episodes with verl's servers; start the oracle's branches of them in a thread;
2. old log-probs, reference log-probs and advantages, of turns alone;
3. finish the branches: z under the same weights, by the actor's workers;
4. update: turns and branch rows, `optim.steps` optimiser steps an epoch;
5. checkpoint, new weights to the servers.

Raises, on import: `MissingExtra` without verl, `IncompatibleExtra` with another release of it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from trainer.config import Config, from_dict
from trainer.engines.verl.branch_rows import segment_tensors
from trainer.engines.verl.driver import Driver, Iteration
from trainer.engines.verl.sampler import ServerSampler
from trainer.engines.verl.settings import FIXED, check_settings
from trainer.engines.verl.versions import require_verl
from trainer.metrics import MetricsLog
from trainer.rollouts.data import Segment
from trainer.rollouts.rollout import Student
from trainer.runs.folder import make_student

require_verl()

# ruff: noqa: E402
from omegaconf import OmegaConf, open_dict  # type: ignore[import-not-found, unused-ignore]
from torchdata.stateful_dataloader import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    StatefulDataLoader,
)
from verl import DataProto  # type: ignore[import-not-found, unused-ignore]
from verl.protocol import (  # type: ignore[import-not-found, unused-ignore]
    pad_dataproto_to_divisor,
    unpad_dataproto,
)
from verl.trainer.ppo.ray_trainer import (  # type: ignore[import-not-found, unused-ignore]
    RayPPOTrainer,
    compute_advantage,
)
from verl.utils.metric import reduce_metrics  # type: ignore[import-not-found, unused-ignore]
from verl.utils.tracking import Tracking  # type: ignore[import-not-found, unused-ignore]

import trainer.engines.verl.plugin  # noqa: F401  # the driver computes advantages

__all__ = ["SeroTrainer", "student_of"]


def student_of(config: Config, tokenizer: Any) -> Student:
    """Prompts and end tokens of the policy that verl trains, whose weights are elsewhere."""
    from transformers import GenerationConfig

    model = SimpleNamespace(generation_config=None)
    with contextlib.suppress(OSError):  # without one, the tokenizer's end token is what there is
        model.generation_config = GenerationConfig.from_pretrained(config.model.path or "")
    return make_student(config, model, tokenizer)


class SeroTrainer(RayPPOTrainer):  # type: ignore[misc, unused-ignore]
    """See the module.

    Args:
        config: verl's, with our own resolved config under `sero` (`trainer.engines.verl.main`
            makes it).
        tokenizer: of the policy.
        others: of `RayPPOTrainer`: `role_worker_mapping`, `resource_pool_manager`, ...

    Raises:
        ConfigError: our config asks for what does not run through verl, or verl's differs from it
            in a key that must follow from ours (`trainer.engines.verl.settings.FIXED`).
    """

    def __init__(self, config: Any, tokenizer: Any, *others: Any, **named: Any) -> None:
        self.sero_config = from_dict(OmegaConf.to_container(config.sero, resolve=True))
        found = {key: OmegaConf.select(config, key) for key in FIXED}
        check_settings(found, self.sero_config)
        self.driver: Driver | None = None
        super().__init__(config, tokenizer, *others, **named)

    def _create_dataloader(self, *_: Any) -> None:
        """Episodes come from the environment. What verl checkpoints of a data set is a count."""
        self.total_training_steps = self.sero_config.run.iterations
        self.train_dataset = self.val_dataset = list(range(max(self.total_training_steps, 1)))
        self.train_dataloader = StatefulDataLoader(self.train_dataset, batch_size=1)
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = (
                self.total_training_steps
            )

    def init_workers(self) -> None:
        super().init_workers()
        seeded = self.config.actor_rollout_ref.rollout.name == "vllm"
        student = student_of(self.sero_config, self.tokenizer)
        sampler = ServerSampler(self.llm_server_manager.get_client(), student.stop_ids, seeded)
        self.driver = Driver(self.sero_config, student, sampler, self.score)

    def fit(self) -> None:
        """All iterations, from the last checkpoint on."""
        logger = Tracking(
            project_name=self.config.trainer.project_name,
            experiment_name=self.config.trainer.experiment_name,
            default_backend=self.config.trainer.logger,
            config=OmegaConf.to_container(self.config, resolve=True),
        )
        self.global_steps = 0
        self._load_checkpoint()
        self.checkpoint_manager.update_weights(self.global_steps)
        every = self.config.trainer
        try:
            if every.val_before_train and self.global_steps == 0:
                logger.log(data=self.evaluate(), step=0)
            while self.global_steps < self.total_training_steps:
                metrics = self.iterate(self.global_steps)
                self.global_steps += 1
                last = self.global_steps == self.total_training_steps
                if every.save_freq > 0 and (last or self.global_steps % every.save_freq == 0):
                    self._save_checkpoint()
                self.checkpoint_manager.update_weights(self.global_steps)
                if last or (every.test_freq > 0 and self.global_steps % every.test_freq == 0):
                    metrics |= self.evaluate()
                logger.log(data=metrics, step=self.global_steps)
        finally:
            self.close()

    def iterate(self, number: int) -> dict[str, Any]:
        """One iteration; returns its metrics."""
        driver, start = self._driver(), time.perf_counter()
        iteration = driver.collect(number, policy_version=number)
        self.checkpoint_manager.sleep_replicas()
        played = time.perf_counter()
        try:
            batch = self.base_batch(iteration)
            metrics = self.update(iteration, batch)
        finally:
            driver.abandon()
        ended = time.perf_counter()
        folder = self.config.trainer.get("rollout_data_dir")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for record in driver.records(iteration):
                MetricsLog(Path(folder) / "roots.jsonl").write(record)
        return {
            **_numbers(driver.metrics(iteration)),
            **metrics,
            "advantage_abs_mean": float(_masked(batch, "advantages").abs().mean()),
            "time/collect": played - start,
            "time/update": ended - played,
            "iteration_s": ended - start,
        }

    def base_batch(self, iteration: Iteration) -> Any:
        """The turns as a `DataProto` with old log-probs, a reference's, and advantages."""
        temperature = self.sero_config.rollout.temperature
        batch = _proto(iteration.tensors, temperature, iteration.arrays)
        batch.batch["old_log_probs"] = self._everywhere(batch, self._old, "old_log_probs")
        if self.use_reference_policy:
            batch.batch["ref_log_prob"] = self._everywhere(
                batch, self._compute_ref_log_prob, "ref_log_prob"
            )
        return compute_advantage(
            batch,
            adv_estimator=self.config.algorithm.adv_estimator,
            config=self.config.algorithm,
        )

    def update(self, iteration: Iteration, batch: Any) -> dict[str, Any]:
        """The optimiser steps of an iteration, with branch rows where there are any."""
        names = ("advantages", "old_log_probs", "ref_log_prob")
        values = {name: batch.batch[name] for name in names if name in batch.batch}
        ranks = self._get_dp_size(self.actor_rollout_wg, "actor")
        joined = self._driver().update_batch(iteration, values, ranks)
        actor = self.config.actor_rollout_ref.actor
        former = actor.ppo_mini_batch_size
        try:
            # verl's mini-batch is this many rows, whatever the number of turns was.
            with open_dict(self.config):
                actor.ppo_mini_batch_size = joined.step_rows
            output = self._update_actor(_proto(joined.tensors, 1.0))
        finally:
            with open_dict(self.config):
                actor.ppo_mini_batch_size = former
        return {
            **reduce_metrics(output.meta_info["metrics"]),
            "verl/branch_rows": joined.branch_rows,
            "verl/filler_rows": joined.filler_rows,
        }

    def score(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Log-probs of the segments' trained tokens, by the actor's workers."""
        if not segments:
            return []
        tensors = segment_tensors(segments, self._driver().student.pad_id)
        batch = _proto(tensors, 1.0)
        found = self._everywhere(batch, self._old, "old_log_probs")
        return [row[mask.bool()] for row, mask in zip(found, tensors["response_mask"], strict=True)]

    def evaluate(self) -> dict[str, Any]:
        """Figures of every split, flat."""
        return {
            f"eval/{split}/{name}": value
            for split, result in self._driver().evaluate().items()
            for name, value in _numbers(result).items()
        }

    def close(self) -> None:
        """Ends environments, the branches' workers, the sampler's thread and verl's writer."""
        if self.driver is not None:
            self.driver.close()
            close = getattr(self.driver.sampler, "close", None)
            if close is not None:
                close()
        self._shutdown_dump_executor()

    def _old(self, batch: Any) -> Any:
        return self._compute_old_log_prob(batch)[0]

    def _everywhere(self, batch: Any, compute: Any, name: str) -> Tensor:
        """What all data-parallel ranks compute of a batch, whose rows they share equally."""
        ranks = self._get_dp_size(self.actor_rollout_wg, "actor")
        padded, filled = pad_dataproto_to_divisor(batch, ranks)
        found: Tensor = unpad_dataproto(compute(padded), filled).batch[name]
        return found

    def _driver(self) -> Driver:
        if self.driver is None:
            raise RuntimeError("Call init_workers() first.")
        return self.driver


def _proto(
    tensors: Mapping[str, Tensor], temperature: float, arrays: Mapping[str, Any] | None = None
) -> Any:
    """A `DataProto` with what verl's workers look for in its `meta_info`."""
    lengths = tensors["attention_mask"].sum(dim=-1).tolist()
    return DataProto.from_dict(
        tensors=dict(tensors),
        non_tensors=dict(arrays or {}),
        meta_info={"temperature": temperature, "global_token_num": lengths},
    )


def _masked(batch: Any, name: str) -> Tensor:
    value: Tensor = batch.batch[name][batch.batch["response_mask"].bool()]
    return value if value.numel() else torch.zeros(1)


def _numbers(figures: Any) -> dict[str, Any]:
    """Those entries that a tracker can draw."""
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
