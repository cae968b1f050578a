"""Transcripts are replayed step for step, and what differs is found and told apart."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent_envs.errors import CorruptData, DataError, MissingData
from agent_envs.webshop.original.verify import verify_transcripts
from agent_envs.webshop.shop import Shop, goal_to_dict
from tests.agent_envs.webshop.shops import DESKS, buy, make, shop

Lines = list[dict[str, Any]]
MODES = ("text", "text_rich")


def record(mode: str = "text", human: bool = False) -> Lines:
    """Episodes of our own engine in the form of the original's transcripts."""
    kind = "human" if human else "synthetic"
    prices = {p.asin: shop().catalogue.price(n) for n, p in enumerate(shop().catalogue)}
    meta = {"observation_mode": mode, "human_goals": int(human), "prices": prices}
    lines: Lines = [{"meta": meta}]
    env = make(observation_mode=mode, goal_source=kind, split=None)
    goals = shop().goals("human" if human else "synthetic")
    wanted = [n for n, goal in enumerate(goals) if goal.asin in DESKS]
    for number in Random(3).sample(wanted, 4):
        goal = goals[number]
        observation, info = env.reset(options={"task_id": f"{kind}-{number}"})
        steps = [{"action": None, **_shown(observation, info)}]
        for action in (*buy(env)[:-1], "click[no such thing]", "click[buy now]"):
            observation, reward, done, _, info = env.step(action)
            told = {"action": action, **_shown(observation, info), "reward": reward, "done": done}
            if done:
                session = env.unwrapped.privileged().session
                told["reward_info"] = dict(info["reward_info"])
                told["bought"] = {
                    "asin": shop().catalogue.asin(session.product),
                    "options": dict(session.options),
                    "price": shop().catalogue.price(session.product),
                }
            steps.append(told)
        lines.append({"goal": goal_to_dict(goal), "price": 0.0, "steps": steps})
    return lines


def _shown(observation: str, info: dict[str, Any]) -> dict[str, Any]:
    clickables = [action[len("click[") : -1] for action in info["admissible_actions"]]
    has_bar = bool(info["action_templates"])
    return {
        "observation": observation,
        "available": [has_bar, ["search"] if has_bar else clickables],
    }


