"""What is evaluated: the policy of a run, a folder with a chat model, or a model behind an address.

torch is loaded for the first two only. Nothing here imports `oracles`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_envs.errors import SeroError
from trainer.baselines.models import ReplyModel
from trainer.config import Config, ConfigError, load_config
from trainer.worlds.environments import ALFWORLD, WEBSHOP

if TYPE_CHECKING:
    from trainer.baselines.endpoint import EndpointSettings
    from trainer.generation.base import StreamingSampler
    from trainer.rollouts.rollout import Student

__all__ = [
    "PromptOptions",
    "Subject",
    "is_model_folder",
    "open_endpoint",
    "open_model",
    "open_run",
]

_ENVS = {"alfworld": ALFWORLD, "webshop": WEBSHOP}
# Step cap and prompt limit of the published runs.
_PUBLISHED: dict[str, tuple[int, int]] = {ALFWORLD: (50, 2048), WEBSHOP: (15, 4096)}
_MAX_NEW_TOKENS = 512
_WEIGHTS = (".safetensors", ".json", ".txt", ".model", ".jinja")


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """How a model that is no run is prompted; None: the published value, else the config's own.

    Attributes:
        env: `alfworld`, `webshop` or an id that the trainer knows.
    """

    env: str = "alfworld"
    template: str = "field"
    history_length: int = 2
    max_steps: int | None = None
    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated.

    Attributes:
        name: for files and people.
        config: environment, prompt and limits.
        identity: what is known of the weights.
        iteration: of a run's checkpoint.
        student, sampler, weights: of a local policy.
        model: a server.
    """

    name: str
    config: Config
    identity: Mapping[str, Any]
    iteration: int | None = None
    student: Student | None = None
    sampler: StreamingSampler | None = None
    weights: Any = None
    model: ReplyModel | None = None

    def close(self) -> None:
        """Ends what it started."""
        for part in (self.sampler, self.model):
            if part is not None:
                part.close()


def is_model_folder(path: Path) -> bool:
    """Whether a folder holds a model, not a run."""
    return (path / "config.json").is_file() and not (path / "run.json").exists()


def open_run(run: Path, iteration: int | None = None, device: str | None = None) -> Subject:
    """The policy of a run's checkpoint (default: the last), as it would be deployed.

    Raises:
        RunFolderError, CheckpointError, ConfigError: name what is wrong.
    """
    import torch

    from trainer.runs.folder import RunFolder, load_trained

    config, model, tokenizer, done = load_trained(run, iteration, device)
    torch.set_num_threads(config.run.threads)
    folder = RunFolder(run)
    place = folder.checkpoints / f"{done:06d}" if done else folder.initial
    manifest = place / "manifest.json"
    identity = {
        "kind": "checkpoint",
        "name": f"{run.resolve().name}@{done}",
        "digest": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "sampler": config.sampler.backend,
    }
    return _local(identity["name"], config, model, tokenizer, identity, done)


def open_model(
    folder: Path, options: PromptOptions, device: str | None = None, dtype: str = "float32"
) -> Subject:
    """A chat model from a folder; nothing is downloaded.

    Raises:
        ModelFolderError, ConfigError: name what is wrong.
    """
    from trainer.models.tiny import load_policy
    from trainer.runs.folder import dtype_of, usable_device

    more = {"model.path": str(folder), "run.dtype": dtype, "optim.old_logprobs": "recompute"}
    config = _config(options, more)
    if device is not None:
        config = config.replace(**{"run.device": device})
    place = usable_device(config.run.device)
    model, tokenizer = load_policy(folder, dtype=dtype_of(config))
    identity = {
        "kind": "folder",
        "name": folder.resolve().name,
        "digest": folder_digest(folder),
        "dtype": dtype,
        "sampler": config.sampler.backend,
    }
    return _local(identity["name"], config, model.to(place), tokenizer, identity, None)


def open_endpoint(settings: EndpointSettings, options: PromptOptions) -> Subject:
    """A model behind an address; needs no torch.

    Raises:
        EndpointError, ConfigError: name what is wrong.
    """
    from trainer.baselines.endpoint import EndpointModel

    config = _config(options, {"eval.batch_size": settings.concurrency})
    model = EndpointModel(settings)
    return Subject(settings.model, config, model.identity, model=model)


def folder_digest(folder: Path) -> str:
    """SHA-256 (hex) over names and contents of a folder's weights, settings and tokenizer.

    Raises:
        SeroError: a file cannot be read.
    """
    whole = hashlib.sha256()
    try:
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.suffix in _WEIGHTS:
                with path.open("rb") as file:
                    whole.update(f"{path.name}\0".encode())
                    whole.update(hashlib.file_digest(file, "sha256").digest())
    except OSError as error:
        raise SeroError(f"{folder} cannot be read: {error.strerror}.") from error
    return whole.hexdigest()


def _local(
    name: str,
    config: Config,
    model: Any,
    tokenizer: Any,
    identity: Mapping[str, Any],
    iteration: int | None,
) -> Subject:
    from trainer.generation.registry import make_sampler
    from trainer.runs.folder import make_student

    student = make_student(config, model, tokenizer)
    sampler = make_sampler(config, model, student)
    sampler.refresh()
    return Subject(name, config, identity, iteration, student, sampler, model)


def _config(options: PromptOptions, more: Mapping[str, Any]) -> Config:
    for name in ("max_steps", "max_prompt_tokens", "max_new_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1.")
    env_id = _ENVS.get(options.env, options.env)
    if ":" in env_id and options.max_steps is None:
        raise ConfigError(
            f"{env_id} has no published step limit: say how many steps its episodes have "
            "(--max-steps N)."
        )
    max_steps, max_prompt = _PUBLISHED.get(env_id, (None, None))
    chosen = {
        "env.id": env_id,
        "env.data": None,
        "env.max_steps": options.max_steps or max_steps,
        "prompt.template": options.template,
        "prompt.history_length": options.history_length,
        "prompt.max_prompt_tokens": options.max_prompt_tokens or max_prompt,
        "rollout.max_new_tokens": options.max_new_tokens or _MAX_NEW_TOKENS,
        "eval.tasks": None,
        **more,
    }
    # None of `env.data` means to look for data, None of `eval.tasks` all of them.
    unset = {"env.data", "eval.tasks"}
    return load_config({}, {k: v for k, v in chosen.items() if v is not None or k in unset})
