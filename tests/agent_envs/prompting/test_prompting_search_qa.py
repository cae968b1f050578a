"""Promises of Search-QA replies:

1. One action a reply, a search before an answer; what breaks the form is still executed.
2. Scoring compares normalised texts exactly, with the last answer of the reply.
3. Both agree with the numeric vectors.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_envs.prompting.search_qa import (
    dataset_means,
    exact_match,
    final_answer,
    normalise_answer,
    qa_project,
    qa_reward,
)

VECTORS = Path(__file__).parents[2] / "vectors"


def _cases(fn: str) -> list[dict]:
    cases = json.loads((VECTORS / "aux_objectives.json").read_text())["cases"]
    return [case for case in cases if case["fn"] == fn]


@pytest.mark.parametrize("case", _cases("qa_project"), ids=lambda c: c["id"])
def test_projection_vectors(case):
    action, valid = qa_project(case["inputs"]["text"])
    assert [action, int(valid)] == case["expected"]


@pytest.mark.parametrize("case", _cases("qa_reward"), ids=lambda c: c["id"])
def test_reward_vectors(case):
    inputs = case["inputs"]
    assert qa_reward(inputs["text"], inputs["golds"]) == case["expected"]


@pytest.mark.parametrize(
    ("reply", "action", "valid"),
    [
        ("<think>t</think><answer> Ada \n Byron </answer>", "<answer>Ada \n Byron</answer>", True),
        ("<SEARCH>Who?</Search>", "<search>Who?</search>", True),
        ("<search>a\nb</search> and more", "<search>a\nb</search>", True),
        ("<search></search>", "<search></search>", True),
        ("", "", False),
        ("no tags", "", False),
        ("<answer>a", "", False),
        ("</search><search>a</search>", "", False),
        ("</search><answer>a</answer>", "", False),
        ("</answer><answer>a</answer>", "", False),
        ("<answer>a</answer><answer>b</answer>", "<answer>a</answer>", False),
        ("<answer>a</answer><search>b", "<answer>a</answer>", False),
        ("<search>a<search>b</search>", "<search>a<search>b</search>", False),
        ("<answer>x</answer>y</search><search>z</search>", "<answer>x</answer>", False),
        ("<ſearch>a</ſearch>", "", False),
    ],
)
def test_projection(reply, action, valid):
    assert qa_project(reply) == (action, valid)


def test_final_answer_is_the_last_one():
    assert final_answer("<answer>a</answer> <ANSWER>\n b </ANSWER> c") == "b"
    assert final_answer("<answer></answer>") == ""
    assert final_answer("<answer>a") is None


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat", "cat"),
        ("A man, an ox & the end!", "man ox end"),
        ("Another theory", "another theory"),
        ("U.S.A.", "usa"),
        ("co-op", "coop"),
        ("a", ""),
        ("the-the", "thethe"),
        ("  tab\tnew\nline ", "tab new line"),
        ("Café", "café"),
    ],
)
def test_normal_form(text, normal):
    assert normalise_answer(text) == normal


def test_exact_match_against_any_gold():
    assert exact_match("the Nile", ["Amazon", "Nile."])
    assert not exact_match("Nile river", ["Nile"])
    assert not exact_match("Nile", [])
    # a single gold is a text, not a list of letters
    assert not exact_match("N", "Nile")
    assert exact_match("nile", "Nile")


def test_reward():
    assert qa_reward("<answer>b</answer><answer>Nile</answer>", ["the nile"]) == 1.0
    assert qa_reward("<answer>Nile</answer><answer>b</answer>", ["nile"]) == 0.0
    # no answer never equals a gold that normalises to nothing
    assert qa_reward("Nile", ["the", "nile"]) == 0.0
    assert qa_reward("<answer></answer>", ["the"]) == 1.0


def test_means_weigh_data_sets_alike():
    means, overall = dataset_means({"nq": [1.0, 0.0, 0.0, 0.0], "bamboogle": [1.0]})
    assert means == {"nq": 0.25, "bamboogle": 1.0}
    assert overall == 0.625
    with pytest.raises(ValueError, match=r"without any: \['b'\]"):
        dataset_means({"a": [1.0], "b": []})
    with pytest.raises(ValueError, match="at least one question"):
        dataset_means({})
