"""Drawing skills from a fixed library."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainer.auxiliary import skill_retrieval
from trainer.auxiliary.skill_retrieval import (
    ArmStats,
    LibraryError,
    StaticSkill,
    retrieve_full,
    retrieve_keyword,
    retrieve_random,
    retrieve_ucb,
    skills_text,
)

COOL = StaticSkill("cool", "Open the fridge, then cool the object.", ("cool", "fridge"))
HEAT = StaticSkill("heat", "Use the microwave.", ("Heat", "hot", "microwave"))
FIND = StaticSkill("find", "Look into closed drawers and find what the task names.")
LIBRARY = (COOL, HEAT, FIND)


def names(chosen):
    return [skill.name for skill in chosen]


def rng(seed=0):
    return np.random.default_rng(seed)


def test_full_keeps_the_order():
    assert retrieve_full(list(LIBRARY)) == LIBRARY


def test_keyword():
    assert names(retrieve_keyword(LIBRARY, "HEAT a mug, put it away")) == ["heat"]
    assert names(retrieve_keyword(LIBRARY, "cool it in the fridge, or heat it", k=3)) == [
        "cool",
        "heat",
        "find",  # shares "the" through its text
    ]
    assert names(retrieve_keyword(LIBRARY, "cool or heat", k=2)) == ["cool", "heat"]
    assert names(retrieve_keyword(LIBRARY, "heat: hot, cool", k=1)) == ["heat"]
    assert names(retrieve_keyword(LIBRARY, "reheat", k=3)) == []
    assert names(retrieve_keyword(LIBRARY, "open drawers_2", k=3)) == ["find"]
    # Repeated words count once.
    assert names(retrieve_keyword(LIBRARY, "cool cool cool hot microwave", k=1)) == ["heat"]


def test_random_without_replacement():
    seen = set()
    for seed in range(40):
        chosen = names(retrieve_random(LIBRARY, 2, rng(seed)))
        assert len(set(chosen)) == 2
        seen.add(tuple(chosen))
    assert len(seen) == 6
    assert retrieve_random(LIBRARY, 2, rng(7)) == retrieve_random(LIBRARY, 2, rng(7))
    assert sorted(names(retrieve_random(LIBRARY, 9, rng()))) == ["cool", "find", "heat"]


def test_ucb_tries_everything_first():
    stats = ArmStats().add(["cool"], 1.0)
    seen = {tuple(names(retrieve_ucb(LIBRARY, stats, 2, rng(seed)))) for seed in range(30)}
    assert seen == {("heat", "find"), ("find", "heat")}
    first = {retrieve_ucb(LIBRARY, ArmStats(), 1, rng(seed))[0].name for seed in range(30)}
    assert first == {"cool", "heat", "find"}


def test_ucb_by_hand():
    # Means 0.5, 0.4, 0.1 and uses 8, 2, 4 of 14; bonuses sqrt(2 ln 14 / n).
    stats = ArmStats({"cool": 8, "heat": 2, "find": 4}, {"cool": 4.0, "heat": 0.8, "find": 0.4})
    bounds = {
        "cool": 0.5 + math.sqrt(2 * math.log(14) / 8),  # 1.312
        "heat": 0.4 + math.sqrt(2 * math.log(14) / 2),  # 2.025
        "find": 0.1 + math.sqrt(2 * math.log(14) / 4),  # 1.249
    }
    order = sorted(bounds, key=bounds.get, reverse=True)
    assert order == ["heat", "cool", "find"]
    assert names(retrieve_ucb(LIBRARY, stats, 3, rng())) == order
    assert names(retrieve_ucb(LIBRARY, stats, 1, rng())) == ["heat"]
    assert names(retrieve_ucb(LIBRARY, stats, 3, rng(), exploration=0.0)) == [
        "cool",
        "heat",
        "find",
    ]
    # The first two change places where their bounds cross.
    cross = 0.1 / (math.sqrt(math.log(14) / 2) - math.sqrt(math.log(14) / 8))
    below, above = 0.99 * cross, 1.01 * cross
    assert names(retrieve_ucb(LIBRARY, stats, 1, rng(), exploration=below)) == ["cool"]
    assert names(retrieve_ucb(LIBRARY, stats, 1, rng(), exploration=above)) == ["heat"]
    assert pytest.approx(math.sqrt(2.0)) == skill_retrieval.EXPLORATION


def test_ucb_counts_only_this_library():
    # With 10**9 uses of a skill that is gone, the rarely used one would win.
    stats = ArmStats({"cool": 8, "heat": 4, "gone": 10**9}, {"cool": 7.2, "heat": 0.0, "gone": 0.0})
    pair = (COOL, HEAT)
    assert 0.9 + math.sqrt(2 * math.log(12) / 8) > math.sqrt(2 * math.log(12) / 4)
    assert 0.9 + math.sqrt(2 * 20.7 / 8) < math.sqrt(2 * 20.7 / 4)
    assert names(retrieve_ucb(pair, stats, 1, rng())) == ["cool"]


def test_statistics_are_values():
    empty = ArmStats()
    once = empty.add(["cool", "heat"], 0.5)
    twice = once.add(["cool"], 1.0)
    assert empty == ArmStats({}, {})
    assert once == ArmStats({"cool": 1, "heat": 1}, {"cool": 0.5, "heat": 0.5})
    assert twice == ArmStats({"cool": 2, "heat": 1}, {"cool": 1.5, "heat": 0.5})
    with pytest.raises(ValueError, match="must be finite, found inf"):
        empty.add(["cool"], math.inf)


def test_section_text():
    assert skills_text([HEAT, FIND]) == (
        "- Use the microwave.\n- Look into closed drawers and find what the task names."
    )
    assert skills_text([]) == ""


def test_refusals():
    with pytest.raises(LibraryError, match="empty"):
        retrieve_full([])
    with pytest.raises(LibraryError, match="holds 'cool' twice"):
        retrieve_full([HEAT, COOL, COOL])
    for retrieve in (
        lambda: retrieve_keyword(LIBRARY, "x", 0),
        lambda: retrieve_random(LIBRARY, 0, rng()),
        lambda: retrieve_ucb(LIBRARY, ArmStats(), 0, rng()),
    ):
        with pytest.raises(LibraryError, match="k=0"):
            retrieve()
    for wrong in (-0.1, math.inf):
        with pytest.raises(ValueError, match="exploration must be finite"):
            retrieve_ucb(LIBRARY, ArmStats(), 1, rng(), exploration=wrong)
