"""`sero train` that is told to end closes what it opened, wherever it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import ROOT, full_count
from tests.trainer.short_runs import run_config, untimed
from trainer.config import Config, from_dict, resolve
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.report.run import read_run
from trainer.runs.signals import Ended, Ending, ended_in_order

SETTINGS: dict[str, Any] = {
    "run__iterations": 2,
    "run__checkpoint_every": 1,
    "eval__initial": True,
    "eval__tasks": 2,
    "rollout__rollouts": 2,
    "env__max_steps": 4,
    "auxiliary__sero": {},
    "log__to": ["wandb", "trackio"],
}
QUICK = ["SIGTERM:collect@2", "SIGTERM:branch@1", "SIGINT:save_file@2", "SIGTERM:lost@1"]
FULL = [
    *QUICK,
    *(f"{name}:{point}" for name in ("SIGTERM", "SIGINT") for point in (
        "warm@3", "open@2", "pool@2", "collect@1", "branch@2", "branch_worker@1",
        "branch_worker@2", "update@2", "save_file@1", "eval@1", "eval@2", "status@1", "status@3",
        "log@1", "log@3", "report@1",
    )),
    "SIGHUP:update@1",
]  # fmt: skip
CODES = {"SIGTERM": 143, "SIGINT": 130, "SIGHUP": 129}
BEFORE = ("warm", "pool")  # no run.json yet
AFTER = ("report",)


def test_sero_train_ends_in_order_wherever_a_signal_comes(tmp_path: Path) -> None:
    config = run_config(tmp_path, **SETTINGS)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(resolve(config)), encoding="utf-8")
    cases = FULL[: full_count(len(QUICK), len(FULL))]
    assert len(set(cases)) == len(cases)
    program = subprocess.run(
        [sys.executable, str(ROOT / "tests/trainer/stopped_runs.py"), str(tmp_path), *cases],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=60 * len(cases) + 120,
        check=False,
    )
    assert program.returncode == 0, program.stderr
    lines = [json.loads(line) for line in program.stdout.splitlines() if line.startswith("{")]
    assert [line["case"] for line in lines] == cases
    for line in lines:
        name, _, point = line["case"].partition(":")
        told = f"{line['case']}: {line['said']}"
        assert line["code"] == CODES[name], told
        assert not line["left"], f"{told}: processes are left"
        _check_folder(tmp_path / line["case"], point.partition("@")[0], line, told)
    again = tmp_path / cases[0]
    train(config.replace(**{"log.to": ()}), again, resume=True)
    train(config.replace(**{"log.to": ()}), tmp_path / "whole")
    whole = untimed(read_metrics(tmp_path / "whole/metrics.jsonl"))
    assert untimed(read_metrics(again / "metrics.jsonl")) == whole


def _check_folder(run: Path, point: str, line: dict[str, Any], told: str) -> None:
    assert [path.name for path in run.rglob(".*")] == [], told
    if point in BEFORE:
        assert not (run / "run.json").exists(), told
        assert not (run / "status.json").exists(), told
        assert line["trackers"] == [], told
        assert "sero: stopped. There is no checkpoint yet. To begin again: sero train" in told
        return
    names = ["wandb"] if point == "open" else ["wandb", "trackio"]
    assert line["trackers"] == [[name, [point not in AFTER]] for name in names], told
    status = json.loads((run / "status.json").read_text())
    if point in AFTER:
        assert status["stop"] == "finished", told
        return
    assert status["stop"] == "interrupted", told
    logged = len(read_metrics(run / "metrics.jsonl")) if (run / "metrics.jsonl").exists() else 0
    assert status["iterations"] in (logged, logged - 1), told
    assert "sero: stopped. " in line["said"], told
    assert "--resume" in line["said"], told
    assert "Traceback" not in line["said"] or point == "lost", told
    assert read_run(run, title="", lead="").stop


def test_a_signal_from_another_process_ends_a_run_and_its_workers(tmp_path: Path) -> None:
    config = run_config(tmp_path, **SETTINGS | {"run__iterations": 1000, "log__to": []})
    words = ["--env.pool", "process", "--env.workers", "2", "--auxiliary.sero.workers", "1"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(resolve(config)), encoding="utf-8")
    run = tmp_path / "run"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "trainer.cli.main", "train", str(tmp_path / "config.yaml"),
            "--out", str(run), *words,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "iteration 2/1000" in line:
                break
        else:
            pytest.fail("the run ended by itself")
        # As a scheduler does it: to every process of the job, and once more.
        os.killpg(process.pid, signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(120) == 143, said
    finally:
        process.kill()
    from tests.trainer.stopped_runs import leaves

    assert not leaves(process.pid)
    status = json.loads((run / "status.json").read_text())
    assert status["stop"] == "interrupted"
    assert status["last"] in (status["iterations"], status["iterations"] - 1, None)
    assert [path.name for path in run.rglob(".*")] == []
    assert "Traceback" not in said
    assert from_dict(json.loads((run / "run.json").read_text())["config"]).run.iterations == 1000


def _interrupted_at(config: Config, out: Path, iteration: int) -> None:
    def on_iteration(metrics: Any) -> None:
        if metrics["iteration"] == iteration:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, out, on_iteration=on_iteration)


def test_a_function_call_that_is_interrupted_says_so_too(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=3, run__checkpoint_every=1)
    _interrupted_at(config, tmp_path / "run", 1)
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["stop"], status["iterations"], status["last"]) == ("interrupted", 2, 2)
    assert train(config, tmp_path / "run", resume=True).stop == "finished"
    assert json.loads((tmp_path / "run/status.json").read_text())["stop"] == "finished"


def _ended_twice(ending: Ending) -> None:
    ending.check()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)  # while closing
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        with pytest.raises(Ended):
            ending.check()


def test_signals_are_as_before_behind_the_block_and_an_ignored_one_stays_ignored() -> None:
    def own(number: int, frame: object) -> None: ...

    kept = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, own)
        with ended_in_order():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is own
        with pytest.raises(Ended) as found, ended_in_order() as ending:
            _ended_twice(ending)
        assert found.value.code == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_behind_the_last_block_a_late_signal_is_ignored() -> None:
    kept = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with ended_in_order(last=True):
            pass
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "nothing ended it"
        with pytest.raises(Ended), ended_in_order(last=True) as ending:
            _ended_twice(ending)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_a_signal_that_comes_while_python_closes_down_changes_no_exit_code() -> None:
    program = (
        "import os, sys\n"
        "from trainer.cli import train\n"
        "train._run = lambda *_: os.kill(os.getpid(), 15)\n"
        "code = train.run(({}, []))\n"
        "os.kill(os.getpid(), 15)\n"
        "sys.exit(code)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=120, check=False)
    assert found.returncode == 143


def test_outside_the_main_thread_no_signal_is_touched() -> None:
    seen: list[Any] = []

    def work() -> None:
        with ended_in_order() as ending:
            ending.check()
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