def write(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("compat", [False, True])
def test_equal_transcripts_pass(tmp_path: Path, mode: str, compat: bool) -> None:
    files = [
        write(tmp_path / f"{human}.jsonl", record(mode, human=human)) for human in (False, True)
    ]
    result = verify_transcripts(files, shop(), compat=compat)
    assert result.ok
    assert (result.episodes, result.mismatches, result.near_ties) == (8, 0, 0)
    assert result.steps == sum(len(line["steps"]) - 1 for file in files for line in _read(file)[1:])


def _read(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _change(step: dict[str, Any], what: str) -> None:
    if what == "observation":
        step["observation"] += " "
    elif what == "available":
        step["available"][1].append("dance")
    elif what == "search bar":
        step["available"][0] = not step["available"][0]
    elif what == "reward":
        step["reward"] += 1e-12
    elif what == "done":
        step["done"] = not step["done"]
    elif what == "reward_info":
        step["reward_info"]["title_score"] = 0.5
    elif what == "no option part":
        del step["reward_info"]["r_option"]
    else:
        step["bought"]["options"] = {}


WHAT = "observation,available,search bar,reward,done,reward_info,no option part,bought"


@pytest.mark.parametrize("what", WHAT.split(","))
def test_one_difference_is_one_mismatch(tmp_path: Path, what: str) -> None:
    lines = record()
    _change(lines[2]["steps"][-1], what)
    result = verify_transcripts([write(tmp_path / "t.jsonl", lines)], shop())
    assert (result.mismatches, result.ok) == (1, False)
    named = {"search bar": "available", "no option part": "reward_info"}.get(what, what)
    assert named in {detail.what for detail in result.details}
    assert result.details[0].episode == "t.jsonl, episode 2"


def test_prices_are_those_of_the_transcript(tmp_path: Path) -> None:
    lines = record()
    for asin in DESKS:
        lines[0]["meta"]["prices"][asin] = 900.0
    result = verify_transcripts([write(tmp_path / "t.jsonl", lines)], shop())
    assert result.mismatches == 4  # every purchase is too dear now
    assert {"bought", "reward"} <= {detail.what for detail in result.details}


def test_an_order_that_scores_do_not_decide_is_counted_apart(tmp_path: Path) -> None:
    """Desks without options have the same words, and so the same score for another's title."""
    lines = record()
    step = lines[1]["steps"][1]
    wanted = lines[1]["goal"]["asin"]
    plain = [asin for number, asin in enumerate(DESKS) if number % 2 and asin != wanted]
    links = step["available"][1]
    first, second = [place for place, link in enumerate(links) if link.upper() in plain][:2]
    rows = [_row(links[place]) for place in (first, second)]
    links[first], links[second] = links[second], links[first]
    text = step["observation"].replace(rows[0], "#").replace(rows[1], rows[0])
    step["observation"] = text.replace("#", rows[1])
    result = verify_transcripts([write(tmp_path / "t.jsonl", lines)], shop())
    assert (result.mismatches, result.near_ties, result.ok) == (0, 1, True)
    # Not so where the text differs in more than that, or scores do tell them apart.
    step["observation"] += "!"
    assert verify_transcripts([write(tmp_path / "t.jsonl", lines)], shop()).mismatches == 1
    step["observation"] = step["observation"][:-1]
    best = links.index(wanted.lower())
    last = len(links) - 1
    links[best], links[last] = links[last], links[best]
    assert verify_transcripts([write(tmp_path / "t.jsonl", lines)], shop()).mismatches == 1


def _row(link: str) -> str:
    number = shop().catalogue.number_of(link.upper())
    assert number is not None
    product = shop().catalogue[number]
    return f"{product.asin} [SEP] {product.title} [SEP] {product.price_tag}"


def test_steps_after_the_end_are_for_compat(tmp_path: Path) -> None:
    lines = record()
    last = copy.deepcopy(lines[1]["steps"][-1])
    no_op = {**last, "action": "click[buy now]", "reward": 0, "done": False}
    lines[1]["steps"].append(no_op)
    result = verify_transcripts([write(tmp_path / "t.jsonl", lines)], shop())
    assert [detail.what for detail in result.details] == ["replay"]


def test_what_is_no_transcript(tmp_path: Path) -> None:
    with pytest.raises(MissingData):
        verify_transcripts([tmp_path / "none"], shop())
    for lines in (
        [{}],
        [{"meta": {}}],
        [record()[0], {"goal": {"instruction_text": "x"}}],
        [record()[0], {"goal": record()[1]["goal"], "steps": [{"action": None}]}],
        [[]],
    ):
        with pytest.raises(DataError):
            verify_transcripts([write(tmp_path / "t", lines)], shop())  # type: ignore[arg-type]
    junk = tmp_path / "t.jsonl.gz"
    junk.write_bytes(gzip.compress(b"not json\n"))
    with pytest.raises(DataError):
        verify_transcripts([junk], shop())
    assert not verify_transcripts([write(tmp_path / "t", [record()[0]])], shop()).ok


@pytest.mark.parametrize("where", ["prices", "price_upper"])
def test_numbers_that_are_too_large(tmp_path: Path, where: str) -> None:
    """They are no mismatch: the line that has one is named."""
    lines = record()
    if where == "prices":
        lines[0]["meta"]["prices"][DESKS[0]] = 10**400
    else:
        lines[2]["goal"]["price_upper"] = 10**400
    path = write(tmp_path / "t.jsonl", lines)
    number = 1 if where == "prices" else 3
    with pytest.raises(CorruptData, match=f"t.jsonl: line {number} is no transcript"):
        verify_transcripts([path], shop())


@pytest.mark.parametrize("compat", [False, True])
def test_the_recorded_episodes_of_the_original(
    real_data: Path, real_shop: Shop, compat: bool
) -> None:
    paths = sorted((real_data / "transcripts").glob("webshop_*.jsonl.gz"))
    result = verify_transcripts(paths, real_shop, compat=compat)
    assert result.details == ()
    assert (result.episodes, result.steps, result.mismatches) == (320, 3832, 0)
    assert result.near_ties == 0
