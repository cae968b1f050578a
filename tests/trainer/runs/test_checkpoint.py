from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trainer import small
from trainer.learning.optim import build_optimizer
from trainer.models.tiny import load_policy
from trainer.runs.checkpoint import (
    CheckpointError,
    latest_checkpoint,
    load_checkpoint,
    restore_optimizer,
    save_checkpoint,
)

FILES = ["model.safetensors", "config.json", "optimizer.safetensors", "state.json", "manifest.json"]


def _stepped(seed: int = 0) -> tuple[Any, torch.optim.Optimizer]:
    model = small.model(seed)
    optimizer = build_optimizer(model, small.small_config().optim)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return model, optimizer


def _save(folder: Path, iteration: int = 3, seed: int = 0) -> tuple[Path, Any, Any]:
    model, optimizer = _stepped(seed)
    path = save_checkpoint(
        folder,
        iteration,
        model=model,
        optimizer=optimizer,
        state={"optimizer_steps": 2},
        save_tokenizer=small.tokenizer().save_pretrained,
    )
    return path, model, optimizer


def test_everything_comes_back(tmp_path: Path) -> None:
    path, model, optimizer = _save(tmp_path)
    assert path.name == "000003"
    checkpoint = load_checkpoint(latest_checkpoint(tmp_path))
    assert (checkpoint.iteration, checkpoint.state["optimizer_steps"]) == (3, 2)
    loaded, tok = load_policy(checkpoint.path)
    assert small.same(small.weights(model), small.weights(loaded))
    assert tok.get_vocab() == small.tokenizer().get_vocab()
    fresh = build_optimizer(loaded, small.small_config().optim)
    restore_optimizer(checkpoint, loaded, fresh)
    for old, new in zip(model.parameters(), loaded.parameters(), strict=True):
        assert optimizer.state[old].keys() == fresh.state[new].keys()
        for name, value in optimizer.state[old].items():
            assert torch.equal(value, fresh.state[new][name]), name
    # The next step is the same step.
    for old, new in zip(model.parameters(), loaded.parameters(), strict=True):
        old.grad = torch.ones_like(old)
        new.grad = torch.ones_like(new)
    optimizer.step()
    fresh.step()
    assert small.same(small.weights(model), small.weights(loaded))


def test_no_file_is_a_pickle(tmp_path: Path) -> None:
    path, _, _ = _save(tmp_path)
    endings = {p.suffix for p in path.rglob("*") if p.is_file()}
    assert endings <= {".safetensors", ".json", ".jinja", ".txt"}


@pytest.mark.parametrize("name", FILES)
def test_o25_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    path, _, _ = _save(tmp_path)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_o25_a_corrupt_file_is_named(tmp_path: Path, name: str, damage: str) -> None:
    path, _, _ = _save(tmp_path)
    file = path / name
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0xFF
    file.write_bytes({"flip": bytes(data), "cut": bytes(data[:-7]), "empty": b""}[damage])
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load_checkpoint(path)


@pytest.mark.parametrize("entry", [5, None, [], {}, {"sha256": 7}, "x"])
def test_an_odd_entry_of_the_manifest_is_corrupt(tmp_path: Path, entry: object) -> None:
    path, _, _ = _save(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["state.json"] = entry
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"state\.json is corrupt"):
        load_checkpoint(path)


def _rewrite(path: Path, name: str) -> None:
    """Makes the manifest agree with a changed file, so that only its content is wrong."""
    import hashlib

    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name]["sha256"] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("case", ["lacks_moment", "other_shape", "unknown", "empty"])
def test_o25_optimiser_state_that_does_not_fit_is_refused(tmp_path: Path, case: str) -> None:
    path, model, _ = _save(tmp_path)
    file = path / "optimizer.safetensors"
    tensors = load_file(file)
    key = next(name for name in tensors if name.endswith("/exp_avg"))
    if case == "lacks_moment":
        del tensors[key]
    if case == "other_shape":
        tensors[key] = torch.zeros(3)
    if case == "unknown":
        tensors["somewhere.else/exp_avg"] = torch.zeros(3)
    save_file({} if case == "empty" else tensors, file)
    _rewrite(path, "optimizer.safetensors")
    optimizer = build_optimizer(model, small.small_config().optim)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors"):
        restore_optimizer(load_checkpoint(path), model, optimizer)


def test_a_failed_save_leaves_the_former_checkpoint_and_no_trace(tmp_path: Path) -> None:
    path, _, _ = _save(tmp_path)
    before = (path / "manifest.json").read_bytes()
    model, optimizer = _stepped(1)

    def fail(folder: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(
            tmp_path, 3, model=model, optimizer=optimizer, state={}, save_tokenizer=fail
        )
    assert (path / "manifest.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["000003"]
    load_checkpoint(path)


def test_saving_again_replaces(tmp_path: Path) -> None:
    _save(tmp_path, seed=0)
    path, model, _ = _save(tmp_path, seed=1)
    loaded, _ = load_policy(load_checkpoint(path).path)
    assert small.same(small.weights(model), small.weights(loaded))


def test_the_latest_is_the_highest_number(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No checkpoint"):
        latest_checkpoint(tmp_path)
    path, _, _ = _save(tmp_path, 9)
    shutil.copytree(path, tmp_path / "000010")
    shutil.copytree(path, tmp_path / "1000000")
    shutil.copytree(path, tmp_path / ".000099.tmp")
    (tmp_path / "notes").mkdir()
    assert latest_checkpoint(tmp_path).name == "1000000"
