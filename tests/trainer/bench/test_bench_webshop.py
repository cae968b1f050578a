"""The benchmark's own arithmetic, its walks, and its verdict. No time is asserted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agent_envs.errors import DataError, MissingData
from agent_envs.webshop.catalogue import Shop, goal_from_dict, load_shop
from agent_envs.webshop.original.peer import Reply
from trainer.bench import webshop as bench
from trainer.bench import webshop_search
from trainer.bench.webshop_engine import measure as measure_engine
from trainer.bench.webshop_walks import Page, Shopper, Walk, texts, words_of
from trainer.cli import bench_webshop as command


@pytest.fixture(scope="module")
def shop() -> Shop:
    return load_shop("generated:small?seed=5")


class OtherSide:
    """Stands where the original does: plays our env, but only as it is told."""

    def __init__(self, shop: Shop, spoiled: int | None = None) -> None:
        self._env = bench.make_env(shop, 99)
        self._shop = shop
        self._spoiled = spoiled
        self.points = 0
        self.taught: dict[str, Sequence[str]] = {}
        self.prices: dict[str, float] = {}

    def teach(self, results: Mapping[str, Sequence[str]]) -> None:
        self.taught |= results

    def set_prices(self, prices: Mapping[str, float]) -> None:
        self.prices |= prices

    def reset(self, goal: Mapping[str, Any]) -> Reply:
        assert goal_from_dict(goal).instruction == goal["instruction_text"]
        observation, info = self._env.reset(options={"goal": goal})
        return self._reply(observation, 0.0, False, info)

    def step(self, action: str) -> Reply:
        if action.startswith("search["):
            found = [self._shop.catalogue[n].asin for n in self._shop.index.search(action[7:-1])]
            assert self.taught[action[7:-1]] == found
            assert set(found) <= self.prices.keys()
        observation, reward, done, _, info = self._env.step(action)
        return self._reply(observation, reward, done, info)

    def _reply(self, observation: str, reward: float, done: bool, info: dict[str, Any]) -> Reply:
        if self.points == self._spoiled:
            observation += "!"
        self.points += 1
        bar = bool(info["action_templates"])
        clickables = (*(("search",) if bar else ()), *texts(info["admissible_actions"]))
        return Reply(observation, reward, done, bar, clickables, None, 0.25, 0.75)


def walks_on(shop: Shop, goals: int, seed: int, seen: set[str]) -> list[Walk]:
    env = bench.make_env(shop, 15)
    return [
        bench.walk(env, f"synthetic-{n}", 15, random.Random(f"{seed}/{n}"), seen)[0]
        for n in range(goals)
    ]


def test_walks_click_what_is_there_and_never_search_twice(shop: Shop) -> None:
    seen: set[str] = set()
    walks = walks_on(shop, 60, 0, seen)
    queries = []
    for walk in walks:
        assert len(walk.pages) == len(walk.actions) + 1
        assert 1 <= len(walk.actions) <= 15
        assert walk.pages[-1].done == (walk.actions[-1] == "click[buy now]")
        for page, action in zip(walk.pages, walk.actions, strict=False):
            assert not page.done
            if action.startswith("search["):
                assert page.has_search_bar
                queries.append(action)
            else:
                assert action[6:-1] in page.clickables
    assert len(set(queries)) == len(queries) == len(seen) >= 60


def test_walks_follow_from_their_seed(shop: Shop) -> None:
    assert walks_on(shop, 3, 1, set()) == walks_on(shop, 3, 1, set())
    assert walks_on(shop, 3, 1, set()) != walks_on(shop, 3, 2, set())


def test_odds_of_a_shopper() -> None:
    rng = random.Random(0)
    shopper = Shopper("a red shoe, and price lower than 40.00 dollars", rng)
    results = ("back to search", "< prev", "next >", "b01", "b02")
    product = ("back to search", "< prev", "description", "features", "reviews", "buy now", "red")
    first, item, sub = (
        Counter(shopper.choose(False, page) for _ in range(4000))
        for page in (results, (*product, "2 [pack]"), ("back to search", "< prev"))
    )
    assert first["click[b01]"] + first["click[b02]"] == pytest.approx(0.65 * 4000, abs=120)
    assert first["click[next >]"] == pytest.approx(0.15 * 4000, abs=90)
    assert first["click[< prev]"] == pytest.approx(0.1 * 4000, abs=80)
    assert item["click[red]"] == pytest.approx(0.45 * 4000, abs=130)
    assert item["click[buy now]"] == pytest.approx(0.15 * 4000, abs=90)
    assert "click[2 [pack]]" not in item
    assert sub["click[< prev]"] == pytest.approx(0.8 * 4000, abs=100)
    # No product, no previous page: what comes next takes the share.
    bare = Counter(shopper.choose(False, ("back to search", "next >")) for _ in range(4000))
    assert bare["click[next >]"] == pytest.approx(0.8 * 4000, abs=100)
    assert bare["click[back to search]"] == 4000 - bare["click[next >]"]
    assert words_of("a red shoe, and price lower than 40.00 dollars") == ["red", "shoe"]
    assert shopper.choose(True, ()) in ("search[red shoe]", "search[shoe red]")


def test_goals_are_drawn_once_each() -> None:
    chosen = bench.choose_goals(50, 60, 3)
    assert len(set(chosen)) == 50
    assert chosen == bench.choose_goals(50, 60, 3)
    others = bench.choose_others(chosen, 60, 3)
    assert len(others) == 50
    assert not set(others) & set(chosen)
    assert set(bench.choose_others(range(4), 4, 3)) <= set(range(4))  # there are no others
    with pytest.raises(DataError, match="needs 61 goals, this shop has 60"):
        bench.choose_goals(61, 60, 3)


def test_figures_by_hand() -> None:
    times = bench.Times(
        first=[0.002, 0.002], cold=[0.001, 0.003], warm=[0.001, 0.001],
        reset=[0.0003, 0.0001, 0.0002], real=[1.0, 3.0], real_reset=[0.5], calibration=[0.22],
    )  # fmt: skip
    found = bench.figures(times, steps=10, first_steps=5)
    assert found["ratio_gym"] == pytest.approx(1000)
    assert found["ratio_gym_warm"] == pytest.approx(2000)
    assert found["ratio_gym_first"] == pytest.approx(0.4 / 0.0008)
    assert found["steps_per_s"] == pytest.approx(2500)
    assert found["gym_reset_us"] == pytest.approx(200)
    assert found["real_step_ms"] == pytest.approx(400)
    assert found["estimated"] is False
    times.real.clear()
    scaled = bench.figures(times, steps=10, first_steps=5)
    assert scaled["estimated"] is True
    assert scaled["real_step_ms"] == pytest.approx(20)  # 11 steps in 0.22 s
    assert scaled["ratio_gym"] == pytest.approx(50)
    assert scaled["real_reset_ms"] is None


def test_the_calibration_loop_is_the_one_that_was_recorded_with() -> None:
    assert bench.calibrate() == 2997433


def test_verdict() -> None:
    good = {**bench.AT_LEAST, **{name: most - 0.1 for name, most in bench.BELOW.items()}}
    good["mismatches"] = 0
    assert bench.missed(good) == []
    for name, least in bench.AT_LEAST.items():
        for bad in (0.99 * least, float("nan")):
            (reason,) = bench.missed({**good, name: bad})
            assert name in reason
    for name, most in bench.BELOW.items():
        for bad in (most, float("nan")):
            (reason,) = bench.missed({**good, name: bad})
            assert name in reason
    assert bench.missed({**good, "mismatches": 1})
    small = {name: good[name] for name in good if not name.startswith("search_")}
    assert bench.missed(small) == []  # search at scale is not always measured


def test_both_sides_walk_the_same_way(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "calibrate", lambda: 0)
    plan = bench.Plan(goals=6, steps=8, seed=2)
    equal = OtherSide(shop)
    result = bench.measure(shop, plan, lambda line: None, equal)  # type: ignore[arg-type]
    assert result["mismatches"] == 0
    # Five walks before those that count; one second for each page that the original led to.
    assert equal.points > result["total_steps"] + 6  # type: ignore[operator]
    assert result["real_step_ms"] == pytest.approx(1000)
    assert result["real_reset_ms"] == pytest.approx(1000)
    assert result["estimated"] is False
    spoiled = OtherSide(shop, spoiled=equal.points - 1)
    result = bench.measure(shop, plan, lambda line: None, spoiled)  # type: ignore[arg-type]
    assert result["mismatches"] == 1
    (reason,) = [line for line in bench.missed(result) if "differ" in line]
    assert reason.startswith("1 pages")


def test_every_part_of_a_page_counts() -> None:
    page = Page("text", 0.5, True, True, ("a", "b"))
    reply = Reply("text", 0.5, True, True, ("search", "a", "b"), None, 0.0, 0.0)
    walk = Walk("synthetic-0", [], [page])
    assert bench.mismatches(walk, [reply]) == 0
    for change in (
        {"observation": "Text"},
        {"reward": 0.25},
        {"done": False},
        {"has_search_bar": False},
        {"clickables": ("search", "b", "a")},
    ):
        assert bench.mismatches(walk, [reply._replace(**change)]) == 1


def test_measuring_the_engine_leaves_the_env_usable(shop: Shop) -> None:
    env = bench.make_env(shop, 15)
    walks = walks_on(shop, 3, 0, set())
    found = measure_engine(env, walks)
    assert all(value > 0 for value in found.values())
    assert found["snapshot_restore_us"] == pytest.approx(found["snapshot_us"] + found["restore_us"])
    again, _ = bench.walk(env, walks[0].task_id, 15, random.Random("0/0"), set())
    assert again.pages[0] == walks[0].pages[0]


def test_without_a_checkout_there_is_no_original(shop: Shop) -> None:
    with bench.opened(shop, None, None) as original:
        assert original is None
    with pytest.raises(MissingData, match="no checkout"), bench.opened(shop, None, "nowhere"):
        pass


def test_the_largest_size_is_judged(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def scale(documents: list[str], sizes: Sequence[int], *, seed: int) -> dict[str, Any]:
        asked.append((len(documents), tuple(sizes), seed))
        return {str(n): {"open_ms": n / 10_000, "queries_mb": n / 100_000} for n in sizes}

    monkeypatch.setattr(webshop_search, "search_scale", scale)
    assert bench.search_figures(shop, False, 7).keys() == {"search"}
    found = bench.search_figures(shop, True, 7)
    assert found["search_open_ms"] == pytest.approx(118)
    assert found["search_resident_mb"] == pytest.approx(11.8)
    count = len(shop.catalogue)
    assert asked == [(count, (1000,), 7), (count, (1000, 100_000, 1_180_000), 7)]


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "build_s": 1.0, "bytes": 3 << 20, "open_ms": 2.5, "p50_ms": 0.125, "p99_ms": 0.5,
        "queries_mb": 60.0, "bm25s": {"p50_ms": 0.75, "overlap": 0.5},
    }  # fmt: skip
    rows = {"1000": row, "100000": row | {"bm25s": None}}
    monkeypatch.setattr(webshop_search, "search_scale", lambda *documents, **options: rows)
    monkeypatch.setattr(bench, "calibrate", lambda: sum(range(10**5)))
    args = command.Args(data="generated:small?seed=5", goals=4, json=True)
    code = command.run(args)
    *table, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last)
    assert code == bool(figures["missed"])
    assert figures["missed"] == bench.missed(figures)
    assert figures["estimated"] is True
    assert figures["search"] == rows
    assert figures["thresholds"] == bench.AT_LEAST | bench.BELOW
    shown = " ".join(table)
    for text in ("(estimated)", "in 100,000 doc", "3.0 MiB", "bm25s: p50 0.750 ms", "never seen"):
        assert text in shown
