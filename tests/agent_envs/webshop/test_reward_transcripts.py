"""The reward of every recorded purchase of the original: equal, and equal in each part.

Promise: with the recorded prices and goals, `score` gives the float that the original gave.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agent_envs.webshop.nouns import nouns_named
from agent_envs.webshop.reward import score
from agent_envs.webshop.shop import Shop, goal_from_dict

FILES = {
    "webshop_text_human.jsonl.gz": 36,
    "webshop_text_rich_synthetic.jsonl.gz": 50,
    "webshop_text_synthetic.jsonl.gz": 181,
}
"""Transcripts, with the purchases in each."""


def purchases(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, float]]]:
    """(goal, step, prices) of every purchase."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        prices = json.loads(next(lines))["meta"]["prices"]
        for line in lines:
            episode = json.loads(line)
            for step in episode["steps"]:
                if step.get("bought"):
                    yield episode["goal"], step, prices


@pytest.mark.data
@pytest.mark.parametrize(("name", "count"), FILES.items())
def test_rewards_equal_the_recorded_ones(
    real_data: Path, real_shop: Shop, name: str, count: int
) -> None:
    nouns = nouns_named("table")
    rewards = []
    for goal, step, prices in purchases(real_data / "transcripts" / name):
        bought = step["bought"]
        number = real_shop.catalogue.number_of(bought["asin"])
        assert number is not None
        product = real_shop.catalogue[number]
        assert prices[bought["asin"]] == bought["price"]
        reward, info = score(
            goal_from_dict(goal), product, bought["price"], bought["options"].items(), nouns
        )
        parts = {key: value for key, value in asdict(info).items() if value is not None}
        assert (reward, parts) == (step["reward"], step["reward_info"])
        rewards.append(reward)
    assert len(rewards) == count
    assert len(set(rewards)) >= 10  # not all zeros and ones
