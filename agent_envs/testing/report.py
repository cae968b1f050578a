"""How a broken promise is reported, and the list of all promises."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any, Protocol

from agent_envs.errors import SeroError
from agent_envs.testing.subject import Env, Subject, Unchecked


@dataclass(frozen=True, slots=True)
class Failure:
    """One broken promise."""

    promise: str
    """Its name, a key of `PROMISES`."""
    statement: str
    """What is promised."""
    found: str
    expected: str
    cause: str
    """The likely cause."""

    def __str__(self) -> str:
        return (
            f"{self.promise}: {self.statement}\n  found: {self.found}\n"
            f"  expected: {self.expected}\n  likely cause: {self.cause}"
        )


class ConformanceError(SeroError, AssertionError):
    """Promises that an env breaks, all that were found; see `failures`."""

    def __init__(self, failures: tuple[Failure, ...]) -> None:
        super().__init__(failures)
        self.failures = failures

    def __str__(self) -> str:
        many = len(self.failures)
        head = "One promise is broken." if many == 1 else f"{many} promises are broken."
        return "\n".join([head, *map(str, self.failures)])


class Broken(Exception):
    """Raised inside of a check, which then becomes a `Failure`."""

    def __init__(self, found: str, expected: str, cause: str) -> None:
        super().__init__(found, expected, cause)
        self.found, self.expected, self.cause = found, expected, cause


class Check(Protocol):
    """A public check. Returns None if the promise holds, or why it could not be checked here."""

    __name__: str
    __doc__: str | None

    def __call__(
        self,
        env: Env,
        *,
        make: Callable[[], Env] | None = None,
        seed: int = 0,
        walks: int = 3,
        steps: int = 12,
        plan: Callable[[Env], Sequence[str]] | None = None,
        public_keys: Collection[str] = (),
    ) -> str | None: ...


CHECKS: dict[str, Check] = {}
"""Every check by the name of its promise, as they are defined."""


def promise(statement: str) -> Callable[[Callable[[Subject], None]], Check]:
    """Make a public check of a function that raises `Broken` where `statement` is not so."""

    def public(check: Callable[[Subject], None]) -> Check:
        name = check.__name__.removeprefix("check_")

        def run(env: Env, **settings: Any) -> str | None:
            with Subject(env, name, **settings) as subject:
                try:
                    check(subject)
                except Unchecked as reason:
                    return str(reason)
                except Broken as broken:
                    found = Failure(name, statement, broken.found, broken.expected, broken.cause)
                    raise ConformanceError((found,)) from broken.__cause__
                except Exception as error:
                    raise ConformanceError((_unexpected(name, statement, error),)) from error
            return None

        run.__name__ = run.__qualname__ = check.__name__
        run.__module__ = check.__module__
        run.__doc__ = f"{statement}\n\n    {check.__doc__ or ''}".rstrip()
        CHECKS[name] = run
        return run

    return public


def _unexpected(name: str, statement: str, error: Exception) -> Failure:
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
    last = frames[-1] if frames else None
    where = f", in {last.name} ({Path(last.filename).name}, line {last.lineno})" if last else ""
    return Failure(
        name,
        statement,
        f"{type(error).__name__}: {error}{where}",
        "no exception",
        "the env raises where it has to answer; see the traceback",
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What `check_snapshot_env` found where nothing is broken."""

    env: str
    seed: int
    passed: tuple[str, ...]
    unchecked: tuple[tuple[str, str], ...]
    """Promises that could not be checked here, and why."""

    def __str__(self) -> str:
        lines = [f"{self.env} keeps {len(self.passed)} promises (seed {self.seed})"]
        lines += [f"not checked: {name} ({reason})" for name, reason in self.unchecked]
        return "\n".join(lines)
