"""Our config as verl's: which of its keys follow from ours, and what of ours it cannot do.

One config says what is trained: environment, prompts, objective, SERO. `verl_settings` writes the
part of it that verl's workers must know under verl's own names (those of
`verl/trainer/config/ppo_trainer.yaml` in 0.9). Everything else of verl (GPUs, tensor parallelism,
offloading, the inference server) is set by its own keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.config import Config, ConfigError
from trainer.engines.verl.estimators import ESTIMATORS

__all__ = ["FIXED", "KL_NAMES", "check_config", "check_settings", "verl_settings"]

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
KL_NAMES = {"k2": "mse", "k3": "low_var_kl"}
NO_DUAL_CLIP = 1e20
"""verl's dual clip is always there; so far out it never binds."""

FIXED = (
    "algorithm.adv_estimator",
    "algorithm.use_kl_in_reward",
    f"{ACTOR}.policy_loss.loss_mode",
    f"{ACTOR}.loss_agg_mode",
    f"{ACTOR}.shuffle",
    f"{ACTOR}.use_dynamic_bsz",
    f"{ROLLOUT}.n",
    f"{ROLLOUT}.temperature",
    "trainer.critic_warmup",
)
"""Keys whose values may not be others: the arrangement of the steps relies on them."""

_Refused = tuple[str, Callable[[Config], bool], str]
_REFUSED: tuple[_Refused, ...] = (
    (
        "model.path",
        lambda c: c.model.path is None,
        "verl loads a Hugging Face folder; name one",
    ),
    (
        "warmstart.given_model",
        lambda c: c.warmstart.given_model,
        "its workers load model.path as it is; use false, and the folder of a warm-started policy "
        "(initial/ of a run of `sero train`)",
    ),
    (
        "sampler.backend",
        lambda c: c.sampler.backend != "hf",
        "leave it out; verl has actor_rollout_ref.rollout.name",
    ),
    ("run.save_turns", lambda c: c.run.save_turns, "use false"),
    (
        "objective.name",
        lambda c: f"sero_{c.objective.name}" not in ESTIMATORS,
        f"use one of {', '.join(sorted(name.removeprefix('sero_') for name in ESTIMATORS))}",
    ),
    (
        "objective.aggregation",
        lambda c: c.objective.aggregation != "token-mean",
        "verl would divide by the rows of a step, branch rows among them; use token-mean",
    ),
    ("objective.ratio", lambda c: c.objective.ratio != "token", "use token"),
    (
        "objective.kl_placement",
        lambda c: c.objective.kl_coef > 0 and c.objective.kl_placement != "loss",
        "use loss",
    ),
    ("objective.dynamic_rounds", lambda c: bool(c.objective.dynamic_rounds), "use 0"),
    ("objective.overlong_buffer", lambda c: c.objective.overlong_buffer is not None, "use null"),
    ("objective.mask_truncated", lambda c: c.objective.mask_truncated, "use false"),
    ("objective.drop_constant_groups", lambda c: c.objective.drop_constant_groups, "use false"),
    (
        "objective.anchors.similarity",
        lambda c: c.objective.anchors.similarity is not None,
        "use null",
    ),
    (
        "auxiliary",
        lambda c: any(name != "sero" for name, _ in c.auxiliary.active()),
        "only auxiliary.sero runs through verl",
    ),
    (
        "auxiliary.sero.z_every",
        lambda c: c.auxiliary.sero is not None and c.auxiliary.sero.z_every != "iteration",
        "verl's epochs run inside its workers; use iteration",
    ),
    (
        "auxiliary.sero.token_weights",
        lambda c: c.auxiliary.sero is not None and c.auxiliary.sero.token_weights != "none",
        "use none",
    ),
    (
        "rollout.temperature",
        lambda c: c.auxiliary.sero is not None and c.rollout.temperature != 1.0,
        "verl has one temperature for all rows, and branch rows and z are at 1; use 1",
    ),
    (
        "optim.old_logprobs",
        lambda c: c.optim.old_logprobs != "recompute",
        "its servers round otherwise than its actor, and ratios would not start at 1; use "
        "recompute",
    ),
    (
        "optim.optimizer",
        lambda c: c.optim.optimizer not in ("adamw", "sgd"),
        f"use adamw, and {ACTOR}.optim.optimizer for one of verl's",
    ),
    (
        "optim.decay_steps",
        lambda c: c.optim.decay_steps is not None,
        f"use null, and {ACTOR}.optim.lr_scheduler_type for one of verl's",
    ),
    (
        "lora.rank",
        lambda c: c.lora.rank > 0,
        "use 0, and actor_rollout_ref.model.lora_rank for verl's adapters",
    ),
    (
        "parallel.mode",
        lambda c: c.parallel.mode != "none",
        "use none; verl has trainer.nnodes and trainer.n_gpus_per_node",
    ),
    (
        "run.early_stop.patience",
        lambda c: c.run.early_stop.patience > 0,
        "use 0",
    ),
    ("log.to", lambda c: bool(c.log.to), "leave it out; verl has trainer.logger"),
)


def check_config(config: Config) -> None:
    """Raises `ConfigError` where the config asks for what does not run through verl."""
    for name, clashes, way_out in _REFUSED:
        if clashes(config):
            value: Any = config
            for part in name.split("."):
                value = getattr(value, part)
            raise ConfigError(f"{name}={value} does not run through verl: {way_out}.")


