"""A damaged file of the policy that a run began with is named, not loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.short_runs import run_config, trained
from trainer.loop import train
from trainer.models.tiny import ModelFolderError, load_policy, save_policy
from trainer.runs.checkpoint import CheckpointError
from trainer.runs.manifest import check_policy_files

PARTS = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
KL = {"objective__kl_coef": 0.1}
LORA = {"lora__rank": 2}


def _damage(file: Path, how: str = "flip") -> None:
    data = bytearray(file.read_bytes())
    data[-9] ^= 0x02  # of a weight's exponent
    file.unlink()
    if how != "gone":
        file.write_bytes({"flip": bytes(data), "cut": bytes(data[:-7]), "empty": b""}[how])


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "policy"
    save_policy(folder, small.model(), small.tokenizer(), with_manifest=True)
    return folder


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone"])
def test_a_damaged_file_of_a_policy_is_named(
    policy: Path, tmp_path: Path, name: str, how: str
) -> None:
    copy = Path(shutil.copytree(policy, tmp_path / "copy"))
    load_policy(copy)
    _damage(copy / name, how)
    with pytest.raises(CheckpointError, match=rf"copy/{name} is (corrupt|missing)"):
        load_policy(copy)
    with pytest.raises(CheckpointError, match=rf"copy/{name} is (corrupt|missing)"):
        check_policy_files(copy)


def test_a_damaged_manifest_is_named(policy: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(policy, tmp_path / "copy"))
    (copy / "manifest.json").write_text('{"format": 1, "fi')
    with pytest.raises(CheckpointError, match=r"manifest\.json is corrupt"):
        load_policy(copy)


def test_a_folder_without_a_manifest_or_with_somebody_elses_is_taken_as_it_is(
    policy: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(policy, tmp_path / "copy"))
    _damage(copy / "model.safetensors")
    (copy / "manifest.json").write_text(json.dumps({"name": "a web page"}))
    load_policy(copy)
    (copy / "manifest.json").unlink()
    load_policy(copy)
    with pytest.raises(ModelFolderError, match="holds no policy"):
        load_policy(tmp_path / "nowhere")


def test_a_policy_that_is_written_anew_fits_its_manifest(policy: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(policy, tmp_path / "copy"))
    other = small.model(5)
    for with_manifest in (True, False):  # the former one would not fit any more
        save_policy(copy, other, small.tokenizer(), with_manifest=with_manifest)
        assert (copy / "manifest.json").exists() == with_manifest
        assert small.same(small.weights(load_policy(copy)[0]), small.weights(other))


@pytest.mark.parametrize("settings", [KL, LORA], ids=["reference", "lora"])
def test_a_run_does_not_go_on_from_a_damaged_start(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    if settings is LORA:
        pytest.importorskip("peft")
    config = run_config(tmp_path, run__checkpoint_every=1, **settings)
    train(config, tmp_path / "run", until=1)
    _damage(tmp_path / "run/initial/model.safetensors")
    with pytest.raises(CheckpointError, match=r"initial/model\.safetensors is corrupt"):
        train(config, tmp_path / "run", resume=True)


def test_a_run_without_a_checkpoint_does_not_begin_again_from_it(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__checkpoint_every=0)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", on_iteration=stop)
    before = (tmp_path / "run/initial/model.safetensors").read_bytes()
    _damage(tmp_path / "run/initial/model.safetensors")
    with pytest.raises(CheckpointError, match=r"initial/model\.safetensors is corrupt"):
        train(config, tmp_path / "run", resume=True)
    (tmp_path / "run/initial/model.safetensors").write_bytes(before)
    train(config, tmp_path / "run", resume=True)
    whole = train(config, tmp_path / "whole")
    assert small.same(trained(tmp_path / "run"), trained(whole.folder.path))


def test_a_run_of_before_there_were_manifests_goes_on(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__checkpoint_every=1, **KL)
    whole = train(config, tmp_path / "whole")
    train(config, tmp_path / "run", until=1)
    (tmp_path / "run/initial/manifest.json").unlink()
    train(config, tmp_path / "run", resume=True)
    assert small.same(trained(tmp_path / "run"), trained(whole.folder.path))
