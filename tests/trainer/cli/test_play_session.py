"""`sero play`: a person's session, from a file of commands."""

from __future__ import annotations

import io
import json
from pathlib import Path

import gymnasium
import pytest
from rich.console import Console

from agent_envs.alfworld.games import GameSet
from tests.trainer.cli.conftest import Outcome, Sero
from trainer.cli.play import Game


def _play(sero: Sero, houses: Path, tmp_path: Path, *lines: str, task: int = 0) -> Outcome:
    script = tmp_path / "commands.txt"
    script.write_text("\n".join(lines), encoding="utf-8")
    task_id = GameSet.from_path(houses).task_ids("train")[task]
    return sero(
        "play", "--data", houses, "--task-id", task_id, "--commands", script, "--json"
    )  # fmt: skip


def test_the_shipped_plan_wins(sero: Sero, houses: Path, tmp_path: Path) -> None:
    games = GameSet.from_path(houses)
    for task in range(6):
        plan = games.walkthrough(games.task_ids("train")[task])
        assert plan is not None
        outcome = _play(sero, houses, tmp_path, *plan, task=task)
        assert outcome.code == 0
        assert outcome.figures["success"] is True
        assert outcome.figures["stop_reason"] == "success"
        assert outcome.figures["steps"] == len(plan)


def test_hints_lead_to_the_goal(sero: Sero, houses: Path, tmp_path: Path) -> None:
    commands: list[str] = []
    for _ in range(15):
        outcome = _play(sero, houses, tmp_path, *commands, ":hint")
        if outcome.figures["success"]:
            break
        hint = next(line for line in reversed(outcome.lines) if line.startswith("oracle: "))
        commands.append(hint.removeprefix("oracle: ").split("   (")[0])
    assert outcome.figures["success"] is True


def test_undo_takes_a_step_back(sero: Sero, houses: Path, tmp_path: Path) -> None:
    plan = GameSet.from_path(houses).walkthrough(GameSet.from_path(houses).task_ids("train")[0])
    assert plan is not None
    # Winning, taking it back and stopping there is not a win; winning again is.
    undone = _play(sero, houses, tmp_path, *plan, ":undo")
    assert undone.figures["success"] is False
    assert undone.figures["steps"] == len(plan) - 1
    again = _play(sero, houses, tmp_path, *plan, ":undo", plan[-1])
    assert again.figures["success"] is True
    start = _play(sero, houses, tmp_path, ":undo", plan[0], ":undo", ":undo")
    assert start.figures["steps"] == 0
    assert sum("Nothing to undo" in line for line in start.lines) == 2


def test_refused_commands_spend_a_step(sero: Sero, houses: Path, tmp_path: Path) -> None:
    outcome = _play(sero, houses, tmp_path, "fly to the moon", ":nonsense")
    assert any("Nothing happens." in line for line in outcome.lines)
    assert any("Unknown: :nonsense" in line for line in outcome.lines)
    assert outcome.figures["steps"] == 1


def test_nothing_follows_quit(sero: Sero, houses: Path, tmp_path: Path) -> None:
    assert _play(sero, houses, tmp_path, ":quit", "look").figures["steps"] == 0


def test_seed_zero_is_a_seed(sero: Sero, houses: Path, tmp_path: Path) -> None:
    script = tmp_path / "empty.txt"
    script.write_text("", encoding="utf-8")
    ids = [
        sero("play", "--data", houses, "--seed", s, "--commands", script, "--json").figures[
            "task_id"
        ]
        for s in (0, 0, 1, 2, 3)
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) > 1


def test_text_of_a_game_cannot_control_the_terminal(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    source = GameSet.from_path(houses)
    payload = dict(source.payload(source.task_ids("train")[0]))
    sentence = next(s for s in payload["grammar"].split('"') if s.startswith("Your task is to"))
    payload["grammar"] = payload["grammar"].replace(sentence, sentence + "\\u001b[31m[bold]x")
    evil = tmp_path / "evil.tw-pddl"
    evil.write_text(json.dumps(payload), encoding="utf-8")
    script = tmp_path / "empty.txt"
    script.write_text("", encoding="utf-8")
    outcome = sero("play", "--data", evil, "--split", "custom", "--commands", script)
    # Whether such a game is refused or shown, no escape character gets out.
    assert "\x1b" not in "\n".join(outcome.lines) + outcome.errors


def test_what_is_shown_is_neither_markup_nor_control(houses: Path) -> None:
    hostile = "\x1b[2J\x9b31m[bold red]x[/] :smile: \u202egnirts \x07"
    out = io.StringIO()
    env = gymnasium.make("SeroALFWorld-v0", data=houses, split="train")
    game = Game(env, Console(file=out, highlight=False, markup=False, emoji=False), oracle=False)
    game.info = {
        "goal": hostile, "steps_left": 3, "success": False,
        "admissible_actions": (hostile,), "action_templates": (),
    }  # fmt: skip
    game.show(hostile)
    game.play(iter([f":{hostile}"]), echo=True)
    text = out.getvalue()
    assert text.count("[bold red]x[/] :smile:") == 5, "observation, goal, command, echo, complaint"
    assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-env"], "Known: alfworld"),
        (["CartPole-v1"], "Known: alfworld"),
        (["--task-id", "train/none/none"], "train/none/none"),
        (["--data", "/does/not/exist"], "/does/not/exist"),
        (["--commands", "/does/not/exist"], "No such file"),
        (["--commands", "/bin/sh"], "cannot be read as text"),
        (["--seed", "-1"], "--seed -1"),
    ],
)
def test_what_cannot_be_played_is_said(sero: Sero, words: list[str], message: str) -> None:
    outcome = sero("play", *words)
    assert outcome.code == 2
    assert message in outcome.errors
