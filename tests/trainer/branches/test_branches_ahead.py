"""Branches run beside the passes over the rollouts, and nothing of a run changes by it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.trainer import small
from tests.trainer.short_runs import run_config, trained, untimed
from trainer.branches.ahead import Ahead
from trainer.branches.branching import Brancher
from trainer.config import ConfigError, load_config
from trainer.iteration import Trainer
from trainer.learning.learner import Learner
from trainer.loop import train
from trainer.models.tiny import load_policy
from trainer.runs.folder import RunFolder

KINDS: dict[str, dict[str, Any]] = {
    "serial": {"auxiliary__sero__overlap": False},
    "ahead": {"auxiliary__sero__overlap": True},
    "workers": {"auxiliary__sero__workers": 2},
}


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_the_order_of_the_work_changes_no_bit(tmp_path: Path) -> None:
    runs = {}
    for name, settings in KINDS.items():
        config = run_config(
            tmp_path,
            auxiliary__sero__weight=0.1,
            objective__kl_coef=0.01,
            optim__old_logprobs="recompute",
            env__max_steps=12,
            **settings,
        )
        result = train(config, tmp_path / name)
        runs[name] = (
            untimed(result.metrics),
            (tmp_path / name / "roots.jsonl").read_text(),
            trained(tmp_path / name),
        )
        assert all(line["sero/branch_s"] > 0 for line in result.metrics)
        assert "branches" not in _threads()
    assert sum(line["sero/rows"] for line in runs["serial"][0]) > 0, "no gate was open"
    for name in ("ahead", "workers"):
        assert runs[name][:2] == runs["serial"][:2]
        assert small.same(runs[name][2], runs["serial"][2])


def test_branches_are_under_way_while_the_rollouts_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither can go on without the other: in one after the other, this would never end."""
    scoring, branching = threading.Event(), threading.Event()
    real_segments, real_play = Learner.segments, Brancher.play

    def segments(self: Learner, turns: Any) -> Any:
        scoring.set()
        assert branching.wait(60), "no branch has begun"
        return real_segments(self, turns)

    def play(self: Brancher, *args: Any) -> Any:
        branching.set()
        assert scoring.wait(60), "no scoring has begun"
        return real_play(self, *args)

    monkeypatch.setattr(Learner, "segments", segments)
    monkeypatch.setattr(Brancher, "play", play)
    config = run_config(tmp_path, auxiliary__sero={}, run__iterations=1)
    assert train(config, tmp_path / "run").metrics[0]["sero/roots"] > 0


@pytest.mark.parametrize("where", ["branches", "scoring"])
def test_an_error_on_either_side_ends_both(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []

    def fails(*args: Any) -> Any:
        raise ZeroDivisionError(where)

    def slow(self: Brancher, iteration: int, trajectories: Any, wanted: Callable[[], bool]) -> Any:
        while wanted():
            time.sleep(0.001)
        played.append("told")
        return []

    if where == "branches":
        monkeypatch.setattr(Brancher, "play", fails)
    else:
        monkeypatch.setattr(Learner, "segments", fails)
        monkeypatch.setattr(Brancher, "play", slow)
    config = run_config(tmp_path, auxiliary__sero={}, run__iterations=1)
    with pytest.raises(ZeroDivisionError, match=where):
        train(config, tmp_path / "run")
    assert "branches" not in _threads()
    assert played == ([] if where == "branches" else ["told"])


def test_work_ahead() -> None:
    here = threading.current_thread()
    ahead = Ahead(lambda wanted: threading.current_thread() is here, "work")
    assert ahead.result() is False
    assert ahead.seconds > 0
    ahead.abandon()
    assert "work" not in _threads()

    def stop(wanted: Callable[[], bool]) -> None:
        raise SystemExit("from a thread")

    with pytest.raises(SystemExit, match="from a thread"):
        Ahead(stop, "work").result()


def test_work_is_waited_for_though_a_signal_interrupted_the_waiting() -> None:
    over: list[str] = []

    def work(wanted: Callable[[], bool]) -> None:
        while wanted():
            time.sleep(0.001)
        time.sleep(0.1)
        over.append("over")

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    ahead = Ahead(work, "work")
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            ahead.result()
        assert over == []
        ahead.abandon()
        assert over == ["over"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        ahead.abandon()


def test_workers_are_a_number() -> None:
    with pytest.raises(ConfigError, match=r"auxiliary\.sero\.workers=-1"):
        load_config({}, {"auxiliary.sero.workers": -1})
    config = small.small_config(auxiliary__sero={})
    with pytest.raises(ValueError, match="branches need an environment"):
        Brancher(config, config.auxiliary.sero, None, small.student(config))


# ---------------------------------------------------------------------- environments


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({}, 0),
        ({"auxiliary__sero": {}}, 1),
        ({"auxiliary__sero__workers": 1}, 0),
    ],
)
def test_o8_a_trainer_makes_the_environments_it_was_asked_for_and_closes_them(
    settings: dict[str, Any], more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config(tmp_path, **settings)
    model, tokenizer = load_policy(tmp_path / "policy")
    made: list[Any] = []
    closed: list[Any] = []
    env_type: Any = type(gymnasium.make(config.env.id, data=small.games()).unwrapped)
    real_init, real_close = env_type.__init__, env_type.close

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append(self)
        real_init(self, *args, **kwargs)

    def close(self: Any) -> None:
        closed.append(self)
        real_close(self)

    monkeypatch.setattr(env_type, "__init__", init)
    monkeypatch.setattr(env_type, "close", close)
    trainer = Trainer(config, RunFolder(tmp_path), model, tokenizer, task_set=small.games())
    asked = config.rollout.tasks * config.rollout.rollouts + more
    assert len(made) == asked
    trainer.iterate(0)
    assert len(made) == asked, "an iteration needs no other"
    trainer.evaluate(1)
    assert len(made) == asked + config.eval.tasks * len(config.eval.splits)
    trainer.close()
    trainer.close()
    assert {id(env) for env in made} == {id(env) for env in closed}
