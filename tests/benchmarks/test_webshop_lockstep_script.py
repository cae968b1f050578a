"""The script that compares both shops: it counts, it finds what differs, it says so by its exit.

Our env stands in for the original, with or without an alteration.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest

from agent_envs.webshop.catalogue import RawFiles, goal_to_dict, load_shop
from agent_envs.webshop.original.peer import Reply
from agent_envs.webshop.original.raw_files import write_raw_files
from tests.support import ROOT

SCRIPT = ROOT / "benchmarks" / "webshop_lockstep.py"
Change = Callable[[int, Reply], Reply]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("webshop_lockstep_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("raw")
    files = write_raw_files(load_shop("generated:small?seed=2"), path)
    facts = json.loads(files.attributes.read_text(encoding="utf-8"))
    for told in list(facts.values())[:20]:
        told |= {"instruction": "find me one", "instruction_attributes": told["attributes"][:2]}
    files.attributes.write_text(json.dumps(facts), encoding="utf-8")
    return path


def stand_in(change: Change = lambda number, reply: reply) -> type:
    """A class with the interface of `OriginalShop`, played by our env."""

    class StandIn:
        def __init__(
            self, checkout: str, files: RawFiles, *, seed: int, human_goals: bool, **options: Any
        ) -> None:
            self._shop = load_shop(files.products)
            self._kind = "human" if human_goals else "synthetic"
            shown = options.pop("show_attrs")
            self._env = gymnasium.make(
                "SeroWebShop-v0", data=self._shop, split=None, compat=True, max_steps=None,
                show_attributes=shown, **options,
            )  # fmt: skip
            self._number = 0
            self._taught: set[str] = set()

        def __enter__(self) -> StandIn:
            return self

        def __exit__(self, *error: object) -> None:
            self._env.close()

        def goals(self) -> list[dict[str, Any]]:
            return [dict(goal_to_dict(goal)) for goal in self._shop.goals(self._kind)]  # type: ignore[arg-type]

        def prices(self) -> dict[str, float]:
            catalogue = self._shop.catalogue
            return {p.asin: catalogue.price(n) for n, p in enumerate(catalogue)}

        def teach(self, results: Mapping[str, Sequence[str]]) -> None:
            self._taught |= results.keys()

        def reset(self, goal: Mapping[str, Any], session: str) -> Reply:
            observation, info = self._env.reset(options={"goal": goal})
            return self._reply(observation, 0.0, False, info)

        def step(self, action: str) -> Reply:
            before: Any = self._env.unwrapped.privileged().session  # type: ignore[attr-defined]
            observation, reward, done, _, info = self._env.step(action)
            after: Any = self._env.unwrapped.privileged().session  # type: ignore[attr-defined]
            if after.query not in (before.query, None):
                assert after.query in self._taught
            return self._reply(observation, float(reward), done, info)

        def _reply(
            self, observation: str, reward: float, done: bool, info: Mapping[str, Any]
        ) -> Reply:
            world: Any = self._env.unwrapped
            shown = world.engine.view(world.privileged().session).clickables
            bar = bool(info["action_templates"])
            parts = None if info["reward_info"] is None else dict(info["reward_info"])
            clickables = (*(("search",) if bar else ()), *shown)
            self._number += 1
            reply = Reply(observation, reward, done, bar, clickables, parts, 0.0, 0.0)
            return change(self._number, reply)

    return StandIn


@pytest.fixture
def words(folder: Path) -> tuple[str, ...]:
    return ("--original", "x", "--data", str(folder), "--n", "8", "--steps", "20", "--json")


def last(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return figures


@pytest.mark.parametrize(
    "more", [(), ("--compat",), ("--mode", "text_rich", "--attributes", "--history", "1")]
)
def test_equal_shops(
    script: ModuleType,
    words: tuple[str, ...],
    more: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(script, "OriginalShop", stand_in())
    assert script.main((*words, *more)) == 0
    figures = last(capsys)
    assert (figures["goals"], figures["goals_that_differ"]) == (8, 0)
    assert figures["differences"] == []
    assert figures["steps"] == sum(figures["met"].values()) >= 40
    assert {"click", "refused", "search"} <= figures["met"].keys()
    script.main((*words, *more))
    assert last(capsys) == figures


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("observation", {"observation": "other"}),
        ("clickables", {"clickables": ("other",)}),
        ("reward", {"reward": 0.125}),
        ("done", {"done": True}),
        ("search bar", {"has_search_bar": None}),
    ],
)
def test_what_differs_is_found_and_shown(
    script: ModuleType,
    words: tuple[str, ...],
    what: str,
    change: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    altered = stand_in(lambda number, reply: reply._replace(**change) if number == 2 else reply)
    monkeypatch.setattr(script, "OriginalShop", altered)
    assert script.main(words) == 1
    figures = last(capsys)
    assert figures["goals_that_differ"] == 1
    assert what in figures["fields_that_differ"]
    assert figures["differences"][0]["step"] == 1


def test_goals_that_differ_are_found(
    script: ModuleType,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = stand_in()

    def goals(self: Any) -> list[dict[str, Any]]:
        told = [dict(goal_to_dict(goal)) for goal in self._shop.goals("synthetic")]
        told[3]["weight"] += 1
        return told

    monkeypatch.setattr(other, "goals", goals)
    monkeypatch.setattr(script, "OriginalShop", other)
    assert script.main((*words, "--n", "1")) == 1
    figures = last(capsys)
    assert figures["fields_that_differ"] == {"weight": 1}
    assert figures["differences"][0]["goal"] == "synthetic-3"


def test_without_a_checkout_nothing_is_compared(
    script: ModuleType, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(words) == 2
    assert "no checkout" in capsys.readouterr().err
