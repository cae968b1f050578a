"""`sero verify webshop`: counts, and failing when it should."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.agent_envs.webshop.original.test_verify_webshop import record, write
from tests.agent_envs.webshop.shops import raws
from tests.trainer.cli.conftest import Sero


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the original's files."""
    folder = tmp_path_factory.mktemp("shop")
    for name, content in zip(("shuffle", "ins_v2", "human_ins"), raws(), strict=True):
        (folder / f"items_{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_equal_transcripts_pass(sero: Sero, data: Path, tmp_path: Path) -> None:
    files = [write(tmp_path / f"{human}.jsonl", record(human=human)) for human in (False, True)]
    outcome = sero("verify", "webshop", *files, "--data", data, "--json")
    assert outcome.code == 0
    steps = outcome.figures["steps"]
    assert outcome.lines[-2] == f"8 episodes, {steps} steps, 0 mismatches"
    assert outcome.lines[-3] == "0 near-tied pages of results"
    assert outcome.figures == {"episodes": 8, "steps": steps, "mismatches": 0, "near_ties": 0}
    assert sero("verify", "webshop", files[0], "--data", data, "--compat").code == 0


def test_one_difference_fails_and_is_shown(sero: Sero, data: Path, tmp_path: Path) -> None:
    lines = record()
    lines[1]["steps"][2]["observation"] += "\x1b[2J"
    outcome = sero("verify", "webshop", write(tmp_path / "t.jsonl", lines), "--data", data)
    assert outcome.code == 1
    assert outcome.lines[-1].endswith(", 1 mismatches")
    assert outcome.lines[0].startswith("t.jsonl, episode 1, step 2, 'click[b0desk")
    assert not any("\x1b" in line for line in outcome.lines)


def test_nothing_compared_is_no_success(
    sero: Sero, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SERO_WEBSHOP_DATA", raising=False)
    good = write(tmp_path / "t.jsonl", record())
    outcome = sero("verify", "webshop", good)
    assert outcome.code == 2
    assert "--data" in outcome.errors
    empty = write(tmp_path / "e.jsonl", record()[:1])
    assert sero("verify", "webshop", empty, "--data", data).code == 1
    assert sero("verify", "webshop", tmp_path / "none.jsonl", "--data", data).code == 2
    assert sero("verify", "webshop", good, "--data", tmp_path / "no-shop").code == 2
    monkeypatch.setenv("SERO_WEBSHOP_DATA", str(data))
    assert sero("verify", "webshop", good).code == 0


def test_the_recorded_episodes_of_the_original(sero: Sero, real_data: Path) -> None:
    transcripts = sorted((real_data / "transcripts").glob("webshop_*.jsonl.gz"))
    outcome = sero("verify", "webshop", *transcripts, "--data", real_data / "webshop_1k")
    assert outcome.lines[-1] == "320 episodes, 3832 steps, 0 mismatches"
    assert outcome.code == 0


def test_files_that_cannot_be_read_are_no_mismatch(sero: Sero, data: Path, tmp_path: Path) -> None:
    whole = gzip.compress(b"{}\n")
    (tmp_path / "a.jsonl.gz").write_bytes(whole[:10] + b"\xff" * 4 + whole[14:])
    (tmp_path / "b.jsonl").write_bytes(b"[" * 100_000 + b"]" * 100_000)
    for name in ("a.jsonl.gz", "b.jsonl"):
        outcome = sero("verify", "webshop", tmp_path / name, "--data", data)
        assert outcome.code == 2
        assert f"{name}: line 1" in outcome.errors
