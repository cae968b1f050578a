from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.baselines.script import Messages, ScriptSampler, answer
from tests.trainer.baselines.test_react import envs, student, tasks
from trainer.baselines.episodes import TextSettings
from trainer.baselines.models import PolicyModel
from trainer.baselines.react import ReActAgent
from trainer.baselines.reflexion import KEPT_NOTES, Trials, play_trials, reflexion_hash

AGENT = ReActAgent("alfworld", list_commands=True)


def _notes(first: str) -> list[str]:
    told = first.partition("You have tried the task below before")[2].partition("Now it is your")[0]
    return [line[2:] for line in told.splitlines() if line.startswith("- ")]


class Learner:
    """Gives up at once (only looks) until it reads `needed` notes, which it numbers itself."""

    def __init__(self, needed: int) -> None:
        self.needed = needed
        self.written = 0
        self.shown: list[list[str]] = []

    def __call__(self, messages: Messages) -> str:
        if "In at most four sentences" in messages[-1]["content"]:
            self.written += 1
            return f"Note {self.written}:\n  look  elsewhere."
        notes = _notes(messages[0]["content"])
        self.shown.append(notes)
        return answer(messages) if len(notes) >= self.needed else "> look"


def _play(say: Any, trials: int, n: int = 1, batch: int = 1, tokens: int = 400) -> Trials:
    model = PolicyModel(student(), ScriptSampler(say))
    return play_trials(tasks(n), envs(batch), AGENT, model, TextSettings(tokens), trials)


def _solvable() -> int:
    """How many of the first tasks until one that the script solves, that one included."""
    run = _play(answer, 1, n=10, batch=4)
    return 1 + [t.outcome.success for t in run.last].index(True)


def test_notes_lead_to_success_and_trials_are_counted() -> None:
    n = _solvable()
    learner = Learner(2)
    result = _play(learner, 5, n=n, batch=3)
    last = result.last[n - 1].outcome
    assert last.success
    assert last.trials == 3
    assert result.solved[:2] == (0, 0)
    assert result.solved[2] >= 1
    assert len(result.solved) == 5
    assert list(result.solved) == sorted(result.solved)
    assert [t.outcome.task_id for t in result.last] == tasks(n)
    # One line each, in the order in which they were written.
    note = result.notes[last.task_id]
    assert len(note) == 2
    assert all("\n" not in text and text.endswith(": look elsewhere.") for text in note)


def test_the_last_three_notes_are_shown_and_a_solved_task_is_not_played_again() -> None:
    learner = Learner(99)
    result = _play(learner, 6)
    assert (result.last[0].outcome.trials, result.solved) == (6, (0,) * 6)
    assert learner.written == 5, "no note after the last trial"
    lengths = sorted({len(notes) for notes in learner.shown})
    assert lengths == [0, 1, 2, KEPT_NOTES]
    assert learner.shown[-1] == [f"Note {i}: look elsewhere." for i in (3, 4, 5)]

    n = _solvable()
    first = _play(answer, 4, n=n, batch=2)
    assert first.last[n - 1].outcome.trials == 1
    assert first.last[n - 1].outcome.task_id not in first.notes


def test_the_batch_changes_nothing() -> None:
    results = [_play(answer, 2, n=6, batch=batch) for batch in (1, 4)]
    assert [t.outcome for t in results[0].last] == [t.outcome for t in results[1].last]
    assert results[0].solved == results[1].solved
    assert results[0].notes == results[1].notes


def test_an_empty_note_is_none() -> None:
    def say(messages: Messages) -> str:
        return "  \n" if "In at most four" in messages[-1]["content"] else "> look"

    result = _play(say, 3)
    assert result.notes == {}
    assert result.last[0].outcome.trials == 3
    with pytest.raises(ValueError, match="trials=0"):
        _play(say, 0)


def test_the_hash_is_not_that_of_react() -> None:
    assert reflexion_hash(AGENT) != AGENT.hash
    assert reflexion_hash(AGENT) != reflexion_hash(ReActAgent("alfworld"))
