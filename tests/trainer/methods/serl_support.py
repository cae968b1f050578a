"""SERL on turns of the tiny policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from tests.trainer import small
from trainer.auxiliary.feedback_context import TITLES, Section
from trainer.config import Config
from trainer.learning.learner import Learner
from trainer.learning.update import score_segments
from trainer.methods.privileged import rescored, with_sections
from trainer.methods.protocol import PassLimits, Rollouts, Setup, Step
from trainer.methods.registry import make_methods
from trainer.methods.reweighting.serl import Serl
from trainer.metrics import Phases
from trainer.rollouts.data import Segment, Turn, segments_from_turns

LIMITS = PassLimits(4096, 0)


def serl_config(**overrides: Any) -> Config:
    return small.small_config(
        **{"env__max_steps": 6, "rollout__rollouts": 4, "auxiliary__serl": {}, **overrides}
    )


def serl_of(**section: Any) -> Config:
    return serl_config(auxiliary__serl=section)


@lru_cache(maxsize=1)
def serl_turns() -> tuple[Turn, ...]:
    """Turns with mixed outcomes, under log-probs of the policy of the tests."""
    config = serl_config(rollout__temperature=0.8)
    trajectories = small.rollouts(config, small.half_expert(0.8))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert len({turn.success for turn in turns if turn.done}) == 2
    values = score_segments(small.model(), segments_from_turns(turns), LIMITS)
    pairs = zip(turns, values, strict=True)
    return tuple(replace(turn, logprobs=tuple(v.tolist())) for turn, v in pairs)


def learn(config: Config, model: Any, turns: Sequence[Turn] | None = None) -> dict[str, Any]:
    student = small.student(config)
    learner = Learner(config, model, student, methods=make_methods(Setup(config, student, model)))
    return learner.learn(0, list(serl_turns() if turns is None else turns), Phases())


def prepared_serl(
    config: Config, model: Any, iteration: int = 0, turns: Sequence[Turn] | None = None
) -> Serl:
    (method,) = make_methods(Setup(config, small.student(config), model))
    assert isinstance(method, Serl)
    chosen = list(serl_turns() if turns is None else turns)
    method.prepare(Rollouts(iteration, chosen, segments_from_turns(chosen)), model)
    return method


def step_of(turns: Sequence[int], iteration: int = 0) -> Step:
    return Step(iteration, 0, 0, 1, tuple(turns))


def command_of(turn: Turn) -> tuple[bool, ...]:
    return small.student().command_mask(turn.response_ids)


def told_row(turn: Turn) -> Segment:
    """The reply behind the prompt that the default source makes."""
    section = Section(TITLES["feedback"], turn.next_observation.strip())
    prompt = with_sections(small.student(), turn, [section], max_tokens=512)
    assert prompt.on
    return rescored(turn, prompt)


def moved_copy(model: Any, scale: float = 0.02) -> Any:
    other = small.twin(model)
    stream = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=stream))
    return other
