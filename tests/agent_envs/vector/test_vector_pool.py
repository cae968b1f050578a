"""`make_vec` with worker processes: errors, deaths, limits, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_envs import InvalidOption, ResetNeeded, TaskNotFound, WorkerError, make_vec
from agent_envs.alfworld.games import load_game_set
from tests.agent_envs.vector.vector_play import FAULTY, Accident, Unreadable
from tests.support import ROOT

SMALL = "generated:small?seed=5&train=4&valid_seen=0&valid_unseen=0"


def pool(n: int = 4, workers: int = 2, **kwargs: Any) -> Any:
    return make_vec(FAULTY, n, num_workers=workers, **kwargs)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def all_gone(pids: tuple[int, ...], patience: float = 60.0) -> bool:
    limit = time.monotonic() + patience
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.05)
    return not any(map(alive, pids))


def test_each_worker_has_several_envs():
    vec = pool(5, 2)
    try:
        pids = vec.call("_load", "house1/lamp1")  # any call that reaches the workers
        assert pids == (None,) * 5
        assert len(set(vec.worker_pids)) == 2
        assert os.getpid() not in vec.worker_pids
        assert [worker.places for worker in vec._workers] == [(0, 1), (2, 3, 4)]
    finally:
        vec.close()
    vec = pool(2, 9)
    assert len(vec.worker_pids) == 2, "more workers than envs"
    vec.close()


# ------------------------------------------------------------------ errors end nothing


def test_errors_keep_type_and_message():
    vec = pool()
    try:
        vec.reset(seed=0)
        with pytest.raises(TaskNotFound) as caught:
            vec.reset(options={"task_ids": [None, None, "house2/lamp", None]})
        alone = gymnasium.make(FAULTY)
        with pytest.raises(TaskNotFound) as expected:
            alone.reset(options={"task_id": "house2/lamp"})
        assert str(caught.value) == str(expected.value)
        assert any("sub-env 2 of 4" in note for note in caught.value.__notes__)
        with pytest.raises(Accident, match="the lamp fell") as fallen:
            vec.step(["roll", "roll", "roll", "accident"])
        assert fallen.value.args == ("the lamp fell", 3)
        assert any("in _apply" in note for note in fallen.value.__notes__), "its own traceback"
        with pytest.raises(WorkerError, match="TwoPart: oil and fire"):
            vec.step(["two", None, None, None])
        # Nothing of it ended the pool, and what the other envs did was kept.
        texts, *_ = vec.step([None] * 4)
        assert [text.startswith("The dice") for text in texts] == [True, True, True, False]
    finally:
        vec.close()


@pytest.mark.parametrize("command", ["parse", "decode", "read"])
def test_errors_that_are_made_of_more_than_they_show(command):
    alone = gymnasium.make(FAULTY)
    alone.reset(seed=0)
    with pytest.raises((ValueError, OSError)) as expected:
        alone.step(command)
    vec = pool(1)
    try:
        vec.reset(seed=0)
        with pytest.raises(type(expected.value)) as caught:
            vec.step([command])
        assert type(caught.value) is type(expected.value)
        assert str(caught.value) == str(expected.value)
        assert any("in _apply" in note for note in caught.value.__notes__)
    finally:
        vec.close()


def test_results_and_actions_that_cannot_be_sent():
    vec = pool()
    try:
        vec.reset(seed=0)
        with pytest.raises(TypeError, match="cannot be sent"):
            vec.call("get_unsendable")
        with pytest.raises(InvalidOption, match="cannot be sent"):
            vec.step([lambda: None, "roll", "roll", "roll"])
        texts, *_ = vec.step(["roll"] * 4)
        assert all(text.startswith("The dice") for text in texts)
    finally:
        vec.close()


def test_what_arrives_and_cannot_be_read_ends_nothing():
    """As a class of a notebook does, which workers have not."""
    vec = pool()
    try:
        vec.reset(seed=0)
        with pytest.raises(ValueError, match="no number"):
            vec.step([Unreadable(), "roll", "roll", "roll"])
        with pytest.raises(ValueError, match="no number"):
            vec.call("get_unreadable")
        texts, *_ = vec.step(["roll"] * 4)
        assert all(text.startswith("The dice") for text in texts)
    finally:
        vec.close()


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**9])
def test_a_timeout_longer_than_the_system_can_wait(timeout):
    vec = pool(1, 1, timeout=timeout)
    assert vec.reset(seed=0)[0][0].startswith("Welcome!")
    vec.close()


def test_arguments_that_cannot_be_sent():
    games = load_game_set(SMALL)
    with pytest.raises(InvalidOption, match="wrappers= as functions of a module"):
        pool(wrappers=[lambda env: env])
    try:
        vec = make_vec("SeroALFWorld-v0", 2, num_workers=1, data=games)
    except InvalidOption as error:
        assert "data= as a path" in str(error)  # noqa: PT017 - either is right, silence is not
    else:
        vec.close()


def test_the_end_of_an_episode_is_checked_before_anything_is_sent():
    vec = pool(2, max_steps=1)
    try:
        vec.reset(seed=0)
        vec.step(["roll", None])
        with pytest.raises(ResetNeeded, match=r"\[0\] are over"):
            vec.step(["roll", "roll"])
        assert vec.get_attr("remaining_steps") == (0, 1)
    finally:
        vec.close()


# ------------------------------------------------------------------ deaths and limits


def test_a_dead_worker_is_named():
    vec = pool()
    vec.reset(seed=0)
    pids = vec.worker_pids
    with pytest.raises(WorkerError, match=r"'agent_envs-worker-1' .*sub-envs 2-3.*exit code 7"):
        vec.step(["roll", "roll", "roll", "die"])
    assert all_gone(pids)
    assert vec.closed
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        vec.reset()
    vec.close()


def test_a_worker_killed_between_two_steps_is_named():
    vec = pool()
    vec.reset(seed=0)
    pids = vec.worker_pids
    os.kill(pids[0], signal.SIGKILL)
    assert all_gone(pids[:1])
    with pytest.raises(WorkerError, match=r"'agent_envs-worker-0' .*sub-envs 0-1.*exit code -9"):
        vec.step(["roll"] * 4)
    assert all_gone(pids)


def test_no_answer_in_time():
    vec = pool(2, 2)
    vec.reset(seed=0)
    vec._timeout = 1.0  # starting takes longer than that
    pids = vec.worker_pids
    with pytest.raises(WorkerError, match=r"'agent_envs-worker-1'.*no answer to 'step' within 1 s"):
        vec.step(["roll", "sleep"])
    assert all_gone(pids)


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("raise", Accident, "no lamp oil"),
        ("die", WorkerError, r"worker-[01]'.*died during 'start' \(exit code 5\).*__main__"),
    ],
)
def test_a_failing_start(fault, error, message):
    before = set(_children())
    with pytest.raises(error, match=message):
        pool(fault=fault)
    assert all_gone(tuple(set(_children()) - before - _trackers()))


def test_a_start_without_an_answer():
    before = set(_children())
    with pytest.raises(WorkerError, match="no answer to 'start' within 3 s"):
        pool(2, 1, fault="sleep", timeout=3.0)
    assert all_gone(tuple(set(_children()) - before - _trackers()))


def _children() -> list[int]:
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text(encoding="ascii").split()]


def _trackers() -> set[int]:
    """The helper process that `multiprocessing` keeps for itself."""
    from multiprocessing.resource_tracker import _resource_tracker

    return {_resource_tracker._pid} if _resource_tracker._pid else set()


# ------------------------------------------------------------------ nothing is left behind


def test_close_ends_the_workers_and_closes_their_envs():
    vec = pool()
    vec.reset(seed=0)
    pids = vec.worker_pids
    vec.close()
    vec.close()
    assert all_gone(pids, 0.0)
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        vec.step(["roll"] * 4)


def test_a_forgotten_pool_ends():
    vec = pool()
    vec.reset(seed=0)
    pids = vec.worker_pids
    del vec
    assert all_gone(pids)


# A shell that runs the tests in the background has what it starts ignore interrupts.
SCRIPT = """
import signal, sys, agent_envs, tests.agent_envs.vector.vector_play
def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    vec = agent_envs.make_vec("TestFaulty-v0", 4, num_workers=2)
    texts, infos = vec.reset(seed=0)
    print(*vec.worker_pids, flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("the script fails")
    if sys.argv[1] == "exit":
        sys.exit(3)
    if sys.argv[1] == "wait":
        import time
        time.sleep(120)
    if sys.argv[1] == "busy":
        vec.step(["sleep"] * 4)
    print(vec.step(["roll"] * 4)[0])
GUARD
    main()
"""


def _script(tmp_path: Path, guard: str, how: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("GUARD", guard), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(path), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("raise", 1), ("exit", 3)])
def test_a_script_ends_and_so_do_its_workers(tmp_path, how, code):
    with _script(tmp_path, 'if __name__ == "__main__":', how) as script:
        out, err = script.communicate(timeout=120)
    assert script.returncode == code, err
    pids = tuple(int(pid) for pid in out.splitlines()[0].split())
    assert len(pids) == 2
    assert all_gone(pids)
    if how == "end":
        assert out.splitlines()[1].count("The dice make") == 4


@pytest.mark.parametrize(
    ("how", "number"), [("wait", signal.SIGKILL), ("wait", signal.SIGINT), ("busy", signal.SIGINT)]
)
def test_workers_do_not_outlive_a_script_that_is_ended(tmp_path, how, number):
    with _script(tmp_path, 'if __name__ == "__main__":', how) as script:
        assert script.stdout is not None
        pids = tuple(int(pid) for pid in script.stdout.readline().split())
        assert len(pids) == 2
        # As from a keyboard: the whole group gets it, and the workers leave it to the parent.
        (os.killpg if number == signal.SIGINT else os.kill)(script.pid, number)
        script.communicate(timeout=120)
    assert script.returncode != 0
    assert all_gone(pids)


def test_a_script_without_the_guard_gets_an_error_that_names_it(tmp_path):
    with _script(tmp_path, "if True:", "end") as script:
        _, err = script.communicate(timeout=120)
    assert script.returncode == 1
    assert "WorkerError" in err
    assert "if __name__ == '__main__':" in err.splitlines()[-1]


def test_envs_of_one_worker_share_compiled_games():
    vec = make_vec("SeroALFWorld-v0", 4, num_workers=2, data=SMALL, max_steps=5)
    try:
        vec.reset(seed=0, options={"task_id": load_game_set(SMALL).task_ids()[0]})
        # What travels in one message is one object afterwards if it was one before.
        games = [view.game for view in vec.call("privileged")]
        assert games[0] is games[1]
        assert games[2] is games[3]
        assert games[0] is not games[2]
        assert {game.revision for game in games} == {games[0].revision}
    finally:
        vec.close()
