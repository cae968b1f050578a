"""Choosing skills from a fixed library for one task: the contexts of SDAR's teacher.

Four ways, pure functions of the library, the task and an explicit generator: by keyword, all of
them, at random, or by upper confidence bound (UCB1, Auer et al. 2002) over the rewards that
followed each skill.

Source: SDAR (arXiv:2605.15155); what counts as a keyword is our choice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

EXPLORATION = math.sqrt(2.0)

_WORD = re.compile(r"[^\W_]+")


class LibraryError(ValueError):
    """Raised when a skill library cannot be drawn from."""


@dataclass(frozen=True, slots=True)
class StaticSkill:
    """One entry of a library.

    Attributes:
        name: unique key.
        text: what the prompt shows.
        keywords: words that call for it. Empty: the words of its text.
    """

    name: str
    text: str
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArmStats:
    """Uses and summed rewards of each skill by name; a value, `add` returns a new one."""

    counts: Mapping[str, int] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)

    def add(self, names: Sequence[str], reward: float) -> ArmStats:
        """Statistics after one episode that used these skills and ended with this reward.

        Raises:
            ValueError: the reward is not finite.
        """
        if not math.isfinite(reward):
            raise ValueError(f"The reward of a skill must be finite, found {reward}.")
        counts, rewards = dict(self.counts), dict(self.rewards)
        for name in names:
            counts[name] = counts.get(name, 0) + 1
            rewards[name] = rewards.get(name, 0.0) + reward
        return replace(self, counts=counts, rewards=rewards)


def retrieve_full(library: Sequence[StaticSkill]) -> tuple[StaticSkill, ...]:
    """The whole library, in its order."""
    return _checked(library)


def retrieve_keyword(
    library: Sequence[StaticSkill], task: str, k: int = 1
) -> tuple[StaticSkill, ...]:
    """The k skills that share most words with the task.

    The score is the number of different words, case ignored, that are both in the task and among
    a skill's keywords. Ties keep the library's order; skills without a shared word are left out.

    Args:
        library: the skills.
        task: the task's text.
        k: how many at most.
    """
    skills = _checked(library, k)
    words = _words(task)
    scores = [len(words & _words(" ".join(s.keywords) or s.text)) for s in skills]
    order = sorted(range(len(skills)), key=lambda i: -scores[i])
    return tuple(skills[i] for i in order[:k] if scores[i] > 0)


def retrieve_random(
    library: Sequence[StaticSkill], k: int, generator: np.random.Generator
) -> tuple[StaticSkill, ...]:
    """k different skills drawn uniformly, in the order drawn; all if there are fewer."""
    skills = _checked(library, k)
    return tuple(skills[i] for i in generator.permutation(len(skills))[:k])


def retrieve_ucb(
    library: Sequence[StaticSkill],
    stats: ArmStats,
    k: int,
    generator: np.random.Generator,
    *,
    exploration: float = EXPLORATION,
) -> tuple[StaticSkill, ...]:
    """The k skills of highest mean reward + exploration * sqrt(ln(n) / n_i).

    n_i counts a skill's uses, n those of the library. Unused skills come first; ties are broken
    by the generator, for a fixed order would try them in the order of the file in every task.

    Args:
        library: the skills.
        stats: their uses and rewards so far.
        k: how many; all if there are fewer.
        generator: source of the tie-breaks; drawn from once.
        exploration: weight of the bonus, >= 0; sqrt(2) is UCB1's for rewards in [0, 1].
    """
    skills = _checked(library, k)
    if not (math.isfinite(exploration) and exploration >= 0.0):
        raise ValueError(f"exploration must be finite and >= 0, found {exploration}.")
    total = sum(stats.counts.get(s.name, 0) for s in skills)

    def bound(skill: StaticSkill) -> float:
        uses = stats.counts.get(skill.name, 0)
        if uses == 0:
            return math.inf
        mean = stats.rewards.get(skill.name, 0.0) / uses
        return mean + exploration * math.sqrt(math.log(total) / uses)

    # Sorting is stable, so a random order beforehand breaks ties at random.
    shuffled = [skills[i] for i in generator.permutation(len(skills))]
    return tuple(sorted(shuffled, key=bound, reverse=True)[:k])


def skills_text(skills: Sequence[StaticSkill]) -> str:
    """The section's text for a teacher prompt: one line a skill; "" for none."""
    return "\n".join(f"- {skill.text}" for skill in skills)


def _checked(library: Sequence[StaticSkill], k: int = 1) -> tuple[StaticSkill, ...]:
    if k < 1:
        raise LibraryError(f"Expected at least one skill to retrieve, found k={k}.")
    if not library:
        raise LibraryError("The skill library is empty.")
    names = [skill.name for skill in library]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise LibraryError(f"The library holds {double!r} twice; give each skill its own name.")
    return tuple(library)


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))