def verl_settings(config: Config) -> dict[str, Any]:
    """verl's keys that follow from our config, and their values.

    Raises:
        ConfigError: see `check_config`.
    """
    check_config(config)
    return {**_algorithm(config), **_actor(config), **_optimiser(config), **_run(config)}


def _algorithm(config: Config) -> dict[str, Any]:
    objective, anchors = config.objective, config.objective.anchors
    return {
        "algorithm.adv_estimator": f"sero_{objective.name}",
        "algorithm.use_kl_in_reward": False,
        "algorithm.sero": {
            "flavor": objective.flavor,
            "use_std": objective.use_std,
            "penalty": config.rollout.format_penalty,
            "gamma": anchors.gamma,
            "omega": anchors.weight,
            "depth": anchors.depth,
            "alpha": anchors.alpha,
            "base_group": anchors.base_group,
        },
    }


def _actor(config: Config) -> dict[str, Any]:
    objective, optim, rollout = config.objective, config.optim, config.rollout
    passes = "fp32" if config.run.dtype == "float32" else "bf16"
    precision = {"param_dtype": passes, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    return {
        "actor_rollout_ref.model.path": config.model.path,
        "actor_rollout_ref.model.enable_gradient_checkpointing": optim.gradient_checkpointing,
        f"{ACTOR}.policy_loss.loss_mode": "sero",
        f"{ACTOR}.loss_agg_mode": objective.aggregation,
        f"{ACTOR}.clip_ratio": objective.clip_low,
        f"{ACTOR}.clip_ratio_low": objective.clip_low,
        f"{ACTOR}.clip_ratio_high": objective.clip_high,
        f"{ACTOR}.clip_ratio_c": objective.dual_clip or NO_DUAL_CLIP,
        f"{ACTOR}.use_kl_loss": objective.kl_in_loss,
        f"{ACTOR}.kl_loss_coef": objective.kl_coef,
        f"{ACTOR}.kl_loss_type": KL_NAMES.get(objective.kl_kind, "low_var_kl"),
        f"{ACTOR}.entropy_coeff": objective.entropy_coef,
        f"{ACTOR}.ppo_epochs": optim.epochs,
        f"{ACTOR}.ppo_mini_batch_size": rollout.tasks * rollout.rollouts,
        f"{ACTOR}.shuffle": False,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": optim.micro_batch_tokens,
        # Of forward passes; verl keeps trained weights in float32 (`fsdp_config.model_dtype`).
        f"{ACTOR}.fsdp_config.mixed_precision": dict(precision),
        "actor_rollout_ref.ref.fsdp_config.mixed_precision": dict(precision),
        f"{ROLLOUT}.dtype": config.run.dtype,
        f"{ROLLOUT}.n": 1,
        f"{ROLLOUT}.temperature": rollout.temperature,
        f"{ROLLOUT}.top_p": rollout.top_p,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.agent.num_workers": 1,
    }


def _optimiser(config: Config) -> dict[str, Any]:
    optim = config.optim
    steps = optim.steps * optim.epochs
    own: dict[str, Any] = {"eps": optim.eps} if optim.optimizer == "adamw" else {}
    return {
        f"{ACTOR}.optim.optimizer": "AdamW" if optim.optimizer == "adamw" else "SGD",
        f"{ACTOR}.optim.optimizer_impl": "torch.optim",
        f"{ACTOR}.optim.lr": optim.lr,
        # verl moves its schedule once an iteration, ours once an optimiser step.
        f"{ACTOR}.optim.lr_warmup_steps": -(-optim.warmup_steps // steps),
        f"{ACTOR}.optim.weight_decay": optim.weight_decay,
        f"{ACTOR}.optim.betas": [optim.beta1, optim.beta2],
        f"{ACTOR}.optim.clip_grad": optim.grad_clip or float("inf"),
        **({f"{ACTOR}.optim.override_optimizer_config": own} if own else {}),
    }


def _run(config: Config) -> dict[str, Any]:
    rollout = config.rollout
    return {
        "data.max_prompt_length": config.prompt.max_prompt_tokens,
        "data.max_response_length": rollout.max_new_tokens,
        "data.train_batch_size": rollout.tasks * rollout.rollouts,
        "trainer.total_training_steps": config.run.iterations,
        "trainer.total_epochs": 1,
        "trainer.critic_warmup": 0,
        "trainer.save_freq": config.run.checkpoint_every or config.run.iterations,
        "trainer.test_freq": config.eval.every or -1,
        "trainer.val_before_train": config.eval.initial,
        "trainer.use_v1": False,
        "reward.num_workers": 1,
    }


def check_settings(found: Mapping[str, Any], config: Config) -> None:
    """Raises `ConfigError` where one of `FIXED` is not what our config makes of it.

    Args:
        found: the values of `FIXED` in the config that verl runs with.
    """
    expected = verl_settings(config)
    for key in FIXED:
        if found[key] != expected[key]:
            raise ConfigError(
                f"{key}={found[key]!r} in verl's config, expected {expected[key]!r}, which follows "
                "from our config. Leave it out of verl's settings."
            )
