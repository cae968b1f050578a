"""Short runs on households and in a shop: their config, and a policy to start from."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.trainer import small
from tests.trainer.test_webshop_training import SHOP
from trainer.config import Config, load_config
from trainer.models.tiny import save_policy
from trainer.supervised.warmstart import warm_policy
from trainer.worlds.environments import ALFWORLD, WEBSHOP
from trainer.worlds.tasks import open_tasks


def short_config(env: str, **changes: Any) -> Config:
    """Two iterations of a few episodes; `changes` have dotted keys."""
    less: dict[str, Any] = {
        "optim.lr": 1e-3,
        "rollout.rollouts": 4,
        "rollout.reward": "env",
        "env.max_steps": 6,
        "eval.tasks": 2,
        "eval.initial": False,
    }
    world = SHOP if env == WEBSHOP else small.BASE
    if changes.get("objective.name") == "none":
        del less["rollout.reward"]  # nothing reads a reward there, so it is refused
    both = {k: v for k, v in world.items() if not k.startswith("auxiliary.")}
    return load_config({}, both | less | changes)


@cache
def cloned_policy(env: str, folder: Path) -> Path:
    """A policy cloned from demonstrations until it acts half-way well, in a folder of `folder`."""
    steps = {ALFWORLD: 220, WEBSHOP: 150}[env]
    config = short_config(env, **{"warmstart.steps": steps, "warmstart.lr": 1e-2})
    model, tokenizer, _ = warm_policy(config, open_tasks(config.env), None)
    path = Path(mkdtemp(dir=folder)) / "policy"
    save_policy(path, model, tokenizer)
    return path
