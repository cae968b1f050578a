"""Skills from a fixed library: what SDAR and Skill-SD share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from trainer import rng
from trainer.auxiliary.skill_retrieval import ArmStats, StaticSkill
from trainer.config.auxiliary.skills import RetrievalConfig
from trainer.errors import ConfigError
from trainer.methods.privileged import TeacherPrompt
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.skills.contexts import attempts_of, library_of, library_prompts, retrieve

__all__ = ["Library"]


class Library:
    """Chooses skills a group, and learns from outcomes which to choose where that is asked for.

    Args:
        name: of the method; it keys the random streams.
    """

    def __init__(self, setup: Setup, name: str, section: RetrievalConfig) -> None:
        self.setup = setup
        self.name = name
        self.section = section
        self.skills = library_of(section, f"auxiliary.{name}")
        self.stats = ArmStats()
        self._counts: list[int] = []
        self._by_type: dict[str, int] = {}

    def prompts(self, rollouts: Rollouts) -> Sequence[TeacherPrompt]:
        """The teacher's prompt of every turn.

        Under "ucb" a skill's reward is the success, 0 or 1, of each rollout of the groups that it
        was chosen for; the choice itself knows earlier iterations only.
        """
        seed = self.setup.config.run.seed

        def stream(uid: str) -> np.random.Generator:
            return rng.stream(seed, rollouts.iteration, uid, purpose=f"{self.name}-retrieve")

        attempts = attempts_of(rollouts.turns)
        chosen = retrieve(self.section, self.skills, self.stats, attempts, stream)
        self._counts = [len(skills) for skills in chosen.values()]
        self._by_type = self._loaded({t.uid: t.task_type for t in rollouts.turns}, chosen)
        if self.section.retrieval == "ucb":
            # In the order of ids: sums of rewards must not depend on the order of rows.
            for attempt in sorted(attempts, key=lambda a: (a.uid, a.tid)):
                names = [skill.name for skill in chosen[attempt.uid]]
                self.stats = self.stats.add(names, float(attempt.episode.success))
        return library_prompts(self.setup.student, rollouts.turns, chosen)

    def _loaded(
        self, types: Mapping[str, str], chosen: Mapping[str, Sequence[StaticSkill]]
    ) -> dict[str, int]:
        """Skills chosen for the groups of each type of task."""
        found = dict.fromkeys(sorted(set(types.values())), 0)
        for uid, task_type in types.items():
            found[task_type] += len(chosen[uid])
        missing = [task_type for task_type, count in found.items() if not count]
        if missing and not self.section.allow_missing:
            raise ConfigError(
                f"auxiliary.{self.name} found no skill for tasks of the type {missing[0]!r}: "
                f"nothing would be learnt there. Add one whose words occur in such tasks, use "
                f"retrieval=full, or set auxiliary.{self.name}.allow_missing=true."
            )
        return found

    def figures(self) -> Mapping[str, float | None]:
        """Share of groups with a skill, skills a group, how many have ever been used (UCB), and
        skills loaded for each type of task."""
        count = len(self._counts)
        ucb = self.section.retrieval == "ucb"
        return {
            "retrieved": sum(n > 0 for n in self._counts) / count if count else None,
            "skills_mean": sum(self._counts) / count if count else None,
            "arms_used": float(len(self.stats.counts)) if ucb else None,
            **{f"loaded/{name}": float(count) for name, count in self._by_type.items()},
        }

    def state(self) -> Mapping[str, Tensor]:
        """Which library it is; with "ucb" also uses and rewards of each skill, in its order."""
        library = {"library": torch.tensor(list(self._digest()), dtype=torch.uint8)}
        if self.section.retrieval != "ucb":
            return library
        names = [skill.name for skill in self.skills]
        return {
            **library,
            "counts": torch.tensor([self.stats.counts.get(n, 0) for n in names]),
            "rewards": torch.tensor(
                [self.stats.rewards.get(n, 0.0) for n in names], dtype=torch.float64
            ),
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave.

        Raises:
            ValueError: there is something missing or too much, or it is of another library: with
                other names, texts or keywords, or in another order.
        """
        own = self.state()
        if own.keys() != tensors.keys():
            raise ValueError(f"it holds {sorted(tensors) or 'nothing'}, expected {sorted(own)}")
        if not torch.equal(own["library"], tensors["library"]):
            place = (
                f"auxiliary.{self.name}.{'entries' if self.section.skills is None else 'skills'}"
            )
            raise ValueError(
                f"it was written with another library of skills: names, texts, keywords or the "
                f"order of {place} have changed since. Put the former library back, or begin a "
                "new run"
            )
        if self.section.retrieval != "ucb":
            return
        pairs = list(
            zip(self.skills, tensors["counts"].tolist(), tensors["rewards"].tolist(), strict=True)
        )
        self.stats = ArmStats(
            {skill.name: count for skill, count, _ in pairs if count},
            {skill.name: reward for skill, count, reward in pairs if count},
        )

    def _digest(self) -> bytes:
        skills = [[skill.name, skill.text, list(skill.keywords)] for skill in self.skills]
        return hashlib.sha256(json.dumps(skills).encode()).digest()
