"""Worker processes that run branches, one request at a time each.

Workers are spawned, so they share no lock, thread or generator with this process, and import no
more than oracle and environment need. A snapshot travels as bytes. A worker that dies or takes too
long is replaced, and only the branch that it was at is lost.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from traceback import format_exception_only
from typing import Any

from agent_envs import Snapshot
from agent_envs.errors import InvalidOption, WorkerError
from agent_envs.processes import end_processes, leave_interrupts, starting
from oracles.branch import Branch
from oracles.branches import (
    WORKER_ERROR,
    BranchRequest,
    Env,
    OracleFactory,
    not_started,
    run_request,
    unsendable,
)

STARTING = 600.0
"""Seconds that a worker may take to make its oracle and its environment."""
GRACE = 5.0
"""Seconds that workers have to close their environments before they are ended from outside."""


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    place: int = -1
    """Of the request that it is at."""
    limit: float = 0.0
    """When that has to be answered."""


class Workers:
    """A fixed number of worker processes; see `oracles.branches.BranchRunner`."""

    def __init__(
        self, oracle: OracleFactory, env: Callable[[], Env], number: int, timeout: float
    ) -> None:
        try:
            ForkingPickler.dumps((oracle, env))
        except Exception as error:
            raise InvalidOption(
                f"Workers are other processes, to which oracle and environment cannot be sent: "
                f"{error}. Give functions or classes of a module, or an id with plain arguments "
                "such as data='generated:small?seed=1'; or use workers=0."
            ) from error
        self._made_of = (oracle, env)
        self._timeout = timeout
        self._workers: list[_Worker] = []
        # At the exit of the interpreter this runs before `multiprocessing` waits for processes.
        self._end = Finalize(self, _end_workers, (self._workers,), exitpriority=10)
        try:
            for _ in range(number):
                self._start()
            for worker in self._workers:
                self._wait_for(worker)
        except BaseException:
            self._end()
            raise

    def run(self, requests: Sequence[BranchRequest], max_depth: int | None) -> list[Branch]:
        """The branches of `requests`, in their order."""
        if not self._workers:
            raise InvalidOption("This runner of branches is closed; make a new one.")
        found: dict[int, Branch] = {}
        waiting: deque[int] = deque()
        for place, request in enumerate(requests):
            refused = unsendable(request)
            if refused is None:
                waiting.append(place)
            else:
                found[place] = refused
        try:
            while len(found) < len(requests):
                for worker in list(self._workers):
                    if worker.place < 0 and waiting:
                        self._give(worker, waiting.popleft(), requests, max_depth, found)
                self._collect(requests, found)
        except BaseException:
            # An interrupt included: an answer that is under way would be taken for a later one.
            self._end()
            raise
        return [found[place] for place in range(len(requests))]

    def close(self) -> None:
        """Ends the workers."""
        self._end()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(
            target=_work,
            args=(there, *self._made_of),
            name=f"oracles-worker-{len(self._workers)}",
            daemon=True,  # ended with this process, whatever happens
        )
        worker = _Worker(process, here)
        with starting():
            try:
                process.start()
            finally:
                there.close()
            self._workers.append(worker)
        return worker

    def _wait_for(self, worker: _Worker) -> None:
        try:
            said = worker.pipe.recv() if worker.pipe.poll(STARTING) else "it takes too long"
        except (EOFError, OSError):
            worker.process.join(1.0)  # the exit code comes a moment after the end of the pipe
            said = (
                f"it died (exit code {worker.process.exitcode}). Its own messages are above. A "
                "script that starts workers must do so below `if __name__ == '__main__':`, since "
                "each worker imports the script."
            )
        if said is not None:
            raise WorkerError(f"The worker {worker.process.name!r} did not start: {said}")

    def _give(
        self,
        worker: _Worker,
        place: int,
        requests: Sequence[BranchRequest],
        max_depth: int | None,
        found: dict[int, Branch],
    ) -> None:
        request = requests[place]
        message = (request.snapshot.to_bytes(), replace(request, snapshot=_ABSENT), max_depth)
        for again in (True, False):
            worker.place, worker.limit = place, time.monotonic() + self._timeout
            try:
                worker.pipe.send(message)
                return
            except OSError:
                if again:
                    # It died while it had nothing to do, which says nothing of this branch.
                    worker = self._replace(worker)
        self._lose(worker, requests, found, "died before it got the request")

    def _collect(self, requests: Sequence[BranchRequest], found: dict[int, Branch]) -> None:
        """Waits for one answer at least, or until a worker has to be given up."""
        busy = [worker for worker in self._workers if worker.place >= 0]
        if not busy:
            return
        patience = min(worker.limit for worker in busy) - time.monotonic()
        ready = wait([worker.pipe for worker in busy], min(max(patience, 0.0), 3600.0))
        for worker in busy:
            if worker.pipe in ready:
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    worker.process.join(1.0)
                    code = worker.process.exitcode
                    self._lose(worker, requests, found, f"died (exit code {code})")
                    continue
                request = requests[worker.place]
                if isinstance(answer, Branch):
                    found[worker.place] = replace(answer, root=request.snapshot)
                else:
                    found[worker.place] = not_started(request, WORKER_ERROR, answer)
                worker.place = -1
            elif time.monotonic() >= worker.limit:
                self._lose(worker, requests, found, f"gave no answer within {self._timeout:g} s")

    def _lose(
        self,
        worker: _Worker,
        requests: Sequence[BranchRequest],
        found: dict[int, Branch],
        why: str,
    ) -> None:
        """The branch fails, and another worker takes the place."""
        found[worker.place] = not_started(
            requests[worker.place], WORKER_ERROR, f"the worker {worker.process.name!r} {why}"
        )
        self._replace(worker)

    def _replace(self, worker: _Worker) -> _Worker:
        """Ends a worker; the new one that takes its place."""
        self._workers.remove(worker)
        _end_workers([worker], grace=0.0)
        if not self._end.still_active():
            raise WorkerError("The workers were ended while they ran branches.")
        new = self._start()
        self._wait_for(new)
        return new


def _end_workers(workers: list[_Worker], grace: float = GRACE) -> None:
    """Ask the workers to close their environments and leave; end those that do not."""
    for worker in workers:
        with suppress(OSError, ValueError):
            if worker.place < 0:
                worker.pipe.send(None)
        worker.pipe.close()
    end_processes([worker.process for worker in workers], grace)
    workers.clear()


# ------------------------------------------------------------------ in the workers


_ABSENT: Any = None
"""In place of a snapshot that travels as bytes."""


def _work(pipe: Connection, oracle_factory: OracleFactory, make: Callable[[], Env]) -> None:
    """The life of a worker: make oracle and environment, answer requests, close."""
    leave_interrupts()
    try:
        oracle, env = oracle_factory(), make()
    except Exception as error:
        with suppress(OSError):
            pipe.send(_words(error))
        return
    try:
        pipe.send(None)
        while (message := pipe.recv()) is not None:
            data, request, max_depth = message
            whole = replace(request, snapshot=Snapshot.from_bytes(data))
            branch = run_request(env, oracle, whole, max_depth)
            # The sender has the root already.
            answer = replace(branch, root=_ABSENT)
            try:
                packed = ForkingPickler.dumps(answer)
            except Exception as error:
                packed = ForkingPickler.dumps(f"the branch cannot be sent: {_words(error)}")
            pipe.send_bytes(packed)
    except (EOFError, OSError):
        pass  # the other side is gone
    finally:
        with suppress(Exception):
            env.close()


def _words(error: Exception) -> str:
    return "".join(format_exception_only(error)).strip()
