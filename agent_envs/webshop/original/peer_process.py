"""The process in which a checkout of the original WebShop runs: `serve`, started by `peer`.

Stand-ins take the places of packages that the text environment imports and does not need, or that
need Java or a language model. They are set before the checkout is imported, so the checkout itself
stays as it is. All of this changes the process, which is why it has one of its own.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from agent_envs.processes import leave_interrupts
from agent_envs.webshop.original.stand_in import StandInIndex


@dataclass(frozen=True, slots=True)
class Setup:
    """What the process needs to know.

    Attributes:
        checkout: folder of the checkout.
        products, attributes, human: files in the original's raw form.
        nouns: title -> its nouns, for the reward; None: `agent_envs.webshop.nouns`.
        options: arguments of the original's `WebAgentTextEnv`.
        seed: of the generator that draws prices and price limits.
    """

    checkout: Path
    products: Path
    attributes: Path
    human: Path
    seed: int
    nouns: Mapping[str, Sequence[str]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def serve(connection: Connection, setup: Setup) -> None:
    """Load the original and answer calls, until the other end closes.

    A call is ``(name of a method of _Peer, arguments)``, an answer ``("value", result)`` or
    ``("error", kind, message)``. The first answer says whether loading worked.
    """
    leave_interrupts()
    # Bars and lines that the original prints would get between those of whoever started us.
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.dont_write_bytecode = True  # nothing is written into the checkout
    warnings.simplefilter("ignore")
    try:
        peer = _Peer(setup)
    except BaseException as error:
        connection.send(("error", type(error).__name__, str(error)))
        return
    connection.send(("value", None))
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("value", getattr(peer, name)(*arguments)))
        except Exception as error:
            connection.send(("error", type(error).__name__, str(error)))


class _Peer:
    """The original's text environment with the timing around it."""

    def __init__(self, setup: Setup) -> None:
        self._searcher = _Searcher(setup.products)
        begin = time.process_time()
        engine_class = _import_original(setup, self._searcher)
        imported = time.process_time()
        random.seed(setup.seed)
        self._env = engine_class(file_path=str(setup.products), **setup.options)
        self._load = imported - begin, time.process_time() - imported

    def load_seconds(self) -> tuple[float, float]:
        return self._load

    def goals(self) -> list[dict[str, Any]]:
        return list(self._env.server.goals)

    def prices(self) -> dict[str, float]:
        return dict(self._env.server.product_prices)

    def set_prices(self, prices: Mapping[str, float]) -> None:
        self._env.server.product_prices.update(prices)

    def teach(self, results: Mapping[str, Sequence[str]]) -> None:
        self._searcher.taught.update(results)

    def searches(self) -> tuple[int, float]:
        return self._searcher.calls, self._searcher.seconds

    def reset(self, goal: int | dict[str, Any], session: str) -> tuple[Any, ...]:
        sessions = self._env.server.user_sessions
        # The original remembers every session it ever had, and the goal of each.
        sessions.clear()
        begin = time.process_time()
        if isinstance(goal, int):
            goal = self._env.server.goals[goal]
        sessions[session] = {"goal": goal, "done": False}
        observation, _ = self._env.reset(session)
        return self._reply(observation, 0.0, False, begin)

    def step(self, action: str) -> tuple[Any, ...]:
        begin = time.process_time()
        observation, reward, done, _ = self._env.step(action)
        return self._reply(observation, reward, done, begin)

    def _reply(self, observation: str, reward: float, done: bool, begin: float) -> tuple[Any, ...]:
        middle = time.process_time()
        page = self._env.get_available_actions()
        end = time.process_time()
        return (
            observation,
            reward,
            done,
            page["has_search_bar"],
            tuple(page["clickables"]),
            self._env.server.user_sessions[self._env.session].get("verbose_info") if done else None,
            middle - begin,
            end - middle,
        )


class _Searcher:
    """Pyserini's `LuceneSearcher`, as far as the original uses it.

    Answers a query that it was taught from a table, any other with `StandInIndex`.
    """

    def __init__(self, products: Path) -> None:
        self._products = products
        self._index: StandInIndex | None = None
        self.taught: dict[str, Sequence[str]] = {}
        self.calls = 0
        self.seconds = 0.0

    def search(self, query: str, k: int) -> list[SimpleNamespace]:
        if query not in self.taught and self._index is None:
            with open(self._products, encoding="utf-8") as file:
                self._index = StandInIndex(json.load(file))
        begin = time.process_time()
        found = self.taught.get(query)
        if found is None:
            assert self._index is not None
            found = self._index.search(query, k)
        self.calls += 1
        self.seconds += time.process_time() - begin
        return [SimpleNamespace(docid=asin) for asin in found[:k]]

    def doc(self, docid: str) -> SimpleNamespace:
        return SimpleNamespace(raw=lambda: json.dumps({"id": docid}))


def _import_original(setup: Setup, searcher: _Searcher) -> Callable[..., Any]:
    """The original's class, imported from the checkout with every stand-in in place."""
    nouns = _nouns(setup)

    def parse(title: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(text=noun, pos_="NOUN") for noun in nouns(title)]

    _stand_in("gym", Env=object)
    _stand_in("torch")
    _stand_in("cleantext")
    _stand_in("rank_bm25", BM25Okapi=None)
    _stand_in("rich", print=builtins.print)
    _stand_in("spacy", load=lambda name: parse)
    _stand_in("pyserini")
    _stand_in("pyserini.search")
    _stand_in("pyserini.search.lucene", LuceneSearcher=lambda path: searcher)

    sys.path.insert(0, str(setup.checkout))
    package = "web_agent_site"
    # Its own `envs/__init__.py` imports the browser environment and registers with gym.
    envs = _stand_in(f"{package}.envs")
    envs.__path__ = [str(setup.checkout / package / "envs")]
    utils = importlib.import_module(f"{package}.utils")
    utils.DEFAULT_ATTR_PATH = str(setup.attributes)  # type: ignore[attr-defined]
    utils.HUMAN_ATTR_PATH = str(setup.human)  # type: ignore[attr-defined]
    module = importlib.import_module(f"{package}.envs.web_agent_text_env")
    original: Callable[..., Any] = module.WebAgentTextEnv
    return original


def _nouns(setup: Setup) -> Callable[[str], Sequence[str]]:
    if setup.nouns is not None:
        return setup.nouns.__getitem__
    from agent_envs.webshop.nouns import nouns_named

    return nouns_named("table")


def _stand_in(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    return module
