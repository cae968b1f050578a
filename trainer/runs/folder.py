"""The folder of a run: where its files are, and how to get its policy back.

    run.json            resolved config, versions, hashes
    metrics.jsonl       one line per iteration
    roots.jsonl         one line per root of an oracle branch
    initial/            the policy that training started from, see `trainer.runs.manifest`
    checkpoints/NNNNNN/ see `trainer.runs.checkpoint`
    eval/NNNNNN_SPLIT.json
    turns/NNNNNN.parquet (with run.save_turns)

Nothing here imports `oracles`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agent_envs.errors import SeroError
from agent_envs.prompting import PromptTemplate, get_template
from trainer.config import Config, ConfigError, from_dict
from trainer.config.dead_switches import recorded, without_dead_switches
from trainer.models.tiny import load_policy
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import stop_ids_of
from trainer.runs.checkpoint import checkpoint_numbers, latest_checkpoint, load_checkpoint
from trainer.worlds.environments import environment_of

__all__ = [
    "RunFolder",
    "RunFolderError",
    "dtype_of",
    "load_trained",
    "make_student",
    "template_of",
    "usable_device",
]


class RunFolderError(SeroError):
    """A folder that is no run, or one that is in the way."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths inside a run folder."""

    path: Path

    @property
    def info(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def roots(self) -> Path:
        return self.path / "roots.jsonl"

    @property
    def initial(self) -> Path:
        return self.path / "initial"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def evaluation(self, iteration: int, split: str) -> Path:
        return self.path / "eval" / f"{iteration:06d}_{split}.json"

    def turns(self, iteration: int) -> Path:
        return self.path / "turns" / f"{iteration:06d}.parquet"

    def read_config(self) -> Config:
        """The config the run was made with.

        Raises:
            RunFolderError: there is no readable run.json.
        """
        return self.read_info()[0]

    def read_info(self) -> tuple[Config, Mapping[str, Any]]:
        """The config the run was made with, and all of run.json. Raises as `read_config`.

        A setting that had no effect, in a run of before it was refused, is at its default.
        """
        try:
            data = json.loads(self.info.read_text(encoding="utf-8"))
            with recorded():
                config = from_dict(data["config"])
            return without_dead_switches(config), data
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RunFolderError(f"{self.path} is no run folder: it holds no run.json.") from error
        except OSError as error:
            raise RunFolderError(f"{self.info} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(f"{self.info} is corrupt: {error}") from error


def dtype_of(config: Config) -> torch.dtype:
    """Weights of a policy that acts or is compared with; trained weights are always float32."""
    return torch.bfloat16 if config.run.dtype == "bfloat16" else torch.float32


def template_of(config: Config) -> PromptTemplate:
    """The prompt template of a run, in the wording for its environment."""
    return get_template(
        config.prompt.template,
        history_length=config.prompt.history_length,
        pages=environment_of(config.env.id).pages,
        layout=config.prompt.layout,
        context=config.prompt.context,
    )


def make_student(config: Config, model: Any, tokenizer: Any) -> Student:
    """Prompt template, tokenizer and limits of a run."""
    return Student(
        template_of(config),
        tokenizer,
        stop_ids_of(tokenizer, model),
        config.prompt.max_prompt_tokens,
    )


def usable_device(name: str) -> torch.device:
    """The device, tried out.

    Raises:
        ConfigError: torch does not know it, or this machine does not have it.
    """
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"The device {name!r} cannot be used here: {reason}") from error


def load_trained(
    run: str | Path, iteration: int | None = None, device: str | None = None
) -> tuple[Config, Any, Any, int]:
    """(config, model, tokenizer, iteration) of a run's checkpoint, verified; default the last.

    Iteration 0 is the policy that training started from, `initial/`. `device` None: that of the
    run's config.

    Raises:
        ConfigError, RunFolderError, CheckpointError, ModelFolderError: name the file.
    """
    folder = RunFolder(Path(run))
    config = folder.read_config()
    place = usable_device(config.run.device if device is None else device)
    if iteration == 0:
        model, tokenizer = load_policy(folder.initial, dtype=dtype_of(config))
        return config, model.to(place), tokenizer, 0
    numbers = checkpoint_numbers(folder.checkpoints)
    if iteration is not None and iteration not in numbers:
        there = ", ".join(map(str, sorted((0, *numbers))))
        raise RunFolderError(
            f"{folder.path} has no checkpoint after iteration {iteration}. There are those after "
            f"{there}; 0 is the policy that training started from."
        )
    path = (
        latest_checkpoint(folder.checkpoints)
        if iteration is None
        else folder.checkpoints / f"{iteration:06d}"
    )
    checkpoint = load_checkpoint(path)
    model, tokenizer = load_policy(checkpoint.path, dtype=dtype_of(config), verified=True)
    return config, model.to(place), tokenizer, checkpoint.iteration
