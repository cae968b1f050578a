"""SFT pairs for the analyser: only the form is judged, and the split leaks nothing unasked."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from trainer.auxiliary.analyser import Episode, EpisodeStep, analyser_prompt
from trainer.auxiliary.hindsight_sft import sft_nll, skill_pair, split_pairs
from trainer.objectives import Denominators

GOOD = "Öffne closed drawers before shelves."
EPISODE = Episode("find the pen", False, (EpisodeStep("a room", "look", True),) * 3)


def test_pair_is_prompt_and_canonical_json():
    answer = f"Sure!\n```json\n{{'episode_skill': ' {GOOD}', 'episode_summary': 's',}}\n```"
    pair = skill_pair(EPISODE, answer)
    assert list(pair.prompt) == analyser_prompt(EPISODE)
    assert pair.response == f'{{"episode_summary": "s", "episode_skill": "{GOOD}"}}'


def test_step_skills_in_their_mode_only():
    steps = [{"step": i, "skill": GOOD} for i in (2, 0, 3)]
    answer = json.dumps({"episode_skill": GOOD, "step_skills": steps})
    pair = skill_pair(EPISODE, answer, "episode_step", text_limit=4)
    assert list(pair.prompt) == analyser_prompt(EPISODE, "episode_step", text_limit=4)
    # Sorted by step; the trajectory has no step 3.
    assert json.loads(pair.response) == {
        "episode_summary": "",
        "episode_skill": GOOD,
        "step_skills": [{"step": 0, "skill": GOOD}, {"step": 2, "skill": GOOD}],
    }
    assert "step_skills" not in skill_pair(EPISODE, answer).response


@pytest.mark.parametrize("answer", ["", "{}", '{"episode_skill": "too short"}', "no object"])
def test_wrong_form_gives_no_pair(answer):
    assert skill_pair(EPISODE, answer) is None


def test_split_is_nine_to_one_and_keeps_the_order():
    items = list(range(100))
    train, held_out = split_pairs(items, np.random.default_rng(0))
    assert (len(train), len(held_out)) == (90, 10)
    assert train == sorted(train)
    assert held_out == sorted(held_out)
    assert sorted(train + held_out) == items
    assert split_pairs(items, np.random.default_rng(0)) == (train, held_out)
    assert split_pairs(items, np.random.default_rng(1)) != (train, held_out)
    seen = {
        split_pairs("abcde", np.random.default_rng(s), train_share=0.8)[1][0] for s in range(60)
    }
    assert seen == set("abcde")


def test_split_by_key_keeps_a_task_on_one_side():
    keys = [f"task {i % 10}" for i in range(80)]
    train, held_out = split_pairs(list(range(80)), np.random.default_rng(3), keys=keys)
    assert (len(train), len(held_out)) == (72, 8)
    assert len({keys[i] for i in held_out}) == 1
    train, held_out = split_pairs(
        list(range(80)), np.random.default_rng(3), train_share=0.5, keys=keys
    )
    assert {keys[i] for i in train}.isdisjoint({keys[i] for i in held_out})
    assert len(train) == 40


def test_equal_items_are_told_apart_without_keys():
    train, held_out = split_pairs(["a"] * 10, np.random.default_rng(0))
    assert (len(train), len(held_out)) == (9, 1)
    assert split_pairs([], np.random.default_rng(0)) == ([], [])


def test_split_refusals():
    for share in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            split_pairs([1], np.random.default_rng(0), train_share=share)
    with pytest.raises(ValueError, match="one key per item, found 1 for 2"):
        split_pairs([1, 2], np.random.default_rng(0), keys=["a"])


LOGP = tensor([[-1.0, -2.0, -9.0], [-6.0, -9.0, -9.0]], dtype=torch.float64)
MASK = tensor([[1, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("options", "value", "row"),
    [
        ({}, 3.0, [1 / 3, 1 / 3]),
        ({"aggregation": "seq-mean-token-mean"}, 3.75, [1 / 4, 1 / 2]),
        ({"denominators": Denominators(tokens=9, sequences=3)}, 1.0, [1 / 9, 1 / 9]),
    ],
)
def test_nll_by_hand(options, value, row):
    logp = LOGP.clone().requires_grad_()
    loss = sft_nll(logp, MASK, **options)
    loss.backward()
    assert loss.item() == pytest.approx(value)
    assert_close(logp.grad, -MASK * tensor(row).double()[:, None], rtol=1e-6, atol=0)


@pytest.mark.parametrize("absurd", [1e30, math.inf, -math.inf, math.nan])
def test_prompt_tokens_change_nothing(absurd):
    logp = LOGP.masked_fill(MASK == 0, absurd).requires_grad_()
    loss = sft_nll(logp, MASK)
    loss.backward()
    assert loss.item() == sft_nll(LOGP, MASK).item()
    assert torch.equal(logp.grad == 0, MASK == 0)


def test_nll_gradient_and_parts():
    assert torch.autograd.gradcheck(lambda x: sft_nll(x, MASK), LOGP.clone().requires_grad_())
    counts = Denominators.of(MASK)
    parts = [sft_nll(LOGP[i : i + 1], MASK[i : i + 1], denominators=counts) for i in range(2)]
    assert sum(parts).item() == pytest.approx(3.0)
    flipped = sft_nll(LOGP.flip(0), MASK.flip(0))
    assert flipped.item() == pytest.approx(3.0)


def test_nothing_to_train():
    logp = torch.full((2, 3), -math.inf, requires_grad=True)
    loss = sft_nll(logp, 0 * MASK)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logp.grad, torch.zeros(2, 3))
