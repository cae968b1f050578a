"""`sero train --plan`: what it prints, its exit code, and that it starts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import ROOT, run_python
from tests.trainer.cli.conftest import Sero
from tests.trainer.cli.test_cli_without_torch import BLOCK

CONFIG = ROOT / "examples/recipes/alfworld_1.5b_grpo_sero.yaml"
WORDS = ("--shape", "qwen2.5-1.5b", "--prompt-tokens", "700", "--reply-tokens", "100")


def _figure(lines: list[str], name: str) -> list[str]:
    (line,) = (line for line in lines if line.startswith(name))
    return line.removeprefix(name).split()


def test_a_plan_that_does_not_fit_ends_with_1_and_names_the_knob(sero: Sero) -> None:
    outcome = sero(
        "train", CONFIG, "--plan", *WORDS, "--device", "NVIDIA H200", "--device-memory-gb", 141,
        "--optim.gradient_checkpointing", "false", "--json",
    )  # fmt: skip
    assert outcome.code == 1
    text = "\n".join(outcome.lines)
    assert "1.54 billion parameters" in text
    assert "6,400 sequences of 800 = 5,120,000 an iteration, 640,000 of them replies" in text
    assert _figure(outcome.lines, "weights") == ["6.175", "6.175"]
    assert _figure(outcome.lines, "KV cache") == ["2.936"]
    assert _figure(outcome.lines, "rollout ")[:2] == ["94.8", "s"]
    assert "of 126.9 usable GB of NVIDIA H200 (141.0 GB). What to turn:" in text
    assert "--optim.micro_batch_tokens" in text
    figures = outcome.figures
    assert figures["fits"] is False
    assert figures["memory"]["update"]["total"] == figures["memory"]["peak"]
    assert figures["seconds"]["iteration"] == pytest.approx(252.8, rel=1e-3)
    assert figures["tokens"]["run"] == 150 * 5_120_000


def test_overrides_count_and_a_plan_that_fits_ends_with_0(sero: Sero) -> None:
    words = ("train", CONFIG, "--plan", *WORDS, "--device-memory-gb", "141")
    outcome = sero(*words, "--device", "H100", "--optim.micro_batch_tokens", "8192", "--json")
    assert outcome.code == 0
    assert outcome.figures["fits"] is True
    assert outcome.figures["device"]["peak_flops"] == 989.4e12
    assert any(line.startswith("fits: yes") for line in outcome.lines)


def test_settings_that_are_needed_together_are_said_to_be(sero: Sero) -> None:
    recipe = ROOT / "examples/recipes/alfworld_7b_gigpo_sero.yaml"
    words = ("--shape", "qwen2.5-7b", "--turns", "20", "--prompt-tokens", "700")
    words += ("--reply-tokens", "150", "--device", "NVIDIA H200", "--run.keep", "all")
    outcome = sero("train", recipe, "--plan", *words, "--device-memory-gb", "140")
    assert outcome.code == 1
    text = "\n".join(outcome.lines)
    assert "What to turn, all of these together:" in text
    assert "--auxiliary.measure_gradients false" in text
    assert "--optim.optimizer adamw_8bit  (needs bitsandbytes" in text
    assert "disk: 91.4 GB a checkpoint and 1.4 TB in all" in text


def test_several_processes_are_planned(sero: Sero) -> None:
    words = ("--processes", "4", "--device", "NVIDIA H200", "--device-memory-gb", "80")
    refused = sero("train", CONFIG, "--plan", *WORDS, *words)
    assert refused.code == 2
    assert "--parallel.mode fsdp" in refused.errors
    outcome = sero("train", CONFIG, "--plan", *WORDS, *words, "--parallel.mode", "fsdp", "--json")
    assert _figure(outcome.lines, "weights") == ["1.544", "1.544"]
    assert any("in each of 4 processes" in line for line in outcome.lines)
    assert outcome.figures["device"]["processes"] == 4


def test_a_device_that_is_not_known_has_no_times(sero: Sero) -> None:
    outcome = sero("train", CONFIG, "--plan", *WORDS, "--device", "abacus\x1b[2J", "--json")
    assert outcome.code == 0
    assert outcome.figures["fits"] is None
    assert outcome.figures["seconds"]["iteration"] is None
    text = "\n".join(outcome.lines[:-1])
    assert "\x1b" not in text
    assert "was not found here. Give its memory: --device-memory-gb" in text
    assert "time: not known" in text


def test_the_memory_of_this_machine_is_found(sero: Sero) -> None:
    outcome = sero("train", ROOT / "examples/tiny_sero.yaml", "--plan", "--json")
    assert outcome.code == 0
    assert outcome.figures["device"]["memory"] > 10**8
    assert outcome.figures["fits"] is True
    assert outcome.figures["parameters"] == 673_408


def test_nothing_is_made(sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sero("train", CONFIG, "--plan", *WORDS).code == 0
    assert list(tmp_path.iterdir()) == []


def test_torch_is_not_needed() -> None:
    hidden = json.dumps(["torch", "transformers", "tokenizers", "safetensors", "matplotlib"])
    told = run_python(BLOCK, hidden, "train", str(ROOT / "examples/tiny_sero.yaml"), "--plan")
    assert "fits: yes" in told
    assert told.endswith("exit code 0\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--turns", "3"), "--turns is for a plan"),
        (("--plan", "--resume"), "--plan starts nothing"),
        (("--plan", "--out", "x"), "--plan starts nothing"),
        (("--plan", "--device-memory-gb", "0"), "must be positive"),
        (("--plan", "--device-memory-gb", "nan"), "must be positive"),
        (("--plan", "--shape", "gpt"), "must be one of qwen2.5-1.5b"),
        (("--plan", "--reply-tokens", "9999"), "rollout.max_new_tokens=512"),
        (("--plan", "--model.path", "/nowhere"), "--model.path FOLDER, or its sizes, --shape"),
        (("--plan", "--optim.lrr", "1"), "Unknown key"),
    ],
)
def test_what_makes_no_plan_is_refused(sero: Sero, words: tuple[str, ...], told: str) -> None:
    outcome = sero("train", CONFIG, *words)
    assert outcome.code == 2
    assert told in outcome.errors
