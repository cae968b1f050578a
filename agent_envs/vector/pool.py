"""Sub-envs in worker processes, for engines that are slow: each worker has several.

Promises (tests/agent_envs/vector/test_vector_pool.py):

1. Answers are those of the serial vector env, text for text.
2. A worker that dies or gives no answer in time is reported by name, and the whole pool is ended.
   (Only one that is frozen from outside while a message too large for the pipe, some 200 kB, is on
   its way is waited for without a limit.)
3. Errors of a sub-env arrive with their own type and message, and end nothing.
4. No worker outlives `close`, the vector env, or the process that started it.

Workers are spawned, so they share no lock, thread or generator with this process; a script that
makes a pool needs the usual ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

from gymnasium.vector import AutoresetMode

from agent_envs.errors import InvalidOption, WorkerError
from agent_envs.processes import end_processes, leave_interrupts, starting
from agent_envs.vector.arguments import whole
from agent_envs.vector.calls import Description, Env, Outcome, Recipe, Request, perform
from agent_envs.vector.vector_env import TextVectorEnv

GRACE = 10.0
"""Seconds that workers have to close their envs before they are ended from outside."""
LONGEST_WAIT = 3600.0
"""Seconds for the system to wait at a time, which cannot wait for as long as it is asked to."""
IMPATIENCE = 1.0
"""The same once a worker has failed."""


class Fault(NamedTuple):
    """An exception, as it travels from a worker."""

    module: str
    name: str
    args: tuple[Any, ...]
    text: str
    trace: str
    whole: bytes | None
    """The exception itself: `args` are not all that some are made of. None if it cannot be sent."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process and the sub-envs that it has."""

    process: BaseProcess
    pipe: Connection
    places: tuple[int, ...]

    def __str__(self) -> str:
        first, last = self.places[0], self.places[-1]
        return f"worker {self.process.name!r} (process {self.process.pid}, sub-envs {first}-{last})"


class ProcessVectorEnv(TextVectorEnv):
    """Sub-envs in worker processes; what `make_vec` returns for ``"process"``."""

    def __init__(
        self,
        recipe: Recipe,
        num_envs: int,
        autoreset_mode: AutoresetMode | str,
        num_workers: int | None,
        timeout: float,
    ) -> None:
        if num_workers is None:
            num_workers = _cores()
        workers = whole(num_workers)
        if workers is None or workers < 1:
            raise InvalidOption(f"num_workers must be an int of at least 1, not {num_workers!r}.")
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise InvalidOption(f"timeout is a number of seconds above 0, not {timeout!r}.")
        _demand_portable(recipe)
        self._timeout = timeout
        self._workers: list[Worker] = []
        # At the exit of the interpreter this runs before `multiprocessing` waits for processes.
        self._end = Finalize(self, _end_workers, (self._workers, GRACE), exitpriority=10)
        try:
            _start_workers(self._workers, recipe, num_envs, min(workers, num_envs))
            descriptions = self._answers(self._workers, "start")
            for answer in descriptions:
                if isinstance(answer, Fault):
                    raise _revived(answer)
            super().__init__(descriptions[0], num_envs, autoreset_mode)
        except BaseException:
            _end_workers(self._workers, IMPATIENCE)
            raise
        self._worker_of = {place: worker for worker in self._workers for place in worker.places}

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Ids of the worker processes."""
        return tuple(worker.process.pid or 0 for worker in self._workers)

    def _each(self, requests: Mapping[int, Request]) -> dict[int, Outcome]:
        parts: dict[int, tuple[Worker, dict[int, Request]]] = {}
        for place, request in requests.items():
            worker = self._worker_of[place]
            parts.setdefault(worker.places[0], (worker, {}))[1][place] = request
        messages = [_packed(part) for _, part in parts.values()]
        workers = [worker for worker, _ in parts.values()]
        outcomes: dict[int, Outcome] = {}
        try:
            for worker, message in zip(workers, messages, strict=True):
                self._send(worker, message)
            kinds = "/".join(sorted({name for name, _ in requests.values()}))
            answers = self._answers(workers, kinds)
            for (_, part), found in zip(parts.values(), answers, strict=True):
                for place in part:
                    answer = found if isinstance(found, Fault) else found[place]
                    fault = isinstance(answer, Fault)
                    outcomes[place] = Outcome(
                        None if fault else answer, _revived(answer) if fault else None
                    )
        except BaseException:
            # An interrupt included: the answer to it would be taken for that to the next request.
            _end_workers(self._workers, IMPATIENCE)
            self.close()
            raise
        return outcomes

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers."""
        self._end()

    def _send(self, worker: Worker, message: Any) -> None:
        try:
            worker.pipe.send_bytes(message)
        except OSError:
            raise _death(worker, "before it got a request") from None

    def _answers(self, workers: Sequence[Worker], what: str) -> list[Any]:
        """One answer of each worker, in order; waits for all of them together."""
        limit = time.monotonic() + self._timeout
        answers: dict[int, Any] = {}
        while len(answers) < len(workers):
            open_ones = [worker for worker in workers if worker.places[0] not in answers]
            watched: list[Any] = [worker.pipe for worker in open_ones]
            watched += [worker.process.sentinel for worker in open_ones]
            ready = wait(watched, min(max(limit - time.monotonic(), 0.0), LONGEST_WAIT))
            if not ready and time.monotonic() >= limit:
                raise WorkerError(
                    f"The {open_ones[0]} gave no answer to {what!r} within {self._timeout:g} s. "
                    "All workers were ended. If the engine needs longer, give make_vec a larger "
                    "timeout=."
                )
            for worker in open_ones:
                if worker.pipe in ready or worker.pipe.poll():
                    try:
                        answers[worker.places[0]] = _unpacked(worker.pipe.recv_bytes())
                    except (EOFError, OSError):
                        raise _death(worker, f"during {what!r}") from None
                elif worker.process.sentinel in ready:
                    raise _death(worker, f"during {what!r}")
        return [answers[worker.places[0]] for worker in workers]


