"""`sero bank replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oracles.bank_format import read_file, write_file
from tests.support import full_count
from tests.trainer import small
from tests.trainer.cli.conftest import Sero
from trainer.cli.main import main
from trainer.loop import train

BRANCHES = full_count(12, 2000)
ITERATIONS = full_count(2, 125)
ROOTS = full_count(6, 16)
FOUR = ("flat", "root", "depth", "sero")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    config = small.small_config(
        run__iterations=1,
        run__checkpoint_every=1,
        env__max_steps=full_count(12, 20),
        env__generated__train=full_count(8, 100),
        warmstart__steps=full_count(4, 60),
    )
    train(config, folder)
    return folder


@pytest.fixture(scope="module")
def bank(run: Path) -> Path:
    out = run.parent / "bank"
    words = ["--policy", str(run), "--branches", str(BRANCHES), "--out", str(out)]
    assert main(["bank", "build", *words]) == 0
    return out


def test_a_verified_bank_is_replayed_under_the_four_rules(
    sero: Sero, bank: Path, run: Path, tmp_path: Path
) -> None:
    verified = sero("bank", "verify", bank, "--json")
    assert verified.code == 0
    assert verified.figures["branches"] == BRANCHES
    assert verified.figures["bad_branches"] == []
    ends = []
    for name in ("first", "again"):
        out = tmp_path / name
        words = ["--rules", "flat,root", "depth", "sero", "--roots-per-iteration", ROOTS]
        words += ["--eval-tasks", "4", "--weight", "1"]
        replayed = sero("bank", "replay", bank, "--run", run, "--out", out, *words, "--json")
        assert replayed.code == 0, replayed.errors
        report = replayed.figures
        assert report == json.loads((out / "replay.json").read_text())
        ends.append({rule: found["parameters_sha256"] for rule, found in report["rules"].items()})
    assert ends[0] == ends[1]
    assert tuple(ends[0]) == FOUR
    assert len(set(ends[0].values())) == 4
    assert report["bank"]["branches"] == BRANCHES
    assert report["bank"]["digest"] == verified_digest(bank)
    assert report["checkpoint"]["collected_the_bank"]
    assert report["settings"]["iterations"] == ITERATIONS
    for found in report["rules"].values():
        assert found["iterations"] == ITERATIONS
        assert found["after"]["valid_seen"]["n"] == 4
    share = {rule: found["beyond_root_share"] for rule, found in report["rules"].items()}
    assert share["root"] == 0.0 < share["sero"] < share["flat"]

    told = "\n".join(replayed.lines)
    assert f"{BRANCHES} branches of planner from run@1" in told
    assert f"{ITERATIONS} iterations of {ROOTS} branches, aux_only, z measured before each" in told
    rows = [line.split()[0] for line in replayed.lines if line]
    assert [word for word in rows if word in (*FOUR, "rule", "checkpoint")] == [
        "rule",
        "checkpoint",
        *FOUR,
    ]


def verified_digest(bank: Path) -> str:
    return read_file(bank).digest


def test_options_reach_the_replay(sero: Sero, bank: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--rules", "depth,depth-matched", "--delta", "0.5", "--z", "stored", "--lr", "0.003"]
    words += ["--iterations", "1", "--roots-per-iteration", "3", "--weight", "0.25", "--seed", "9"]
    words += ["--checkpoint", "1", "--eval-tasks", "0", "--save"]
    replayed = sero("bank", "replay", bank, "--run", run, "--out", out, *words, "--json")
    assert replayed.code == 0, replayed.errors
    assert "z measured once, with the checkpoint (the policy that collected" in replayed.lines[1]
    settings: dict[str, Any] = replayed.figures["settings"]
    expected = {"z": "stored", "iterations": 1, "roots": 3, "weight": 0.25, "lr": 0.003, "seed": 9}
    assert {name: settings[name] for name in expected} == expected
    assert replayed.figures["before"] == {}
    line = json.loads((out / "depth" / "metrics.jsonl").read_text())
    assert (line["sero/delta"], len(line["replay/branches"])) == (0.5, 3)
    assert line["lr"] == 0.003
    assert sorted(path.name for path in out.iterdir()) == ["depth", "depth-matched", "replay.json"]
    for rule in ("depth", "depth-matched"):
        assert (out / rule / "model" / "model.safetensors").is_file()


def test_what_cannot_be_replayed_is_said(sero: Sero, bank: Path, run: Path, tmp_path: Path) -> None:
    changed, other, out = tmp_path / "changed", tmp_path / "other", tmp_path / "out"
    raw = read_file(bank)
    rows = [dict(row) for row in raw.rows]
    rows[1]["score"] = 0.5
    write_file(changed, raw.header, rows)
    words = ["--data", "generated:small?seed=4", "--branches", "2", "--out", other]
    assert sero("bank", "build", *words).code == 0
    (tmp_path / "there").mkdir()
    few = ["--eval-tasks", "0"]
    cases: list[tuple[list[Any], str]] = [
        ([bank, "--run", run, "--out", tmp_path / "there"], "exists"),
        ([changed, "--run", run, "--out", out, *few], "Branch 1 of the bank"),
        ([other, "--run", run, "--out", out, *few], "was made on data of revision"),
        ([tmp_path / "none", "--run", run, "--out", out], "There is no bank"),
        ([bank, "--run", tmp_path, "--out", out], "no run folder"),
        ([bank, "--run", run, "--out", out, "--rules", "sero,best"], "best"),
        ([bank, "--run", run, "--out", out, "--delta", "2"], "delta"),
        ([bank, "--run", run, "--out", out, "--checkpoint", "3"], "000003"),
    ]
    for words, message in cases:
        outcome = sero("bank", "replay", *words)
        assert outcome.code == 2, words
        assert message in outcome.errors, outcome.errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["changed", "other", "there"]
