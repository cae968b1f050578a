"""Every teacher that is told a hint, and how one iteration of it is prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tests.trainer import small
from tests.trainer.methods.distilling import LIMITS, config_of, trajectories_of, turns_of
from trainer.config import Config
from trainer.learning.update import score_segments
from trainer.methods.privileged import prompt_view, rescored
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.registry import make_methods
from trainer.methods.skills.opid import Opid
from trainer.methods.skills.teacher import Distilled
from trainer.rollouts.data import Segment, Turn, segments_from_turns
from trainer.rollouts.rollout import Student

ANALYSERS = "tests.trainer.methods.toy_analysers"
SKILLS = [{"name": "put", "text": "carry the thing to its place", "keywords": ["put", "look"]}]
LIBRARY = {"entries": SKILLS, "retrieval": "keyword", "allow_missing": True}

HINTED: dict[str, dict[str, Any]] = {
    "serl": {"source": "success_or_feedback"},
    "rlsd": {},
    "opsd": {"context": "success"},
    "opsd_legacy": {"context": "success"},
    "sdpo": {"feedback": False},
    "seed": {"analyser": {"model": f"{ANALYSERS}:failures_only"}},
    "opid": {"analyser": {"model": f"{ANALYSERS}:failures_only"}},
    "sdar": LIBRARY,
    "skill_sd": LIBRARY,
    "skill_sd/hindsight": {
        "source": "hindsight",
        "analyser": {"model": f"{ANALYSERS}:failures_only"},
    },
}
"""Method, and where its hints come from."""
COVERAGE = {
    "serl": "serl/row_coverage",
    "rlsd": "rlsd/row_coverage",
    "opsd": "opsd/context_share",
    "opsd_legacy": "opsd_legacy/context_share",
    "sdpo": "sdpo/context_share",
    "opid": "opid/episode_rows_on",
}
"""The counter of turns with a hint, as a share; `NAME/rows_on` for the others."""


def config_for(case: str, **section: Any) -> Config:
    return config_with(case, {**HINTED[case], **section})


def config_with(case: str, section: dict[str, Any]) -> Config:
    more = {"rollout__temperature": 0.8, "prompt__max_prompt_tokens": 4096}
    return config_of(**more, **{f"auxiliary__{name_of(case)}": section})


def name_of(case: str) -> str:
    return case.split("/", maxsplit=1)[0].split(" ", maxsplit=1)[0]


@cache
def played() -> tuple[Turn, ...]:
    turns = turns_of(trajectories_of(config_of(rollout__temperature=0.8)))
    values = score_segments(small.model(), segments_from_turns(turns), LIMITS)
    return tuple(
        replace(turn, logprobs=tuple(row.tolist())) for turn, row in zip(turns, values, strict=True)
    )


def alone() -> tuple[str, str]:
    """The one trajectory that is told nothing."""
    winners = {(t.uid, t.tid) for t in played() if t.uid == "0.1" and t.success}
    (found,) = winners
    return found


def turns_for(case: str, student: Student | None = None) -> list[Turn]:
    """Turns of which all but one trajectory have a hint, under prompts of `student`."""
    key, turns = alone(), list(played())
    student = small.student() if student is None else student
    if case == "serl":  # which takes what the environment answered where nobody else won
        turns = [replace(t, next_observation=" \n") if (t.uid, t.tid) == key else t for t in turns]
    if "analyser" in HINTED[case]:  # which says nothing of a success
        turns = [replace(t, success=t.success and (t.uid, t.tid) == key, reward=0.0) for t in turns]
    elif "entries" in HINTED[case]:  # whose keywords are not in every task
        turns = [replace(t, uid="other", goal="xyz") if (t.uid, t.tid) == key else t for t in turns]
    if student.tokenizer is not small.tokenizer():
        ids = {t.reply: (*student.tokenizer.encode(t.reply), 256) for t in turns}
        turns = [
            replace(t, response_ids=ids[t.reply], logprobs=(-1.0,) * len(ids[t.reply]))
            for t in turns
        ]
    return [replace(t, prompt_ids=student.prompt(prompt_view(t))) for t in turns]


def untold_places(turns: Sequence[Turn]) -> list[int]:
    return [i for i, turn in enumerate(turns) if turn.tid == alone()[1]]


def made(config: Config, model: Any, student: Student | None = None) -> Any:
    (method,) = make_methods(Setup(config, student or small.student(config), model))
    return method


def rollouts_of(turns: Sequence[Turn]) -> Rollouts:
    return Rollouts(0, turns, segments_from_turns(turns))


def prepared(case: str, config: Config, model: Any) -> tuple[Any, Rollouts, list[int]]:
    """The method after `prepare`, what it was given, and the turns that are told nothing."""
    rollouts = rollouts_of(turns_for(case))
    method = made(config, model)
    method.prepare(rollouts, model)
    return method, rollouts, untold_places(rollouts.turns)


def trained_rows(method: Any) -> dict[int, Segment | None]:
    """What the teacher scored in `prepare`, or will score in a pass: turns and their rows."""
    if isinstance(method, Opid):
        return dict.fromkeys(method._teachers["episode"])
    if isinstance(method, Distilled):
        return dict(method._segments)
    if hasattr(method, "scored"):
        return {i: rescored(row.turn, row.prompt, i) for i, row in method.scored.items()}
    return {i: pair.teacher for i, pair in method.pairs.items()}