# ------------------------------------------------------------------ on this side


def _start_workers(workers: list[Worker], recipe: Recipe, num_envs: int, n: int) -> None:
    context = multiprocessing.get_context("spawn")
    for number in range(n):
        places = tuple(range(number * num_envs // n, (number + 1) * num_envs // n))
        here, there = context.Pipe()
        process = context.Process(
            target=_work,
            args=(there, places, recipe),
            name=f"agent_envs-worker-{number}",
            daemon=True,  # ended with this process, whatever happens
        )
        with starting():
            try:
                process.start()
            finally:
                there.close()
            workers.append(Worker(process, here, places))


def _end_workers(workers: list[Worker], grace: float) -> None:
    """Ask the workers to close their envs and leave; end those that do not."""
    for worker in workers:
        with suppress(OSError, ValueError):
            worker.pipe.send(None)
        worker.pipe.close()
    end_processes([worker.process for worker in workers], grace)
    workers.clear()


def _death(worker: Worker, when: str) -> WorkerError:
    worker.process.join(1.0)  # the exit code comes a moment after the end of the pipe
    hint = ""
    if when == "during 'start'":
        hint = (
            " Its own messages are above. A script that makes a pool must do so below "
            "`if __name__ == '__main__':`, since each worker imports the script."
        )
    return WorkerError(
        f"The {worker} died {when} (exit code {worker.process.exitcode}). All workers were "
        f"ended.{hint}"
    )


def _demand_portable(recipe: Recipe) -> None:
    try:
        ForkingPickler.dumps(recipe)
    except Exception as error:
        raise InvalidOption(
            f"vectorization_mode='process' sends the arguments to other processes, but they cannot "
            f"be sent: {error}. Give data= as a path or as a text such as "
            "'generated:small?seed=1', and wrappers= as functions of a module."
        ) from error


def _packed(part: Mapping[int, Request]) -> Any:
    try:
        return ForkingPickler.dumps(part)
    except Exception as error:
        raise InvalidOption(f"{list(part.values())!r:.200} cannot be sent: {error}.") from error


def _unpacked(message: bytes) -> Any:
    """What was sent; a `Fault` where this process cannot read it, as it lacks a type or raises."""
    try:
        return ForkingPickler.loads(message)
    except Exception as error:
        return _fault(error)


def _revived(fault: Fault) -> Exception:
    """The exception of a worker, of its own type where this process knows the type."""
    kind = getattr(sys.modules.get(fault.module), fault.name, None)
    error: Exception | None = None
    if isinstance(kind, type) and issubclass(kind, Exception):
        error = _whole(fault)
        if error is None:
            with suppress(Exception):
                error = kind(*fault.args)
    if error is None:
        error = WorkerError(f"{fault.name}: {fault.text}")
    error.add_note(f"In a worker:\n{fault.trace}")
    return error


def _whole(fault: Fault) -> Exception | None:
    """The exception as it was raised; None where it does not come out as that."""
    with suppress(Exception):
        error = ForkingPickler.loads(fault.whole) if fault.whole is not None else None
        if isinstance(error, Exception) and str(error) == fault.text:
            return error
    return None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ------------------------------------------------------------------ in the workers


def _work(pipe: Connection, places: tuple[int, ...], recipe: Recipe) -> None:
    """The life of a worker: make the envs, answer requests, close."""
    leave_interrupts()
    signal.signal(signal.SIGTERM, _leave)
    envs: dict[int, Env] = {}
    try:
        try:
            for place in places:
                envs[place] = recipe.make()
            first: Any = Description.of(envs[places[0]])
        except Exception as error:
            first = _fault(error)
        pipe.send(first)
        while not isinstance(first, Fault):
            requests = _unpacked(pipe.recv_bytes())
            if requests is None:
                break
            if isinstance(requests, Fault):
                pipe.send(requests)
                continue
            pipe.send_bytes(_answer({i: perform(envs[i], r) for i, r in requests.items()}))
    except (EOFError, OSError):
        pass  # the other side is gone
    finally:
        for env in envs.values():
            with suppress(Exception):
                env.close()


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _answer(outcomes: Mapping[int, Outcome]) -> Any:
    answers = {i: o.value if o.error is None else _fault(o.error) for i, o in outcomes.items()}
    try:
        return ForkingPickler.dumps(answers)
    except Exception:  # one of them cannot be sent; which?
        for place, answer in answers.items():
            try:
                ForkingPickler.dumps(answer)
            except Exception as error:
                answers[place] = _fault(TypeError(f"The result cannot be sent: {error}."))
        return ForkingPickler.dumps(answers)


def _fault(error: Exception) -> Fault:
    kind = type(error)
    plain = all(type(arg) in (str, int, float, bool, type(None)) for arg in error.args)
    args = error.args if plain else (str(error),)
    trace = "".join(traceback.format_exception(error))
    whole = None
    with suppress(Exception):
        whole = bytes(ForkingPickler.dumps(error))
    return Fault(kind.__module__, kind.__qualname__, args, str(error), trace, whole)
