"""`sero play`: a person's session, from a file of commands."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import gymnasium
import pytest
from rich.console import Console

from agent_envs.alfworld.games import GameSet
from oracles.base import Plan, PlanStatus
from tests.trainer.cli.conftest import Outcome, Sero
from trainer.cli.play import find_env, parse
from trainer.cli.play_session import Session, in_words

_NUMBERED = re.compile(r" +(\d+)\. (.+)")


def _task(houses: Path, number: int = 0) -> tuple[str, tuple[str, ...]]:
    """A training task and its shipped plan."""
    games = GameSet.from_path(houses)
    task_id = games.task_ids("train")[number]
    plan = games.walkthrough(task_id)
    assert plan is not None
    return task_id, tuple(plan)


def _play(
    sero: Sero,
    houses: Path,
    tmp_path: Path,
    *lines: str,
    task: int = 0,
    words: tuple[object, ...] = (),
) -> Outcome:
    script = tmp_path / "commands.txt"
    script.write_text("\n".join(lines), encoding="utf-8")
    task_id, _ = _task(houses, task)
    return sero(
        "play", "--data", houses, "--task-id", task_id, "--commands", script, "--json", *words
    )  # fmt: skip


def _oracle(outcome: Outcome) -> list[str]:
    """What the oracle said, once for every state shown."""
    return [line.removeprefix("oracle: ") for line in outcome.lines if line.startswith("oracle:")]


def test_the_shipped_plan_wins(sero: Sero, houses: Path, tmp_path: Path) -> None:
    for task in range(6):
        _, plan = _task(houses, task)
        outcome = _play(sero, houses, tmp_path, *plan, task=task)
        assert outcome.code == 0
        assert outcome.figures["success"] is True
        assert outcome.figures["stop_reason"] == "success"
        assert outcome.figures["steps"] == len(plan)


def test_the_oracle_leads_to_the_goal(sero: Sero, houses: Path, tmp_path: Path) -> None:
    commands: list[str] = []
    for _ in range(15):
        outcome = _play(sero, houses, tmp_path, *commands, words=("--oracle",))
        if outcome.figures["success"]:
            break
        commands.append(_oracle(outcome)[-1].split("   (")[0])
    assert outcome.figures["success"] is True
    assert _oracle(outcome)[-1] == "already done"


def test_the_oracle_after_a_refused_command_says_the_same(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    first, second = _oracle(_play(sero, houses, tmp_path, "fly to the moon", words=("--oracle",)))
    assert first == second


def test_the_oracles_whole_plan_wins(sero: Sero, houses: Path, tmp_path: Path) -> None:
    outcome = _play(sero, houses, tmp_path, "look", ":oracle", words=("--oracle",))
    steps = [
        line.split(". ", 1) for line in outcome.lines if line[:4].strip().rstrip(".").isdigit()
    ]
    assert [int(number) for number, _ in steps] == [*range(1, len(_task(houses)[1]) + 1)]
    won = _play(sero, houses, tmp_path, *(command for _, command in steps))
    assert won.figures["success"] is True


def test_the_oracle_has_words_where_it_has_no_action(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    _, plan = _task(houses)
    words = ("--oracle", "--max-steps", len(plan))
    outcome = _play(sero, houses, tmp_path, *["look"] * len(plan), ":oracle", words=words)
    said = _oracle(outcome)
    assert said[0].startswith(f"{plan[0]}   (then")
    assert f"over budget: the shortest plan has {len(plan)} commands" in said[1]
    assert said[-2:] == ["over budget: no steps are left"] * 2
    full = Plan(PlanStatus.UNSOLVABLE, (), "the hands hold what nothing can hold")
    assert in_words(full) == "unsolvable: the hands hold what nothing can hold"


def test_nothing_privileged_is_shown_unless_asked_for(
    sero: Sero, houses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: object) -> None:
        raise AssertionError("the privileged view was asked for")

    _, plan = _task(houses)
    lines = [*plan, ":undo", ":oracle", "fly", ":actions", ":help", ":restart", ":next"]
    monkeypatch.setattr("agent_envs.alfworld.env.ALFWorldEnv.privileged", closed)
    outcome = _play(sero, houses, tmp_path, *lines)
    assert outcome.code == 0
    assert _oracle(outcome) == []
    assert any("`sero play --oracle`" in line for line in outcome.lines)


def test_undo_takes_back_a_win(sero: Sero, houses: Path, tmp_path: Path) -> None:
    _, plan = _task(houses)
    undone = _play(sero, houses, tmp_path, *plan, "look", ":undo")
    assert any("The episode is over." in line for line in undone.lines), "`look` is not played"
    assert undone.figures["success"] is False
    assert undone.figures["stop_reason"] is None
    assert undone.figures["steps"] == len(plan) - 1
    again = _play(sero, houses, tmp_path, *plan, ":undo", plan[-1])
    assert again.figures["success"] is True


def test_undo_takes_back_running_out_of_steps(sero: Sero, houses: Path, tmp_path: Path) -> None:
    _, plan = _task(houses)
    words = ("--max-steps", len(plan))
    lost = ["look", *plan[:-1]]
    outcome = _play(sero, houses, tmp_path, *lost, words=words)
    assert outcome.figures["stop_reason"] == "step_limit"
    # One step back is not enough; from the start there are steps for the whole plan.
    short = _play(sero, houses, tmp_path, *lost, ":undo", plan[-1], words=words)
    assert short.figures["success"] is False
    won = _play(sero, houses, tmp_path, *lost, f":undo {len(lost)}", *plan, words=words)
    assert won.figures["success"] is True
    assert won.figures["steps"] == len(plan)


def test_undo_at_the_start_is_said(sero: Sero, houses: Path, tmp_path: Path) -> None:
    start = _play(sero, houses, tmp_path, ":undo", "look", ":undo 9", ":undo", ":undo 0", ":undo x")
    assert start.figures["steps"] == 0
    assert sum("Nothing to undo" in line for line in start.lines) == 2
    assert sum("Use it as :undo [N]" in line for line in start.lines) == 2


def test_restart_forgets_and_next_moves_on(sero: Sero, houses: Path, tmp_path: Path) -> None:
    restarted = _play(sero, houses, tmp_path, "look", ":restart", ":undo")
    assert restarted.figures["task_id"] == _task(houses)[0]
    assert restarted.figures["steps"] == 0
    assert any("Nothing to undo" in line for line in restarted.lines)
    tasks = [line for line in _play(sero, houses, tmp_path, ":next").lines if line[:5] == "task "]
    assert len(set(tasks)) == 2


def test_undo_by_a_number_that_python_does_not_read(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    huge = _play(sero, houses, tmp_path, "look", "look", ":undo " + "9" * 5000, ":undo 007")
    assert huge.figures["steps"] == 0
    assert sum("Nothing to undo" in line for line in huge.lines) == 1


def test_a_file_of_commands_is_read_like_a_pipe(sero: Sero, houses: Path, tmp_path: Path) -> None:
    """One line is one command, whatever control characters are in it; a Windows mark is no text."""
    outcome = _play(sero, houses, tmp_path, "\ufefflook", "look\x0cinventory\u2028help", "look")
    assert outcome.figures["steps"] == 3
    assert sum("refused" in line for line in outcome.lines) == 1


def test_refused_commands_spend_a_step(sero: Sero, houses: Path, tmp_path: Path) -> None:
    outcome = _play(sero, houses, tmp_path, "lok", ":nonsense", ":orcale")
    text = "\n".join(outcome.lines)
    assert "Nothing happens." in text
    assert "refused; the step is spent. Near it: look" in text
    assert "Unknown: :nonsense. :help" in text
    assert "Unknown: :orcale. Did you mean :oracle?" in text
    assert outcome.figures["steps"] == 1


def test_actions_can_be_searched(sero: Sero, houses: Path, tmp_path: Path) -> None:
    lines = _play(sero, houses, tmp_path, ":actions inv", ":actions zebra").lines
    place = lines.index("> :actions inv")
    assert lines[place + 1].strip() == "inventory"
    assert lines[place + 3] == "No action with 'zebra' in it."


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
    console = Console(file=out, highlight=False, markup=False, emoji=False, width=200)
    session = Session(env, console, oracle=None)
    session.info = {
        "goal": hostile, "steps_left": None, "success": False,
        "admissible_actions": (hostile,), "action_templates": (hostile,),
    }  # fmt: skip
    session.show(hostile, hostile)
    session.play([f":{hostile}", f":actions {hostile}z"])
    text = out.getvalue()
    shown = text.count("[bold red]x[/] :smile:")
    # Observation, remark, goal, action and template; what was searched for, and the template again.
    assert shown == 7
    assert all(c.isprintable() or c == "\n" for c in text)


def test_environments_are_found_by_their_short_names() -> None:
    for name in ("alfworld", "ALFWorld", "SeroALFWorld-v0", "agent_envs:SeroALFWorld-v0"):
        assert find_env(name) == "SeroALFWorld-v0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-env"], "Known: alfworld"),
        (["alfwrold"], "Did you mean 'alfworld'?"),
        (["CartPole-v1"], "Known: alfworld"),
        (["--task-id", "train/none/none"], "train/none/none"),
        (["--split", "vaild_seen"], "'valid_seen'"),
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


def test_the_nearest_task_is_suggested(sero: Sero, houses: Path) -> None:
    task_id, _ = _task(houses)
    outcome = sero("play", "--data", houses, "--task-id", task_id[:-2])
    assert outcome.code == 2
    assert f"Did you mean '{task_id}'" in outcome.errors


def test_an_oracle_that_makes_no_plan_leads_to_the_goal(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    words = ("--oracle", "explorer")
    commands = ["fly to the moon"]  # refused: the explorer is told of that, too
    for _ in range(49):
        outcome = _play(sero, houses, tmp_path, *commands, words=words)
        if outcome.figures["success"]:
            break
        commands.append(_oracle(outcome)[-1].split("   (")[0])
    assert outcome.figures["success"] is True
    assert _oracle(outcome)[-1] == "already done"
    undone = _play(sero, houses, tmp_path, *commands, ":undo", ":oracle", words=words)
    assert _oracle(undone)[-2:] == [commands[-1]] * 2
    assert any("lays out no plan" in line for line in undone.lines)


def test_the_oracle_may_be_named_anywhere_on_the_line() -> None:
    for words, env, oracle in [
        ([], "alfworld", None),
        (["--oracle"], "alfworld", "planner"),
        (["webshop", "--oracle", "rule", "--seed", "1"], "webshop", "rule"),
        (["--oracle", "webshop"], "webshop", "planner"),
        (["--oracle", "rule", "webshop"], "webshop", "rule"),
        (["--oracle=mine.way:Oracle", "--json"], "alfworld", "mine.way:Oracle"),
    ]:
        args = parse(words)
        assert (args.env, args.oracle) == (env, oracle), words


def test_an_oracle_that_is_not_there_is_said(sero: Sero, houses: Path, tmp_path: Path) -> None:
    outcome = sero("play", "--data", houses, "--oracle", "rule")
    assert outcome.code == 2
    assert "Unknown oracle 'rule' for SeroALFWorld-v0" in outcome.errors


def test_an_environment_of_ones_own_is_played(sero: Sero, tmp_path: Path) -> None:
    script = tmp_path / "commands.txt"
    script.write_text("fill the large jug\n:undo\nfill the small jug\n", encoding="utf-8")
    jugs = "examples.third_party_env"
    words = ("--oracle", f"{jugs}:Oracle", "--commands", script, "--json")
    outcome = sero("play", f"{jugs}:JugsEnv", *words)
    assert outcome.code == 0, outcome.errors
    assert outcome.figures["steps"] == 1
    assert any(line.startswith("oracle: ") for line in outcome.lines)
