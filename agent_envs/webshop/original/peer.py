"""Run a checkout of the original WebShop (princeton-nlp/WebShop) in a process of its own.

A reference for tests, `sero bench webshop` and `benchmarks/webshop_lockstep.py`; never needed to
run ours. The checkout is the user's, unmodified; nothing of it is part of this package. It needs
the extra ``webshop-reference`` (Flask, Beautiful Soup, thefuzz, tqdm), neither Java nor gym, and
neither torch nor spaCy: what the text environment takes from those has stand-ins
(`peer_process`), all of which favour the original's speed:

- search is answered by a small BM25 index in Python, or from a table (`OriginalShop.teach`), and
  a search result is the product's id alone where the real index returns the whole product;
- the nouns of a title come from a table, where the original runs a language model twice a purchase.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple

from agent_envs.errors import DataError, MissingData, MissingExtra, WorkerError
from agent_envs.processes import end_processes, starting
from agent_envs.webshop.catalogue import RawFiles
from agent_envs.webshop.original.peer_process import Setup, serve

EXTRA = "webshop-reference"
PACKAGES = ("flask", "bs4", "thefuzz", "numpy", "tqdm")
"""Modules that the original imports and that have no stand-in."""
KNOWN_COMMIT = "64fa2a5c15c7daa698b9ac93f5bb5437b634c9bd"
"""The commit of the original that the stand-ins are made for."""
_NEEDED = tuple(
    f"web_agent_site/{name}"
    for name in ("utils.py", "engine/engine.py", "engine/goal.py", "envs/web_agent_text_env.py")
)


class Reply(NamedTuple):
    """What the original answers; after a reset reward is 0 and done is False."""

    observation: str
    reward: float
    done: bool
    has_search_bar: bool
    clickables: tuple[str, ...]
    """The original's list, "search" included."""
    reward_info: dict[str, Any] | None
    """The parts of the reward, after a purchase."""
    step_s: float
    """CPU seconds of the original's `step` (or `reset`) alone."""
    list_s: float
    """CPU seconds of listing the actions of the page that it led to."""


class OriginalShop:
    """One running original environment.

    Args:
        checkout: folder of the checkout.
        files: the catalogue; the original reads it itself.
        seed: of the generator with which the original draws prices and price limits.
        nouns: title -> nouns; None: the table that our own reward uses.
        **options: arguments of the original's `WebAgentTextEnv`, such as ``human_goals=True``,
            ``show_attrs=True`` or ``num_prev_obs=1``; ``observation_mode`` is ``"text"`` unless
            given.

    Raises:
        MissingData: `checkout` is none, or there are no such files.
        MissingExtra: a package of the extra is not installed.
        DataError: the original fails on the catalogue.
    """

    def __init__(
        self,
        checkout: str | Path,
        files: RawFiles,
        *,
        seed: int = 0,
        nouns: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        folder = check_checkout(checkout)
        check_packages()
        for path in files:
            if not path.is_file():
                raise MissingData(f"There is no file {path} for the original WebShop to load.")
        self._no_humans = TemporaryDirectory()
        human = files.humans
        if human is None:  # the original opens the file whether or not it uses it
            human = Path(self._no_humans.name) / "human.json"
            human.write_text(json.dumps({}), encoding="utf-8")
        setup = Setup(
            folder.resolve(),
            files.products.resolve(),
            files.attributes.resolve(),
            human.resolve(),
            seed,
            nouns,
            {"observation_mode": "text", **options},
        )
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, setup), daemon=True)
        try:
            with starting():
                self._process.start()
            theirs.close()
            self._answer(f"loading {files.products}")
        except BaseException:
            self.close()
            raise

    def goals(self) -> list[dict[str, Any]]:
        """The original's goals in its own form, in its own order."""
        goals: list[dict[str, Any]] = self._call("goals")
        return goals

    def prices(self) -> dict[str, float]:
        """The price of every product, drawn where it has a range."""
        prices: dict[str, float] = self._call("prices")
        return prices

    def set_prices(self, prices: Mapping[str, float]) -> None:
        """Let purchases cost `prices` from now on; products that are not in it cost as before."""
        self._call("set_prices", dict(prices))

    def teach(self, results: Mapping[str, Sequence[str]]) -> None:
        """From now on, these queries give these asins, best first; a table answers at no cost.

        A query is what the original's search engine gets: the words joined by spaces.
        """
        self._call("teach", {query: tuple(asins) for query, asins in results.items()})

    def searches(self) -> tuple[int, float]:
        """How many searches there were, and the CPU seconds of all of them."""
        count, seconds = self._call("searches")
        return count, seconds

    def load_seconds(self) -> tuple[float, float]:
        """CPU seconds of importing the original, and of loading the catalogue."""
        imported, loaded = self._call("load_seconds")
        return imported, loaded

    def reset(self, goal: int | Mapping[str, Any], session: str = "0") -> Reply:
        """Start on a goal: its number in `goals`, or any goal in the original's form.

        The name of the session shows in addresses. Sessions before are forgotten.
        """
        told = goal if isinstance(goal, int) else dict(goal)
        return Reply(*self._call("reset", told, session))

    def step(self, action: str) -> Reply:
        """Take one action, such as ``"search[red shoes]"`` or ``"click[buy now]"``."""
        return Reply(*self._call("step", action))

    def close(self) -> None:
        """End the process."""
        self._connection.close()  # it leaves when it reads that, cleaning up after itself
        if self._process.pid is not None:  # it was started
            end_processes([self._process], grace=5.0)
        self._no_humans.cleanup()

    def __enter__(self) -> OriginalShop:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            self._connection.send((name, arguments))
        except OSError as error:
            raise WorkerError("The process of the original WebShop has ended.") from error
        return self._answer(f"{name}{arguments!r:.200}")

    def _answer(self, doing: str) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(10)
            raise WorkerError(
                f"The process of the original WebShop died while {doing} "
                f"(exit code {self._process.exitcode})."
            ) from error
        if answer[0] == "value":
            return answer[1]
        _, kind, message = answer
        if kind in ("ImportError", "ModuleNotFoundError"):
            raise _missing(message)
        raise DataError(f"The original WebShop raised {kind}: {message}, while {doing}.")


def check_checkout(folder: str | Path) -> Path:
    """`folder`, if it looks like a checkout of the original; raises `MissingData` otherwise."""
    path = Path(folder)
    lacking = [name for name in _NEEDED if not (path / name).is_file()]
    if lacking:
        raise MissingData(
            f"{path} is no checkout of princeton-nlp/WebShop: "
            + (f"it has no {lacking[0]}. " if path.is_dir() else "there is no such folder. ")
            + f"Clone https://github.com/princeton-nlp/WebShop (commit {KNOWN_COMMIT[:7]})."
        )
    return path


def check_packages() -> None:
    """Raise `MissingExtra` unless everything that the original imports for real is installed."""
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise _missing(f"No module named {name!r}")


def _missing(message: str) -> MissingExtra:
    return MissingExtra(
        f"The original WebShop (extra `{EXTRA}`) cannot be imported: {message}. "
        f"Install the extra: pip install '.[{EXTRA}]' in a checkout of sero."
    )
