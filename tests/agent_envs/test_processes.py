"""Worker processes that a signal meets while they are being started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from agent_envs.processes import starting
from tests.support import ROOT

SCRIPT = """
import multiprocessing.context, os, signal, time
import agent_envs
from functools import partial
from oracles.branches import BranchRunner
from oracles.scripted import ScriptedOracle

class Interrupted(multiprocessing.context.SpawnProcess):
    started = 0

    def start(self):
        super().start()
        print(self.pid, flush=True)
        Interrupted.started += 1
        if Interrupted.started == WHEN:
            time.sleep(0.3)  # Python is up in the worker, and imports
            os.killpg(0, signal.SIGINT)  # as from a keyboard

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.context.SpawnContext.Process = Interrupted
    WHAT
"""
# How each kind of worker is started.
KINDS = {
    "pool": 'agent_envs.make_vec("SeroALFWorld-v0", 2, vectorization_mode="process",'
    ' num_workers=2, data="generated:small?seed=1")',
    "branches": 'BranchRunner(ScriptedOracle, ("SeroALFWorld-v0",'
    ' {"data": "generated:small?seed=1"}), workers=2)',
}


@pytest.mark.parametrize("when", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_while_workers_start_ends_all_of_them(tmp_path: Path, kind: str, when: int):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("WHEN", str(when)).replace("WHAT", KINDS[kind]))
    script = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        check=False,
    )
    assert script.stderr.splitlines()[-1] == "KeyboardInterrupt", script.stderr
    assert script.stderr.count("Traceback") == 1, "a worker speaks up"
    pids = [int(line) for line in script.stdout.split()]
    assert len(pids) == when
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _fail_after(number: int) -> None:
    os.kill(os.getpid(), number)
    raise OSError("no process")


def test_signals_wait_for_the_end_of_the_block_and_come_though_it_fails():
    told: list[int] = []
    kept = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def hear(number: int, _: object) -> None:
        told.append(number)

    try:
        signal.signal(signal.SIGINT, hear)
        signal.signal(signal.SIGTERM, hear)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with starting():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            assert told == []
        assert told == [signal.SIGTERM]
        with pytest.raises(OSError, match="no process"), starting():
            _fail_after(signal.SIGINT)
        assert told == [signal.SIGTERM, signal.SIGINT]
        assert signal.getsignal(signal.SIGTERM) is hear
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_every_signal_that_waited_is_heard_once():
    told: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    kept = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, _: object) -> None:
        told.append(number)
        raise KeyboardInterrupt

    try:
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        for handler in (stop, lambda number, _: told.append(number)):
            told.clear()
            signal.signal(signal.SIGINT, handler)
            with suppress(KeyboardInterrupt), starting():
                for number in (*numbers, signal.SIGINT):
                    os.kill(os.getpid(), number)
            assert sorted(told) == sorted(numbers)
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def test_an_event_loop_hears_a_signal_once():
    async def hear() -> int:
        told: list[int] = []
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, told.append, 1)
        try:
            with starting():
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGUSR1)  # read by the loop behind all that came before
            await asyncio.wait_for(behind.wait(), 60)
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
        return len(told)

    async def run() -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, behind.set)
        try:
            return await hear()
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)

    behind = asyncio.Event()
    assert asyncio.run(run()) == 1


def test_in_a_thread_no_handler_changes():
    seen = []

    def work() -> None:
        with starting():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
