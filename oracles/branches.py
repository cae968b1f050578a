"""Many branches at once: in this process, or in worker processes.

Promises (tests/oracles/test_branches.py):

1. One branch for each request, in the order of the requests, equal whatever the number of
   environments and workers; only the timings differ.
2. Failures of a branch are reason codes in it, as in `oracles.branch`. A worker that dies or takes
   too long costs the branch that it was at (`WORKER_ERROR`) and no other.
3. Both sides of a comparison have the same steps: a branch never takes more than the student had
   left at the root, by the environment's limits and by the request's own.

The first promise needs an oracle whose answers depend on what it is asked alone. A budget in
seconds can break it on a machine that is busy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from agent_envs import Snapshot
from agent_envs.errors import InvalidOption, SnapshotFormatError
from oracles.base import History, Oracle
from oracles.branch import Branch, BranchStatus, Reason, RootRecord, run

__all__ = [
    "WORKER_ERROR",
    "BranchRequest",
    "BranchRunner",
    "EnvRecipe",
    "EnvSource",
    "OracleFactory",
    "run_branches",
]

Env = gymnasium.Env[str, str]
OracleFactory = Callable[[], Oracle[Any]]
"""Makes an oracle: often its class."""
EnvSource = Callable[[], Env] | tuple[str, Mapping[str, Any]]
"""How to make an environment: a function, or a registered id with arguments."""

WORKER_ERROR = "worker_error"
"""In `Branch.reasons`: the worker died or took too long."""


@dataclass(frozen=True, slots=True)
class EnvRecipe:
    """Makes environments of one id; can be sent to other processes if the arguments can."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Env:
        """A new environment."""
        env: Env = gymnasium.make(self.env_id, **self.kwargs)
        return env


@dataclass(frozen=True, slots=True)
class BranchRequest:
    """One branch to run; the fields are arguments of `oracles.branch.run`."""

    snapshot: Snapshot
    history: History = ()
    expected: RootRecord | None = None
    root_step: int | None = None
    """None: the length of `history`."""
    horizon: int | None = None
    """Steps that the student had left where the environment does not say so; None: as it says."""

    def limit(self, max_depth: int | None) -> int | None:
        """Commands that the branch may take, by what the caller says: the smaller limit.

        >>> BranchRequest(None, horizon=5).limit(3), BranchRequest(None, horizon=5).limit(None)
        (3, 5)
        """
        given = [limit for limit in (self.horizon, max_depth) if limit is not None]
        return min(given, default=None)


class BranchRunner:
    """Runs lists of branches; keeps its environments and workers until it is closed.

    Args:
        oracle: makes the oracle, once here or once in each worker.
        env: makes environments that no rollout uses.
        envs: environments in this process, taken in turn. Not with workers, which have one each.
        workers: worker processes; 0: run in this process. Workers are spawned, so a script needs
            the usual ``if __name__ == "__main__":``, and `oracle` and `env` have to be such that
            they can be sent: functions and classes of a module, an id with plain arguments.
        timeout: seconds that a worker may take for one branch.

    Raises:
        InvalidOption: an argument that makes no sense or cannot be sent.
        WorkerError: a worker could not make its oracle or environment.
    """

    def __init__(
        self,
        oracle: OracleFactory,
        env: EnvSource,
        *,
        envs: int = 1,
        workers: int = 0,
        timeout: float = 600.0,
    ) -> None:
        _check(envs, workers, timeout)
        make = EnvRecipe(*env) if isinstance(env, tuple) else env
        self._envs: list[Env] = []
        self._workers = None
        if workers:
            from oracles.branch_workers import Workers

            self._workers = Workers(oracle, make, workers, timeout)
        else:
            self._oracle = oracle()
            self._envs.extend(make() for _ in range(envs))

    def run(self, requests: Sequence[BranchRequest], max_depth: int | None = None) -> list[Branch]:
        """The branches of `requests`, in their order.

        Args:
            max_depth: commands that any branch may run; None: as many as the student had left.
        """
        if self._workers is not None:
            return self._workers.run(requests, max_depth)
        if not self._envs:
            raise InvalidOption("This runner of branches is closed; make a new one.")
        branches = []
        for place, request in enumerate(requests):
            refused = unsendable(request)
            env = self._envs[place % len(self._envs)]
            branches.append(refused or run_request(env, self._oracle, request, max_depth))
        return branches

    def close(self) -> None:
        """Ends the workers and closes the environments; a second call does nothing."""
        if self._workers is not None:
            self._workers.close()
        while self._envs:
            self._envs.pop().close()

    def __enter__(self) -> BranchRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def run_branches(
    requests: Sequence[BranchRequest],
    oracle: OracleFactory,
    env: EnvSource,
    *,
    max_depth: int | None = None,
    envs: int = 1,
    workers: int = 0,
    timeout: float = 600.0,
) -> list[Branch]:
    """The branches of `requests`, in their order; arguments as for `BranchRunner`."""
    with BranchRunner(oracle, env, envs=envs, workers=workers, timeout=timeout) as runner:
        return runner.run(requests, max_depth)


def run_request(
    env: Env, oracle: Oracle[Any], request: BranchRequest, max_depth: int | None
) -> Branch:
    """One branch in `env`."""
    return run(
        env,
        request.snapshot,
        oracle,
        request.limit(max_depth),
        history=request.history,
        expected=request.expected,
        root_step=request.root_step,
    )


def unsendable(request: BranchRequest) -> Branch | None:
    """The failed branch of a snapshot that is none, so that it fails alike everywhere."""
    try:
        request.snapshot.to_bytes()
    except (SnapshotFormatError, AttributeError) as error:
        return not_started(request, Reason.RESTORE_ERROR, f"{type(error).__name__}: {error}")
    return None


def not_started(request: BranchRequest, reason: str, detail: str) -> Branch:
    """A branch of which nothing was run."""
    history = tuple(request.history)
    return Branch(
        status=BranchStatus.NOT_STARTED,
        valid=False,
        reasons=(reason,),
        detail=f"{reason}: {detail}",
        steps=(),
        success=False,
        score=0.0,
        total_reward=0.0,
        root=request.snapshot,
        steps_left=None,
        goal="",
        history=history,
        root_step=len(history) if request.root_step is None else request.root_step,
    )


def _check(envs: int, workers: int, timeout: float) -> None:
    for name, value, least in (("envs", envs, 1), ("workers", workers, 0)):
        if type(value) is not int or value < least:
            raise InvalidOption(f"{name} is an int of at least {least}, not {value!r}.")
    if workers and envs != 1:
        raise InvalidOption("envs is for workers=0; each worker has one environment.")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidOption(f"timeout is a number of seconds above 0, not {timeout!r}.")
