"""Replaying transcripts of the original WebShop: does ours say the same, step for step?

A transcript file holds JSON lines (plain or ``.gz``). The first is ``{"meta":
{"observation_mode", "human_goals", "prices": {asin: price}}}``, the others are one episode each:
``{"goal": the goal as the original has it, "steps": [{"action", "observation", "reward", "done",
"available": [has_search_bar, clickables], "reward_info", "bought"}, ...]}``. The first step is
the reset: its action is null, and it has neither reward nor done. The last two entries are on
purchases only.

The episodes go through the environment: prices are those of the transcript, goals are given whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent_envs.errors import CorruptData, SeroError
from agent_envs.json_lines import json_lines
from agent_envs.webshop.actions import SEARCH, click, is_sayable
from agent_envs.webshop.catalogue.goal_dicts import goal_from_dict
from agent_envs.webshop.engine import RESULTS, Engine
from agent_envs.webshop.env import WebShopEnv
from agent_envs.webshop.shop import Shop

DETAILS_LIMIT = 20
NEAR = 2e-4
"""Scores of results closer than this may stand in another order: the original's are rounded to
four decimals."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that differs in one step."""

    episode: str
    """File, and number of the episode in it from 1 up."""
    step: int
    """0 is the reset."""
    action: str | None
    what: str
    expected: object
    found: object


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Counts of a verification; `details` holds the first differences."""

    episodes: int
    steps: int
    """Actions carried out; the resets are compared as well."""
    mismatches: int
    """Steps (or resets, or whole episodes that cannot be replayed) that differ."""
    near_ties: int
    """Pages of results that differ in the order of products whose scores are nearly equal, and in
    nothing else. They are no mismatches."""
    details: tuple[Mismatch, ...]

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differed."""
        return self.steps > 0 and self.mismatches == 0


def verify_transcripts(
    paths: Iterable[str | os.PathLike[str]], shop: Shop, *, compat: bool = False
) -> VerifyResult:
    """Replay every episode and compare text, clickables, reward, its parts, and the purchase.

    Args:
        paths: transcript files.
        shop: the products that they were recorded on.
        compat: whether to replay with the original's faults.

    Raises:
        MissingData: no such file.
        CorruptData: not a transcript file; the message names the line.
    """
    episodes = steps = mismatches = near_ties = 0
    details: list[Mismatch] = []
    for path in map(Path, paths):
        env: WebShopEnv | None = None
        for episode, (number, line) in enumerate(json_lines(path, "transcripts")):
            try:
                if env is None:
                    env = _env_for(line["meta"], shop, compat)
                    continue
                records = list(line["steps"])
                goal_from_dict(line["goal"])  # refused here: what is no goal is no mismatch
                replay = _Replay(env, f"{path.name}, episode {episode}")
                found = list(replay.differences(line["goal"], records))
                steps += sum(record["action"] is not None for record in records)
            except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise CorruptData(f"{path}: line {number} is no transcript: {error!r}.") from error
            episodes += 1
            mismatches += len({difference.step for difference in found})
            near_ties += replay.near_ties
            details.extend(found[: DETAILS_LIMIT - len(details)])
    return VerifyResult(episodes, steps, mismatches, near_ties, tuple(details))


def _env_for(meta: Mapping[str, Any], shop: Shop, compat: bool) -> WebShopEnv:
    return WebShopEnv(
        shop.with_prices(meta["prices"]),
        split=None,
        max_steps=None,
        goal_source="human" if meta["human_goals"] else "synthetic",
        observation_mode=meta["observation_mode"],
        compat=compat,
    )


class _Replay:
    """One episode of a transcript."""

    def __init__(self, env: WebShopEnv, name: str) -> None:
        self.near_ties = 0
        self._env = env
        self._name = name
        self._engine: Engine = env.engine

    def differences(
        self, goal: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
    ) -> Iterator[Mismatch]:
        """What differs, step by step; ends at a step that ours cannot take."""
        for step, record in enumerate(records):
            action = record["action"]
            reward: float | None = None
            done: bool | None = None
            try:
                if action is None:
                    observation, info = self._env.reset(options={"goal": goal})
                else:
                    observation, reward, done, _, info = self._env.step(action)
            except SeroError as error:
                yield Mismatch(self._name, step, action, "replay", "an answer", str(error))
                return
            found = {
                "observation": observation,
                "available": self._available(info),
                "admissible": list(info["admissible_actions"]),
                "reward": reward,
                "done": done,
                "reward_info": None if info["reward_info"] is None else dict(info["reward_info"]),
                "bought": self._bought(info),
            }
            expected = {name: record.get(name) for name in found}
            expected["observation"] = record["observation"]
            expected["available"] = record["available"]
            expected["admissible"] = self._admissible(*record["available"])
            unequal = [name for name in found if found[name] != expected[name]]
            if unequal and self._is_near_tie(record, unequal):
                self.near_ties += 1
                continue
            for name in unequal:
                yield Mismatch(self._name, step, action, name, expected[name], found[name])

    def _available(self, info: Mapping[str, Any]) -> list[Any]:
        """What the original lists: whether there is a search bar, and the clickables."""
        if info["action_templates"]:
            return [True, [SEARCH]]
        view = self._engine.view(self._env.privileged().session)
        return [False, list(view.clickables)]

    def _admissible(self, has_search_bar: bool, clickables: Sequence[str]) -> list[str]:
        texts = [text for text in clickables if not (has_search_bar and text == SEARCH)]
        if self._engine.rules.compat:
            texts = [text for text in texts if is_sayable(text)]
        return [click(text) for text in texts]

    def _bought(self, info: Mapping[str, Any]) -> dict[str, Any] | None:
        if info["reward_info"] is None:
            return None
        session, catalogue = self._env.privileged().session, self._env.shop.catalogue
        return {
            "asin": catalogue.asin(session.product),
            "options": dict(session.options),
            "price": catalogue.price(session.product),
        }

    def _is_near_tie(self, record: Mapping[str, Any], unequal: Sequence[str]) -> bool:
        """Whether a page of results differs in the order of nearly equal ones alone."""
        view = self._env.privileged()
        session, shop = view.session, self._env.shop
        query = session.query
        if (
            session.page != RESULTS
            or query is None
            or not set(unequal)
            <= {
                "observation",
                "available",
                "admissible",
            }
        ):
            return False
        found = self._engine.view(session)
        buttons = len(found.clickables) - len(found.products)
        named = [shop.catalogue.number_of(asin) for asin in record["available"][1][buttons:]]
        expected = tuple(number for number in named if number is not None)
        if len(expected) != len(named) or len(expected) != len(found.products):
            return False
        scores = shop.index.scores(query)
        apart = np.abs(scores[list(expected)] - scores[list(found.products)])
        heading = self._engine.layout.head(view.goal.instruction)
        text = self._engine.results_text(session, heading, expected)
        return bool(np.all(apart <= NEAR)) and text == record["observation"]
