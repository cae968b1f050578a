"""`sero play webshop`: a person's session in a generated shop, from a file of commands."""

from __future__ import annotations

import io
from pathlib import Path

import gymnasium
import pytest
from rich.console import Console

from agent_envs.webshop.catalogue import GoalSet, load_shop
from tests.trainer.cli.conftest import Outcome, Sero
from trainer.cli.play import find_env
from trainer.cli.play_session import Session

SHOP = "generated:small?n=64"


@pytest.fixture(scope="module")
def task_id() -> str:
    """A goal that is worth 1 and takes more than a search, a product and the purchase."""
    goals = GoalSet(load_shop(SHOP))
    return next(task for task in goals.task_ids("train") if len(goals.goal(task).options) == 2)


def _play(
    sero: Sero, task_id: str, tmp_path: Path, *lines: str, words: tuple[object, ...] = ()
) -> Outcome:
    script = tmp_path / "commands.txt"
    script.write_text("\n".join(lines), encoding="utf-8")
    return sero(
        "play", "webshop", "--data", SHOP, "--task-id", task_id, "--commands", script, "--json",
        *words,
    )  # fmt: skip


def _oracle(outcome: Outcome) -> list[str]:
    return [line.removeprefix("oracle: ") for line in outcome.lines if line.startswith("oracle:")]


def test_the_oracle_leads_to_the_purchase(sero: Sero, task_id: str, tmp_path: Path) -> None:
    first = _play(sero, task_id, tmp_path, ":oracle", words=("--oracle",))
    plan = [line.split(". ", 1)[1] for line in first.lines if line.strip()[:2] in _NUMBERS]
    assert plan[0].startswith("search[")
    assert plan[-1] == "click[buy now]"
    assert _oracle(first)[0] == f"{plan[0]}   (then {len(plan) - 1} more)"
    won = _play(sero, task_id, tmp_path, *plan, words=("--oracle",))
    assert [said.split("   (")[0] for said in _oracle(won)] == [*plan, "already done"]
    figures = won.figures
    assert (figures["env"], figures["task_id"]) == ("SeroWebShop-v0", task_id)
    assert (figures["success"], figures["score"], figures["stop_reason"]) == (True, 1.0, "success")
    assert any(line.startswith(f"You won after {len(plan)} steps.") for line in won.lines)


_NUMBERS = {f"{number}." for number in range(1, 10)}


def test_the_rule_goes_its_way_step_by_step(sero: Sero, task_id: str, tmp_path: Path) -> None:
    commands: list[str] = []
    for _ in range(5):
        outcome = _play(sero, task_id, tmp_path, *commands, words=("--oracle", "rule"))
        if outcome.figures["stop_reason"] is not None:
            break
        said = [line for line in outcome.lines if line.startswith("oracle: ")]
        commands.append(said[-1].removeprefix("oracle: ").split("   (")[0])
    assert outcome.figures["stop_reason"] == "purchase" or outcome.figures["success"]
    assert len(commands) == 3
    assert commands[0].startswith("search[")
    assert commands[2] == "click[buy now]"


def test_a_purchase_is_told_apart_from_running_out_of_steps(
    sero: Sero, task_id: str, tmp_path: Path
) -> None:
    lines = ["search[zzz]", "search[shirt chair bag]", ":actions click[g", "click[buy now]"]
    seen = _play(sero, task_id, tmp_path, *lines)
    assert any("refused; the step is spent" in line for line in seen.lines)
    assert any("Total results: 0" in line for line in seen.lines)
    out = _play(sero, task_id, tmp_path, "search[a]", "search[b]", words=("--max-steps", 2))
    assert any(line.startswith("Out of steps after 2 steps.") for line in out.lines)
    assert out.figures["stop_reason"] == "step_limit"


def test_undo_takes_back_a_purchase_and_the_oracle_goes_on(
    sero: Sero, task_id: str, tmp_path: Path
) -> None:
    goal = GoalSet(load_shop(SHOP)).goal(task_id)
    shop = load_shop(SHOP)
    other = next(
        product
        for product in (shop.catalogue[number] for number in range(len(shop.catalogue)))
        if product.category != goal.category
    )
    asin = other.asin.lower()
    lines = [f"search[{other.title}]", f"click[{asin}]", "click[buy now]", "look", ":undo"]
    outcome = _play(sero, task_id, tmp_path, *lines, words=("--oracle",))
    text = "\n".join(outcome.lines)
    assert "Ended by purchase, score 0." in text
    assert "The episode is over." in text
    said = _oracle(outcome)
    assert said[3] == "over budget: the episode is over"
    assert said[4] == said[2], "what was true before the purchase is true again"
    assert said[4].startswith(("click[back to search]   (then", "click[< prev]   (then"))
    assert outcome.figures["steps"] == 2
    assert outcome.figures["stop_reason"] is None
    bought = _play(sero, task_id, tmp_path, *lines[:3])
    assert bought.figures["stop_reason"] == "purchase"
    assert 0 < bought.figures["score"] < 1
    assert bought.figures["success"] is False


def test_pages_and_goals_can_be_chosen(sero: Sero, tmp_path: Path) -> None:
    script = tmp_path / "empty.txt"
    script.write_text("", encoding="utf-8")
    words = ("play", "webshop", "--data", SHOP, "--commands", script, "--json")
    rich = sero(*words, "--goal-source", "human", "--observation-mode", "text_rich")
    assert rich.figures["task_id"].startswith("human-")
    assert any("[button] Search [button_]" in line for line in rich.lines)
    held_out = sero(*words, "--split", "test")
    goals = GoalSet(load_shop(SHOP))
    assert goals.meta(held_out.figures["task_id"]).split == "test"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("webshop", "--data", SHOP, "--split", "valid_seen"), "'valid_seen'"),
        (("webshop", "--data", SHOP, "--task-id", "synthetic-999999"), "synthetic-999999"),
        (("webshop", "--data", SHOP, "--goal-source", "robot"), "robot"),
        (("webshop", "--data", "/does/not/exist"), "/does/not/exist"),
        (("alfworld", "--observation-mode", "text"), "--observation-mode: SeroALFWorld-v0 has no"),
        (("webshp",), "Did you mean 'webshop'?"),
    ],
)
def test_what_cannot_be_played_is_said(sero: Sero, words: tuple[str, ...], message: str) -> None:
    outcome = sero("play", *words)
    assert outcome.code == 2
    assert message in outcome.errors


def test_webshop_is_found_by_its_short_name() -> None:
    assert find_env("webshop") == find_env("SeroWebShop-v0") == "SeroWebShop-v0"


def test_a_search_is_completed_up_to_its_words(task_id: str) -> None:
    env = gymnasium.make("SeroWebShop-v0", data=SHOP, split=None)
    session = Session(env, Console(file=io.StringIO(), markup=False, emoji=False), oracle=None)
    session.begin(task_id=task_id)
    assert session.candidates()[0] == "search["
    session.act("search[chair]")
    assert "click[next >]" in session.candidates()
    assert "search[" not in session.candidates()


def test_nothing_privileged_is_shown_unless_asked_for(
    sero: Sero, task_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: object) -> None:
        raise AssertionError("the privileged view was asked for")

    monkeypatch.setattr("agent_envs.webshop.env.WebShopEnv.privileged", closed)
    outcome = _play(sero, task_id, tmp_path, "search[chair]", ":oracle", ":undo", ":next")
    assert outcome.code == 0
    assert _oracle(outcome) == []
