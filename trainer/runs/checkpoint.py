"""Checkpoints: safetensors and JSON with a hash for each file; no pickle anywhere.

Layout of one checkpoint, `checkpoints/000010/`:

    model.safetensors, config.json   the policy, loadable by transformers' `from_pretrained`
    tokenizer files                  whatever the tokenizer writes
    optimizer.safetensors            the optimiser's moments and step counts, by parameter name
    adapter.safetensors              low-rank adapters, where they are what is trained; the policy
                                     above then has them merged into its weights
    critic.safetensors, NAME.safetensors   a critic, and what the auxiliary objective NAME keeps
    state.json                       iteration, optimiser steps, counters, config hash
    manifest.json                    SHA-256 and size of every other file

A checkpoint appears under its final name only when it is complete, so a killed run leaves none
that is half written. Draws are keyed (see `trainer.rng`), so the sampler's whole state is the
seed and the iteration, both in `state.json`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from trainer.learning.optim import optimizer_tensors, put_optimizer_tensors
from trainer.runs.info import write_json
from trainer.runs.manifest import (
    FORMAT,
    MANIFEST,
    CheckpointError,
    check_files,
    read_json,
    sync,
    write_manifest,
)

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "checkpoint_numbers",
    "keep_only",
    "last_finite",
    "latest_checkpoint",
    "load_checkpoint",
    "read_tensors",
    "restore_optimizer",
    "save_checkpoint",
]

_NAME = re.compile(r"\d{6,}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint: every file's hash was compared with the manifest."""

    path: Path
    iteration: int
    state: Mapping[str, Any]


def save_checkpoint(
    folder: Path,
    iteration: int,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    save_tokenizer: Callable[[Path], object],
    others: Mapping[str, Mapping[str, Tensor]] | None = None,
    policy: nn.Module | None = None,
) -> Path:
    """Writes `folder/<iteration>` atomically and returns it; an existing one is replaced.

    Args:
        others: tensors of a critic, a teacher or adapters, by the name of their file.
        policy: what is written as the policy, where it is not the trained model as it is (with
            adapters: the merged weights).
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{iteration:06d}"
    work = Path(tempfile.mkdtemp(dir=folder, prefix=f".{target.name}."))
    try:
        (model if policy is None else policy).save_pretrained(work)  # type: ignore[operator]
        save_tokenizer(work)
        save_file(optimizer_tensors(model, optimizer), work / "optimizer.safetensors")
        for name, tensors in (others or {}).items():
            save_file(dict(tensors), work / f"{name}.safetensors")
        write_json(work / "state.json", {**state, "iteration": iteration})
        write_manifest(work, sorted(p for p in work.rglob("*") if p.is_file()))
        work.chmod(0o755)
        if target.exists():
            _take_away(target)
        os.replace(work, target)
        sync(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return target


def last_finite(folder: Path, before: int | None = None) -> Path | None:
    """The latest intact checkpoint whose weights are all finite; None: there is none.

    Args:
        before: only those after fewer iterations.
    """
    for number in checkpoint_numbers(folder):
        if before is not None and number >= before:
            continue
        path = folder / f"{number:06d}"
        try:
            load_checkpoint(path)
            files = sorted(path.glob("model*.safetensors"))
            tensors = (tensor for file in files for tensor in read_tensors(file).values())
            if all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
                return path
        except CheckpointError:
            continue
    return None


def keep_only(folder: Path, iterations: Collection[int]) -> None:
    """Removes all checkpoints but those after so many iterations."""
    for number in checkpoint_numbers(folder):
        if number not in iterations:
            _take_away(folder / f"{number:06d}")


def checkpoint_numbers(folder: Path) -> list[int]:
    """Iterations of all checkpoints in a folder, the latest first."""
    names = [path.name for path in folder.glob("*") if path.is_dir()]
    return sorted((int(name) for name in names if _NAME.fullmatch(name)), reverse=True)


def _take_away(path: Path) -> None:
    """Removes a checkpoint; what is half removed has no checkpoint's name."""
    away = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    os.replace(path, away / path.name)
    shutil.rmtree(away, ignore_errors=True)


def latest_checkpoint(folder: Path) -> Path:
    """The checkpoint with the highest iteration.

    Raises:
        CheckpointError: there is none.
    """
    numbers = checkpoint_numbers(folder)
    if not numbers:
        raise CheckpointError(
            f"No checkpoint in {folder}. Give the folder of a run that has one; a run that was "
            "killed before its first starts anew in another folder."
        )
    return folder / f"{numbers[0]:06d}"


def load_checkpoint(path: Path) -> Checkpoint:
    """Verifies every file of a checkpoint against its manifest and reads its state.

    Raises:
        CheckpointError: names the file that is missing, corrupt or unreadable.
    """
    manifest = read_json(path / MANIFEST)
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("files"), dict):
        raise CheckpointError(
            f"{path / MANIFEST}: expected format {FORMAT} with a table of files, "
            f"found format {manifest.get('format')!r}. Use the version that wrote it."
        )
    files: dict[str, Any] = manifest["files"]
    for required in ("model.safetensors", "optimizer.safetensors", "state.json"):
        if required not in files and not _sharded(required, files):
            raise CheckpointError(f"{path / required} is not listed in the manifest: corrupt.")
    check_files(path, files, "Resume from another checkpoint, or restore the file.")
    state = read_json(path / "state.json")
    if not isinstance(state.get("iteration"), int):
        raise CheckpointError(f"{path / 'state.json'} has no integer 'iteration': corrupt.")
    if _NAME.fullmatch(path.name) and int(path.name) != state["iteration"]:
        raise CheckpointError(
            f"{path} holds the checkpoint after iteration {state['iteration']}: renamed. Give it "
            f"its name {state['iteration']:06d}, or take it out of the run."
        )
    return Checkpoint(path=path, iteration=state["iteration"], state=state)


def restore_optimizer(
    checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Puts the saved moments back; learning rates stay those of `optimizer`.

    Raises:
        CheckpointError: the file is unreadable or holds other parameters than the model's.
    """
    file = checkpoint.path / "optimizer.safetensors"
    saved = read_tensors(file)
    try:
        found = put_optimizer_tensors(saved, model, optimizer)
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}. Resume with the model that was trained.") from None
    steps = checkpoint.state.get("optimizer_steps", 0)
    if steps and not found and not isinstance(optimizer, torch.optim.SGD):  # which keeps nothing
        raise CheckpointError(f"{file} holds no moments although {steps} steps were taken.")


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a file.

    Raises:
        CheckpointError: it is missing or unreadable.
    """
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    return tensors


def _sharded(name: str, files: Mapping[str, Any]) -> bool:
    return name == "model.safetensors" and "model.safetensors.index.json" in files
