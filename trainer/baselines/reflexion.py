"""Reflexion (arXiv:2303.11366): after a failed attempt the model notes why, and tries again.

ReAct, up to a number of trials; the last three notes stand before the task. A task counts as solved
if any trial solves it, so the figure does not compare with that of single attempts: results say how
many trials were allowed, and `trainer.evaluation.evaluate.check_comparable` refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from agent_envs.prompting import Message
from agent_envs.prompting.templates import template_hash
from trainer import rng
from trainer.baselines.episodes import TextEpisode, TextSettings, TextTrajectory, play_text
from trainer.baselines.models import ReplyModel, TextRequest
from trainer.baselines.react import ReActAgent, transcript
from trainer.generation.base import SamplerError

__all__ = ["KEPT_NOTES", "Trials", "play_trials", "reflexion_hash"]

KEPT_NOTES = 3
VERSION = 1
REFLECT = "evaluate-reflection"
"""Purpose of the streams that notes are drawn from."""

_TEXTS = {
    "ask": (
        "Below is your attempt at a task in a text environment. It did not complete the task.\n\n"
        "{transcript}\n\nIn at most four sentences, say where the attempt went wrong and what you "
        "will do differently next time. Name the things and places that matter. Write nothing else."
    ),
}


@dataclass(frozen=True, slots=True)
class Trials:
    """All attempts at the tasks.

    Attributes:
        last: for each task the attempt that counts: the one that solved it, else the last.
        solved: by trial, how many tasks had been solved by then.
        notes: by task id, what was noted after its failures.
    """

    last: tuple[TextTrajectory, ...]
    solved: tuple[int, ...]
    notes: dict[str, tuple[str, ...]]


def play_trials(
    task_ids: Sequence[str],
    envs: Sequence[gymnasium.Env[str, str]],
    agent: ReActAgent,
    model: ReplyModel,
    settings: TextSettings,
    trials: int,
    seed: int = 0,
) -> Trials:
    """Plays every task until it is solved, `trials` times at most.

    Raises:
        ValueError: no trial, or no environment.
    """
    if trials < 1:
        raise ValueError(f"trials={trials} must be at least 1.")
    last: dict[str, TextTrajectory] = {}
    notes: dict[str, tuple[str, ...]] = {}
    solved: list[int] = []
    open_tasks = list(task_ids)
    for trial in range(trials):
        episodes = [
            TextEpisode(task, seed, trial, notes.get(task, ())[-KEPT_NOTES:]) for task in open_tasks
        ]
        played = play_text(episodes, envs, agent, model, settings)
        last.update({run.episode.task_id: run for run in played})
        solved.append(sum(run.outcome.success for run in last.values()))
        failed = [run for run in played if not run.outcome.success]
        open_tasks = [run.episode.task_id for run in failed]
        if trial + 1 == trials or not failed:
            solved += [solved[-1]] * (trials - trial - 1)
            break
        for run, note in zip(failed, _reflect(failed, model, settings), strict=True):
            if note:
                task = run.episode.task_id
                notes[task] = (*notes.get(task, ()), note)
    return Trials(tuple(last[task] for task in task_ids), tuple(solved), notes)


def reflexion_hash(agent: ReActAgent) -> str:
    """SHA-256 (hex) of all wordings that a trial may show."""
    options: dict[str, Any] = {"react": agent.hash, "kept_notes": KEPT_NOTES}
    return template_hash("reflexion", VERSION, _TEXTS, options)


def _reflect(
    failed: Sequence[TextTrajectory], model: ReplyModel, settings: TextSettings
) -> list[str | None]:
    """One note an attempt; None where it is too long to be shown, or the note is empty."""
    found: dict[int, str | None] = {}
    try:
        for place, run in enumerate(failed):
            e = run.episode
            key = (e.seed, 0, e.task_id, e.trial, 0, REFLECT)
            sampled = settings.temperature > 0
            text = _TEXTS["ask"].format(transcript=transcript(run.situation))
            prompt: list[Message] = [{"role": "user", "content": text}]
            model.submit(
                place,
                TextRequest(
                    prompt,
                    settings.max_new_tokens,
                    settings.temperature,
                    settings.top_p,
                    rng.stream(*key) if sampled else None,
                    rng.stream_key(*key) % 2**31 if sampled else None,
                ),
            )
        while len(found) < len(failed):
            replies = model.collect()
            if not replies:
                raise SamplerError(
                    f"{type(model).__name__}.collect() returned nothing while "
                    f"{len(failed) - len(found)} notes are pending; it must wait for one of them."
                )
            for place, reply in replies:
                # One line, so that a note cannot pass for a part of the conversation.
                found[place] = " ".join(reply.text.split()) if reply.text else None
    except BaseException:
        model.drop()
        raise
    return [found[place] or None for place in range(len(failed))]
