"""What a run needs besides its config, looked for before any work is done.

Packages, oracles, libraries of skills, text models and teachers' folders are read when the run is
put together, after a warm start that may have taken long. Here each is looked for and nothing is
made: an oracle or a text model may be a large thing. What is missing is said with its field.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from importlib import util
from typing import Any

import torch
from torch import nn

from agent_envs.errors import SeroError
from trainer.config import Config, ConfigError
from trainer.runs.folder import make_student
from trainer.runs.preflight import check_prompts
from trainer.worlds.environments import PLANNER, TaskSet, environment_of
from trainer.worlds.named import load_named
from trainer.worlds.oracles import check_oracle, check_planner
from trainer.worlds.tasks import make_env, split_tasks

__all__ = ["check_needs", "check_policy", "warmstart_oracle"]


def check_needs(config: Config, *, fresh: bool = True) -> None:
    """Looks for all that can be looked for without the policy.

    Args:
        fresh: the run begins here, and may have a warm start; else it is resumed.

    Raises:
        ConfigError, SeroError: what is missing, with the field that asks for it.
    """
    _check_packages(config)
    if fresh and _demonstrates(config):
        oracle, field = warmstart_oracle(config)
        check_oracle(oracle, config.env.id, field)
    for oracle, field in _oracles(config):
        check_oracle(oracle, config.env.id, field)
    for name, section in config.auxiliary.active():
        if getattr(section, "context", None) == "plan":
            check_planner(config.env.id, f"auxiliary.{name}.context=plan")
        _check_parts(config, name, section)


def check_policy(config: Config, task_set: TaskSet, model: nn.Module, tokenizer: Any) -> None:
    """What a run wants of its policy, before the policy is trained or written.

    Raises:
        ConfigError: `lora.targets` or `optim.packing` does not go with this model, or a first
            prompt not with its limits.
    """
    from trainer.models.lora import adapted_layers
    from trainer.models.packed_attention import use_packing

    if config.lora.rank:
        adapted_layers(model, config.lora)
    use_packing(model, config.optim.packing)
    split = config.env.split
    with closing(make_env(config.env, task_set, split)) as env:
        first = split_tasks(config.env, task_set, split)[0]
        check_prompts(config, make_student(config, model, tokenizer), model, env, first)


def warmstart_oracle(config: Config) -> tuple[str, str]:
    """Who demonstrates, and the field that says so.

    An environment without oracles by name has no `planner`. Where `warmstart.oracle` is left at
    that, the first oracle of one's own that an auxiliary objective asks demonstrates.

    Raises:
        ConfigError: there is nobody.
    """
    name = config.warmstart.oracle
    if name != PLANNER or environment_of(config.env.id).oracles:
        return name, "warmstart.oracle"
    for other, field in _oracles(config):
        if ":" in other:
            return other, field
    way_out = (
        "or warmstart.given_model to false"
        if config.warmstart.given_model
        else "or model.path to a model that needs no warm start"
    )
    raise ConfigError(
        f"warmstart.oracle={name}: {config.env.id} has no oracles by name, so nobody can "
        f"demonstrate. Set warmstart.oracle to 'module:factory', {way_out}."
    )


def _demonstrates(config: Config) -> bool:
    """Whether the run begins with demonstrations: a fresh model's tokenizer is made of them."""
    w = config.warmstart
    if config.model.path is not None:
        return w.given_model
    return max(w.demonstrations, config.model.tokenizer_games) > 0


def _oracles(config: Config) -> Iterator[tuple[str, str]]:
    """The oracles that auxiliary objectives ask, with their fields; `sero` first."""
    for name, section in config.auxiliary.active():
        oracle = getattr(section, "oracle", None)
        unasked = name == "gkd" and (section.source != "oracle" or section.fraction >= 1)
        if oracle is not None and not unasked:
            yield oracle, f"auxiliary.{name}.oracle"


def _check_packages(config: Config) -> None:
    from trainer.learning.optim import check_bitsandbytes
    from trainer.models.lora import check_peft

    if config.lora.rank:
        check_peft()
    if config.optim.optimizer == "adamw_8bit":
        check_bitsandbytes(torch.device(config.run.device).type == "cuda")
    if config.env.pool == "ray" and util.find_spec("ray") is None:
        raise ConfigError(
            "env.pool=ray needs the package ray: pip install ray. Or use env.pool: process."
        )


def _check_parts(config: Config, name: str, section: Any) -> None:
    """What an auxiliary objective reads or imports when it is made."""
    place = f"auxiliary.{name}"
    if hasattr(section, "skills") and hasattr(section, "entries"):
        uses = getattr(section, "source", "library") == "library"
        if uses:
            from trainer.methods.skills.contexts import library_of

            library_of(section, place)
    model = getattr(getattr(section, "analyser", None), "model", "")
    hindsight = getattr(section, "source", "hindsight") == "hindsight"
    for field, named in (
        (f"{place}.analyser.model", model if hindsight else ""),
        (f"{place}.judge", getattr(section, "judge", None) or ""),
    ):
        if ":" in named:
            try:
                load_named(named, field)
            except SeroError as error:
                raise ConfigError(f"There is no such text model. {error}") from error
    teacher = getattr(section, "teacher", None)
    if name in ("opd", "gkd") and teacher is not None:
        from trainer.models.tiny import check_policy_folder

        check_policy_folder(teacher, f"{place}.teacher")
    if name == "sero":
        from trainer.branches.records import depth_at

        depth_at(section, config.env.max_steps, 0)
