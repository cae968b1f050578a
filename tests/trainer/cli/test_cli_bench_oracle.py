"""`sero bench oracle`: GO and NO-GO through the command, with our environments and others'."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import MissingExtra
from agent_envs.testing import check_snapshot_env
from examples.third_party_env import COMMANDS, JugsEnv, Oracle, after, make
from oracles.bank import read_bank
from oracles.base import Decision, History, PlanStatus
from tests.support import ROOT, full_count
from tests.trainer.cli.conftest import Sero
from tests.trainer.cli.test_cli_without_torch import BLOCK, REFERENCE, TRAIN, run_python
from tests.trainer.oracle_bench.bench_world import train_home
from trainer.runs.folder import RunFolder

JUGS = ("--env", "examples.third_party_env:make", "--oracle", "examples.third_party_env:Oracle")
HERE = __name__
TOP = {
    "format", "env", "policy", "oracle", "roots", "seed", "target", "verdict", "reasons",
    "reason_codes", "restore_fidelity", "oracle_success", "policy_success", "gate_zero_share",
    "mean_gate", "effective_depth", "overhead_share", "restore", "oracle_figures", "gate", "cost",
    "leaks", "reach", "scale", "format_drift", "sweep", "not_measured",
}  # fmt: skip


class Lossy(JugsEnv):
    """Its restore forgets the last command that did something, and shows nothing of it."""

    def _set_engine_state(self, task_id: str, state: tuple[Any, ...]) -> None:
        super()._set_engine_state(task_id, (state[0][:-1],))


class Silent:
    """An oracle that knows no way."""

    privileged = False

    def start(self, view: None, history: History) -> None:
        return None

    def act(self, state: None, view: None, observation: str) -> tuple[Decision, None]:
        return Decision(PlanStatus.UNSUPPORTED, None, "not today"), None


def fills(observation: str, info: Mapping[str, Any]) -> str:
    """A policy that does one thing."""
    assert info["admissible_actions"] == COMMANDS
    return COMMANDS[0]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def _plan(env: Any) -> list[str]:
    view, plan = env.unwrapped.privileged(), []
    while view.wanted not in view.water:
        action = Oracle().act(None, view, "")[0].action
        assert action is not None
        plan.append(action)
        view = after(view, action)
    return plan


def test_the_example_keeps_every_promise() -> None:
    report = check_snapshot_env(make(), make=make, plan=_plan)
    assert report.unchecked == ()


def test_somebody_elses_environment_and_oracle_go(sero: Sero, tmp_path: Path) -> None:
    roots = full_count(24, 256)
    found = sero("bench", "oracle", *JUGS, "--roots", roots, "--out", tmp_path, "--json")
    assert found.code == 0, found.errors
    figures = found.figures
    assert set(figures) == TOP
    assert (figures["verdict"], figures["reason_codes"], figures["roots"]) == ("GO", [], roots)
    assert figures["env"] == "examples.third_party_env:make"
    assert figures["restore_fidelity"] == 1.0
    assert figures["restore"]["exact"] == figures["restore"]["suffixes_replayed"] == roots
    assert figures["gate"]["gap"]["low"] > 0
    assert figures["oracle_figures"]["from_reset"]["share"] == 1.0
    assert 0 < figures["overhead_share"] <= 0.25
    assert figures["cost"]["iteration_from"] == "assumed"
    for name in ("effective_depth", "reach", "scale", "format_drift", "sweep", "leaks"):
        assert figures[name] is None
    assert json.loads((tmp_path / "oracle.json").read_text(encoding="utf-8")) == figures
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "examples.third_party_env:make" in page
    where = found.lines.index("GO")  # the last thing said, with its reasons
    assert [line for line in found.lines[:where] if "95 % interval" in line]
    assert found.lines[where + 1].startswith("  All ")


def test_a_restore_that_loses_something_is_no_go(sero: Sero, tmp_path: Path) -> None:
    words = ("--env", f"{HERE}:Lossy", *JUGS[2:], "--roots", 12, "--out", tmp_path, "--json")
    found = sero("bench", "oracle", *words)
    assert found.code == 1, found.errors
    assert found.figures["verdict"] == "NO-GO"
    assert "restore_not_exact" in found.figures["reason_codes"]
    assert "restore_too_slow" not in found.figures["reason_codes"]
    assert found.figures["restore"]["failures"]
    assert "What differs after a restore" in (tmp_path / "report.html").read_text("utf-8")


def test_an_oracle_without_a_way_is_no_go(sero: Sero, tmp_path: Path) -> None:
    words = (*JUGS[:2], "--oracle", f"{HERE}:Silent", "--policy", f"{HERE}:fills")
    found = sero("bench", "oracle", *words, "--roots", 8, "--out", tmp_path, "--json")
    assert found.code == 1
    assert found.figures["reason_codes"] == ["oracle_not_better"]
    assert found.figures["policy"] == f"{HERE}:fills"
    assert found.figures["gate"]["by_reason"]["invalid"] == 8
    assert found.figures["gate"]["invalid_by_reason"] == {"oracle_unsupported": 8}


def test_an_iteration_that_is_short_has_no_room_for_an_oracle(sero: Sero, tmp_path: Path) -> None:
    words = (*JUGS, "--roots", 8, "--iteration-s", "1e-6", "--out", tmp_path, "--json")
    found = sero("bench", "oracle", *words)
    assert found.code == 1
    assert found.figures["cost"]["iteration_s"] == 1e-6
    assert found.figures["overhead_share"] > 0.25
    assert "oracle_not_better" not in found.figures["reason_codes"]
    assert found.figures["reason_codes"]


def test_equal_arguments_give_equal_figures_but_for_the_times(sero: Sero, tmp_path: Path) -> None:
    def once(name: str, seed: int) -> dict[str, Any]:
        words = ("--roots", 8, "--from-reset", 2, "--seed", seed, "--out", tmp_path / name)
        figures = sero("bench", "oracle", *JUGS, *words, "--json").figures
        return {key: figures[key] for key in ("gate", "policy_success", "oracle_success")}

    assert once("a", 0) == once("b", 0) != once("c", 1)


@pytest.mark.parametrize(
    ("words", "env_id", "leaks"),
    [
        (("--data", "generated:small?seed=1&train=40"), "SeroALFWorld-v0", True),
        (("--env", "webshop", "--data", "generated:small?seed=1", "--target", "score"),
         "SeroWebShop-v0", True),
    ],
)  # fmt: skip
def test_our_own_environments_go(
    sero: Sero, tmp_path: Path, words: tuple[str, ...], env_id: str, leaks: bool
) -> None:
    more = ("--roots", full_count(10, 256), "--from-reset", 4, "--out", tmp_path, "--json")
    found = sero("bench", "oracle", *words, *more)
    assert found.code == 0, found.errors
    assert (found.figures["env"], found.figures["verdict"]) == (env_id, "GO")
    assert found.figures["oracle"] in ("planner", "goal")
    assert (found.figures["leaks"] is not None) == leaks


def test_a_bank_is_built_of_the_same_names(sero: Sero, tmp_path: Path) -> None:
    out = tmp_path / "jugs.parquet"
    built = sero("bank", "build", *JUGS, "--branches", 6, "--out", out, "--json")
    assert built.code == 0, built.errors
    found = sero("bench", "oracle", *JUGS, "--roots", 6, "--out", tmp_path, "--json")
    bank = read_bank(out)
    assert bank.header.env_id == found.figures["env"] == JUGS[1]
    opened = found.figures["gate"]["by_reason"]["active"]
    assert built.figures["gate_open"]["success"] == opened / 6
    verified = sero("bank", "verify", out)
    assert verified.code == 2
    assert "names a module" in verified.errors
    assert f"sero bank verify --env {JUGS[1]}" in verified.errors
    verified = sero("bank", "verify", out, "--env", JUGS[1])
    assert verified.code == 0, verified.errors
    assert verified.lines[-1].startswith("6 branches")
    other = sero("bank", "verify", out, "--env", f"{HERE}:Lossy")
    assert other.code == 2
    assert f"the bank is of {JUGS[1]}" in other.errors


class Leaving(Oracle):
    """Would end the program with the exit code of GO."""

    def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
        raise SystemExit(0)


class Elsewhere(JugsEnv):
    """Goes to another folder, as some engines do."""

    def __init__(self) -> None:
        super().__init__()
        os.chdir("/")


def leaves(observation: str, info: Mapping[str, Any]) -> str:
    raise SystemExit(0)


def test_no_code_of_somebody_elses_ends_in_go(sero: Sero, tmp_path: Path) -> None:
    words = ("--roots", 6, "--from-reset", 1, "--out", tmp_path)
    found = sero("bench", "oracle", *JUGS, "--policy", f"{HERE}:leaves", *words)
    assert found.code == 2
    assert f"--policy {HERE}:leaves fails: SystemExit: 0" in found.errors
    found = sero("bench", "oracle", *JUGS[:2], "--oracle", f"{HERE}:Leaving", *words)
    assert found.code == 1
    assert any(
        line.startswith("  the first of them: oracle_error: SystemExit: 0") for line in found.lines
    )


def test_a_fault_is_not_taken_for_no_go(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("oracles.bench.measure", broken)
    found = sero("bench", "oracle", "--out", tmp_path)
    assert found.code == 2
    assert "a fault of ours" in found.errors
    words = ("--env", "examples.third_party_env:make", *JUGS[2:], "--out", tmp_path)
    assert "--env examples.third_party_env:make fails" in sero("bench", "oracle", *words).errors


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_played(
    sero: Sero, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "report.html").mkdir(parents=True)
    places = ("file", "file/below", "taken")
    for place in places:
        found = sero("bench", "oracle", *JUGS, "--roots", 6, "--out", tmp_path / place)
        assert found.code == 2, place
        assert str(tmp_path / place) in found.errors
        assert found.lines == []
    found = sero("bank", "build", *JUGS, "--branches", 2, "--out", tmp_path / "file/bank")
    assert found.code == 2
    assert f"{tmp_path / 'file'} cannot be written" in found.errors


class Unkept(JugsEnv):
    """What it says of itself cannot be written."""

    def _info_static(self) -> Mapping[str, Any]:
        told = dict(super()._info_static())
        return {**told, "provenance": {**told["provenance"], "engine_version": (1, 2)}}


def test_a_bank_that_cannot_be_written_is_said_before_anything_is_played(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(*_: object, **__: object) -> None:
        raise AssertionError("it was played in vain")

    monkeypatch.setattr("oracles.walks.collect", played)
    words = ("--env", f"{HERE}:Unkept", *JUGS[2:], "--branches", 2, "--out", tmp_path / "bank")
    found = sero("bank", "build", *words)
    assert found.code == 2
    assert "its header is not plain JSON" in found.errors

    def torn(self: JugsEnv) -> Mapping[str, Any]:
        raise OSError("engine gone")

    monkeypatch.setattr(Unkept, "_info_static", torn)
    found = sero("bank", "build", *words)
    assert found.code == 2
    assert f"--env {HERE}:Unkept fails: OSError: engine gone" in found.errors


def test_a_bank_says_what_an_oracle_said_when_it_failed(sero: Sero, tmp_path: Path) -> None:
    words = (*JUGS[:2], "--oracle", f"{HERE}:Leaving", "--branches", 2, "--out", tmp_path / "bank")
    found = sero("bank", "build", *words)
    assert found.code == 0
    assert any(
        line.startswith("  oracle_error: 2 (the first: oracle_error: SystemExit: 0")
        for line in found.lines
    )


def test_a_relative_folder_is_that_of_the_command(
    sero: Sero, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(tmp_path)
    words = ("--env", f"{HERE}:Elsewhere", *JUGS[2:])
    found = sero("bench", "oracle", *words, "--roots", 6, "--out", "a b")
    assert found.code in (0, 1), found.errors
    monkeypatch.chdir(tmp_path)
    assert sero("bank", "build", *words, "--branches", 2, "--out", "c d").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a b", "c d"}
    assert {path.name for path in (tmp_path / "a b").iterdir()} == {"oracle.json", "report.html"}


def test_an_oracle_without_its_package_is_no_verdict(sero: Sero, tmp_path: Path) -> None:
    class Absent(Oracle):
        def act(self, state: None, view: Any, observation: str) -> tuple[Decision, None]:
            raise MissingExtra("it needs the package 'delphi'")

    globals()["Absent"] = Absent
    words = (*JUGS[:2], "--oracle", f"{HERE}:Absent", "--roots", 6, "--out", tmp_path)
    for start in (0, 2):
        found = sero("bench", "oracle", *words, "--from-reset", start)
        assert found.code == 2
        assert "delphi" in found.errors


def test_what_cannot_be_done_is_said(sero: Sero, tmp_path: Path) -> None:
    for words, message in [
        (("--roots", 0), "--roots 0: expected 1 or more"),
        (("--iteration-s", 0), "--iteration-s 0.0: expected a number above 0"),
        (("--env", "nowhere.at_all:make"), "nowhere.at_all cannot be imported"),
        (("--env", "examples.third_party_env:make"), "has no oracles by name"),
        (("--policy", "lucky"), "neither random nor first"),
        (("--oracle", "delphi"), "Unknown oracle 'delphi'"),
        (("--sweep",), "--sweep trains the model"),
    ]:
        found = sero("bench", "oracle", *words, "--out", tmp_path / "out")
        assert found.code == 2, words
        assert message in found.errors, found.errors
    assert list(tmp_path.iterdir()) == []


def test_a_trained_policy_is_measured(sero: Sero, tmp_path: Path) -> None:
    train_home(tmp_path / "run", run__checkpoint_every=1)
    words = ("--policy", tmp_path / "run", "--oracle", "explorer", "--roots", 12, "--from-reset", 2)
    sweep = ("--sweep", "--sweep-iterations", 1) if full_count(0, 1) else ()
    found = sero("bench", "oracle", *words, *sweep, "--out", tmp_path / "out", "--json")
    assert found.code in (0, 1), found.errors
    figures = found.figures
    if sweep:
        weights = [row["weight"] for row in figures["sweep"]["rows"]]
        assert weights == [0.0, 0.05, 0.1, 0.2, 0.5, 1.0]
        arm = RunFolder(tmp_path / "out/sweep/weight-0.1/seed-0").read_config().auxiliary.sero
        assert arm is not None
        assert arm.oracle == "explorer"
    assert figures["policy"] == "run@1"
    assert figures["cost"]["iteration_from"] == "measured"
    assert figures["cost"]["model_share"] > 0
    assert figures["cost"]["token_share"] > 0
    assert figures["effective_depth"] == figures["reach"]["effective_depth"] > 0
    for part in ("reach", "scale", "format_drift"):
        assert (figures[part] is None) == (part in figures["not_measured"])
    assert any(line.startswith("Reach: ") for line in found.lines)
    assert "Mean weight w" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_a_missing_extra_is_named_before_anything_is_played(tmp_path: Path) -> None:
    code = BLOCK.replace("code = main", "sys.stderr = sys.stdout\ncode = main")
    words = ("bench", "oracle", *JUGS, "--out", str(tmp_path / "out"))
    lines = run_python(code, json.dumps(TRAIN + REFERENCE), *words).splitlines()
    assert lines[-1] == "exit code 2"
    assert any("pip install '.[train]'" in line for line in lines)
    assert not any("episodes" in line for line in lines)
    assert not (tmp_path / "out").exists()
