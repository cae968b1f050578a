"""Steps of the methods with skills, and the same numbers worked out the long way."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.short_runs import mixed
from trainer.auxiliary.skills import EPISODE_TITLE
from trainer.config import Config, load_config, resolve
from trainer.learning.update import BaseStep, LossStats, base_backward, score_segments
from trainer.methods.protocol import Method, PassLimits, Rollouts, Setup, Step
from trainer.methods.registry import make_methods
from trainer.models.policy import collate, token_logprobs
from trainer.rollouts.data import Segment, Turn, make_segment, segments_from_turns
from trainer.rollouts.tokens import encode_text

SKILLS = [
    {"name": "place", "text": "carry the thing to its place and put it down", "keywords": ["put"]},
    {"name": "lamp", "text": "switch the desklamp on", "keywords": ["look", "examine"]},
]
ANALYSER = {"model": "tests.trainer.methods.toy_analysers:outcome"}
LIMITS = PassLimits(4096, 0)

SECTIONS: dict[str, dict[str, Any]] = {
    "seed": {"analyser": ANALYSER},
    "sdar": {"entries": SKILLS, "retrieval": "full"},
    "skill_sd": {"entries": SKILLS, "retrieval": "full"},
    "opid": {"analyser": {"model": "tests.trainer.methods.toy_analysers:steps"}},
}


def config_of(name: str, overrides: dict[str, Any] | None = None, **more: Any) -> Config:
    """The small world with one method, its section changed by `overrides`."""
    section = {**SECTIONS[name], **(overrides or {})}
    world = {"env__max_steps": 8, "rollout__rollouts": 4, **more}
    return small.small_config(**world, **{f"auxiliary__{name}": section})


def turns_of(config: Config, model: Any) -> list[Turn]:
    """Turns of mixed outcomes with the log-probs that `model`, a fresh `small.model()`, gives."""
    played = _played(json.dumps([resolve(config)[key] for key in ("env", "prompt", "rollout")]))
    scores = score_segments(model, segments_from_turns(played), LIMITS)
    return [
        replace(turn, logprobs=tuple(row.tolist()))
        for turn, row in zip(played, scores, strict=True)
    ]


@lru_cache(maxsize=4)
def _played(sections: str) -> tuple[Turn, ...]:
    names = ("env", "prompt", "rollout")
    config = load_config(dict(zip(names, json.loads(sections), strict=True)), {})
    turns = mixed(config)
    assert len({turn.success for turn in turns if turn.done}) == 2, "mixed outcomes are needed"
    return tuple(turns)


def made(config: Config, model: Any, **setup: Any) -> Any:
    (method,) = make_methods(Setup(config, small.student(config), model, **setup))
    return method


def prepared(
    config: Config, model: Any, turns: Sequence[Turn], *, iteration: int = 0, **setup: Any
) -> Any:
    """The method after `prepare`."""
    method = made(config, model, **setup)
    method.prepare(Rollouts(iteration, turns, segments_from_turns(turns)), model)
    return method


def whole_step(turns: Sequence[Turn], places: Sequence[int] | None = None) -> Step:
    return Step(0, 0, 0, 1, tuple(range(len(turns)) if places is None else places))


def gradient(method: Method, model: Any, turns: Sequence[Turn], *, tokens: int = 10**9) -> Tensor:
    """Of the method's term alone, over one step of all turns."""
    segments, step = segments_from_turns(turns), whole_step(turns)
    term = method.token_term(step)
    assert term is not None
    zeros = [torch.zeros(segment.trained, dtype=torch.float64) for segment in segments]
    base = BaseStep(segments, step.turns, zeros, None, [term], 0.0)
    model.zero_grad()
    objective = small.small_config().objective
    base_backward(model, base, objective, PassLimits(tokens, 0), LossStats())
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient_of(model: Any, loss: Callable[[], Tensor]) -> Tensor:
    model.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def logprobs(model: Any, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
    """float64 (M, T) with gradient, and the mask."""
    batch = collate(segments)
    return token_logprobs(model, batch).logprobs.double(), batch.mask_B_T


def skilled(turns: Sequence[Turn], skill_of: Callable[[Turn], str | None]) -> list[Segment]:
    """The turns' replies behind compact prompts with a skill, written out by hand."""
    tokenizer, result = small.tokenizer(), []
    for turn in turns:
        skill = skill_of(turn)
        ids: Sequence[int] = turn.prompt_ids
        if skill is not None:
            text = tokenizer.decode(list(ids))
            task = f"task: {turn.goal}\n"
            assert task in text
            text = text.replace(task, f"{task}{EPISODE_TITLE}\n{skill}\n", 1)
            ids = encode_text(tokenizer, text)
        result.append(make_segment(ids, turn.response_ids))
    return result


def hindsight_skill(turns: Sequence[Turn]) -> Callable[[Turn], str]:
    """What the toy analyser says of a turn's trajectory."""
    from tests.trainer.methods.toy_analysers import skill_of

    won = {(turn.uid, turn.tid) for turn in turns if turn.success}

    def told(turn: Turn) -> str:
        return skill_of(turn.goal, "success" if (turn.uid, turn.tid) in won else "failure")

    return told


def library_text(_: Turn) -> str:
    return "\n".join(f"- {skill['text']}" for skill in SKILLS)
