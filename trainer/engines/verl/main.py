"""Trains one of our configs through verl.

    python -m trainer.engines.verl.main CONFIG.yaml [--section.key VALUE ...] [-- KEY=VALUE ...]

What stands before `--` is ours, as for `trainer.cli.main train`; what stands behind it is verl's
(Hydra overrides of `verl/trainer/config/ppo_trainer.yaml`): GPUs, inference server, offloading,
trackers. `--print` shows verl's keys that follow from the config, and trains nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from agent_envs.errors import SeroError
from trainer.config import Config, load_config, parse_overrides, resolve
from trainer.engines.verl.settings import verl_settings
from trainer.engines.verl.versions import require_verl

__all__ = ["compose", "main", "run", "task_runner"]

PLUGIN = "trainer.engines.verl.plugin"
MODULES = "VERL_USE_EXTERNAL_MODULES"


def compose(config: Config, overrides: Sequence[str] = ()) -> Any:
    """verl's config: its defaults, what follows from ours, and over both the overrides.

    Our own config is in it under `sero`, resolved, so that it reaches every machine and tracker.
    Every process of verl imports our plugin: the variable that says so travels with Ray.

    Raises:
        ConfigError: our config asks for what does not run through verl.
        MissingExtra, IncompatibleExtra: no verl, or another release of it.
    """
    settings = verl_settings(config)
    require_verl()
    from hydra import compose as hydra_compose  # type: ignore[import-not-found, unused-ignore]
    from hydra import initialize_config_module
    from omegaconf import OmegaConf  # type: ignore[import-not-found, unused-ignore]

    with initialize_config_module("verl.trainer.config", version_base=None):
        found = hydra_compose("ppo_trainer", overrides=list(overrides))
    given = {item.lstrip("+~").partition("=")[0] for item in overrides}
    for key, value in settings.items():
        if key not in given:
            OmegaConf.update(found, key, value, force_add=True)
    OmegaConf.update(found, "sero", resolve(config), force_add=True)
    variables = "ray_kwargs.ray_init.runtime_env.env_vars"
    OmegaConf.update(found, f"{variables}.{MODULES}", modules(), force_add=True)
    return found


def modules() -> str:
    """The value of `VERL_USE_EXTERNAL_MODULES`: what it is, and our plugin."""
    present = [name for name in os.environ.get(MODULES, "").split(",") if name]
    return ",".join(present if PLUGIN in present else [*present, PLUGIN])


def task_runner() -> Any:
    """The Ray actor that makes a `SeroTrainer` and trains; see verl's `BaseTaskRunner`."""
    require_verl()
    import ray  # type: ignore[import-not-found, unused-ignore]
    from verl.trainer.main_ppo_v0 import (  # type: ignore[import-not-found, unused-ignore]
        BaseTaskRunner,
    )

    class SeroTaskRunner(BaseTaskRunner):  # type: ignore[misc, unused-ignore]
        def run(self, config: Any) -> None:
            from omegaconf import OmegaConf
            from verl.utils.config import (  # type: ignore[import-not-found, unused-ignore]
                omega_conf_to_dataclass,
            )

            from trainer.engines.verl.sero_trainer import SeroTrainer

            OmegaConf.resolve(config)
            _, group = self.add_actor_rollout_worker(config)
            model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
            trainer = SeroTrainer(
                config,
                model.tokenizer,
                role_worker_mapping=self.role_worker_mapping,
                resource_pool_manager=self.init_resource_pool_mgr(config),
                ray_worker_group_cls=group,
            )
            trainer.init_workers()
            trainer.fit()

    return ray.remote(SeroTaskRunner)


def run(config: Config, overrides: Sequence[str] = ()) -> None:
    """Trains through verl, on the Ray cluster that there is or one of this machine."""
    found = compose(config, overrides)
    os.environ[MODULES] = modules()
    from verl.trainer.main_ppo import run_ppo  # type: ignore[import-not-found, unused-ignore]
    from verl.trainer.ppo.utils import (  # type: ignore[import-not-found, unused-ignore]
        need_critic,
        need_reference_policy,
    )
    from verl.utils.config import (  # type: ignore[import-not-found, unused-ignore]
        validate_config,
    )

    validate_config(
        config=found,
        use_reference_policy=need_reference_policy(found),
        use_critic=need_critic(found),
    )
    run_ppo(found, task_runner_class=task_runner())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 where the run ended, 2 where it could not begin."""
    items = list(sys.argv[1:] if arguments is None else arguments)
    cut = items.index("--") if "--" in items else len(items)
    own, overrides = items[:cut], items[cut + 1 :]
    shown = "--print" in own
    own = [item for item in own if item != "--print"]
    if not own or own[0].startswith("--"):
        print(__doc__)
        return 0 if own == ["--help"] else 2
    try:
        config = load_config(own[0], parse_overrides(own[1:]))
        if shown:
            print(json.dumps(verl_settings(config), indent=2))
            return 0
        run(config, overrides)
    except SeroError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
