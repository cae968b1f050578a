"""Promises of conversations in rollouts, training segments and on disk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from tests.fakes import TableModel
from tests.trainer import small
from tests.trainer.chat import templates, world
from trainer.generation.hf import HFSampler
from trainer.generation.sessions import common_prefix
from trainer.learning.base_advantages import base_advantages
from trainer.learning.update import BaseStep, LossStats, base_backward
from trainer.methods.privileged import prompt_view
from trainer.methods.protocol import PassLimits
from trainer.models.packing import chains
from trainer.models.policy import TokenLogprobs, collate, token_logprobs
from trainer.objectives.aggregate import AGGREGATIONS
from trainer.rollouts.data import CONTEXT_OVERFLOW, read_turns, segments_from_turns, write_turns
from trainer.rollouts.rollout import Student
from trainer.rollouts.tokens import decode

COMMANDS = ["look", "inventory", "go to nowhere 1", "look"]
ALL = [templates.CHATML, templates.HEADERS, templates.DROPS_THOUGHTS]
THOUGHT = "the mug may be there"


def _played(template: str, *, thought: str = THOUGHT, limit: int = 64):
    learner = world.student(template)
    talker = world.Talker(world.scripted(COMMANDS, thought), template)
    return world.one_episode(talker, learner, max_new_tokens=limit), learner, talker


@pytest.mark.parametrize("template", ALL)
def test_o29_the_mask_is_one_exactly_on_sampled_tokens(template):
    trajectory, learner, talker = _played(template)
    segments = segments_from_turns(trajectory.turns)
    for segment, turn, request in zip(segments, trajectory.turns, talker.requests, strict=True):
        trained = [i for i, keep in zip(segment.ids, segment.loss_mask, strict=True) if keep]
        assert decode(learner.tokenizer, trained) == f"{turn.reply}<|im_end|>"
        assert tuple(trained) == turn.response_ids
        assert turn.prompt_ids == tuple(request.prompt_ids)
        assert segment.ids == (*turn.prompt_ids, *turn.response_ids)


def test_o29_labels_of_masked_positions_change_nothing_and_have_no_gradient():
    trajectory, learner, _ = _played(templates.CHATML)
    segments = segments_from_turns(trajectory.turns)[:3]
    batch = collate(segments, pad_id=learner.pad_id)
    size = len(learner.tokenizer)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((*batch.ids_R_L.shape, size), generator=generator)

    def loss_of(ids):
        policy = TableModel(logits.clone())
        batch.ids_R_L.copy_(ids)
        found = token_logprobs(policy, batch).logprobs
        loss = -(found * batch.mask_B_T).sum()
        loss.backward()
        return float(loss.detach()), policy.table.grad

    ids = batch.ids_R_L.clone()
    loss, gradient = loss_of(ids)
    trained = torch.zeros_like(ids, dtype=torch.bool)
    for row, segment in enumerate(segments):
        trained[batch.row_B[row], : len(segment.ids)] |= torch.tensor(segment.loss_mask)
    # The logits at a place predict the token behind it.
    predicts = trained.roll(-1, dims=1)
    assert gradient[~predicts].abs().max() == 0.0
    assert bool((gradient[predicts].abs().sum(-1) > 0).all())
    other, _ = loss_of(torch.where(trained, ids, (ids + 1) % size))
    assert other == loss
    again = collate([_relabelled(s, size) for s in segments], pad_id=learner.pad_id)
    assert torch.equal(again.labels_B_T, batch.labels_B_T)
    assert torch.equal(again.position_B_T, batch.position_B_T)


@pytest.mark.parametrize("template", ALL[:2])
def test_o30_an_append_only_template_gives_one_chain_a_trajectory(template):
    trajectory, _, _ = _played(template)
    segments = segments_from_turns(trajectory.turns)
    assert len(segments) == len(trajectory.turns) == 6
    for before, after in pairwise(segments):
        assert after.ids[: len(before.ids)] == before.ids
    assert chains([segment.ids for segment in segments]) == [list(range(6))]


def test_o30_a_template_that_drops_thoughts_gives_a_segment_for_every_prompt():
    trajectory, learner, talker = _played(templates.DROPS_THOUGHTS)
    segments = segments_from_turns(trajectory.turns)
    assert len(chains([segment.ids for segment in segments])) == len(segments) == 6
    for turn, request in zip(trajectory.turns, talker.requests, strict=True):
        assert turn.prompt_ids == tuple(request.prompt_ids)
        shown = decode(learner.tokenizer, turn.prompt_ids)
        assert THOUGHT not in shown, "earlier thoughts are dropped"
        assert THOUGHT in turn.reply, "the own one is trained"


@pytest.mark.parametrize("template", ALL)
def test_o30_every_sampled_id_is_trained_once(template):
    trajectory, _, _ = _played(template)
    segments = segments_from_turns(trajectory.turns)
    trained = Counter()
    for number, segment in enumerate(segments):
        owners = {t for t, keep in zip(segment.token_turn, segment.loss_mask, strict=True) if keep}
        assert owners == {number}
        trained[number] += segment.trained
    assert trained == Counter({n: len(t.response_ids) for n, t in enumerate(trajectory.turns)})
    total = sum(trained.values())
    counted = token_logprobs(world.model(), collate(segments, pad_id=0))
    assert int((counted.logprobs != 0).sum()) == total


@pytest.mark.parametrize("tokens", [1, 10**9])
@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("template", [templates.CHATML, templates.DROPS_THOUGHTS])
def test_o30_the_weights_of_segments_sum_as_documented(template, how, tokens):
    """Whether one pass runs a whole conversation or every turn has its own."""
    trajectory, _, _ = _played(template)
    segments = segments_from_turns(trajectory.turns)
    config = world.config(objective__aggregation=how).objective
    seen = []

    def sampled_again(model, batch, *, entropy=False):
        leaf = batch.old_B_T.clone().requires_grad_()
        seen.append((batch, leaf))
        return TokenLogprobs(leaf, None)

    ones = [torch.ones(segment.trained, dtype=torch.float64) for segment in segments]
    base = BaseStep(segments, range(len(segments)), ones, length=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.learning.update.token_logprobs", sampled_again)
        base_backward(world.model(), base, config, PassLimits(tokens, 0), LossStats())
    # Where ratio and advantage are 1, a token's gradient is its weight.
    weights = {
        int(batch.turn_B_T[row, 0]): -leaf.grad[row][batch.mask_B_T[row]]
        for batch, leaf in seen
        for row in range(len(leaf))
    }
    counts = [len(turn.response_ids) for turn in trajectory.turns]
    assert len(set(counts)) > 1
    for number, count in enumerate(counts):
        each = {
            "token-mean": 1 / sum(counts),
            "seq-mean-token-mean": 1 / (6 * count),
            "seq-mean-token-sum": 1 / 6,
            "seq-mean-token-sum-norm": 1 / 64,
            "dr_grpo": 1 / (6 * 64),
        }[how]
        torch.testing.assert_close(weights[number], torch.full((count,), each))


@pytest.mark.parametrize("template", ALL)
def test_o32_what_the_template_adds_is_never_trained(template):
    # Five tokens: every reply is cut by its length, so no end-of-turn token is sampled.
    trajectory, learner, _ = _played(template, limit=5)
    end = learner.end_id
    segments = segments_from_turns(trajectory.turns)
    assert all(turn.finish_reason == "length" for turn in trajectory.turns)
    for turn, segment in zip(trajectory.turns, segments, strict=True):
        trained = [i for i, keep in zip(segment.ids, segment.loss_mask, strict=True) if keep]
        assert end not in trained
        assert segment.trained == len(turn.response_ids) == 5
    if template != templates.DROPS_THOUGHTS:
        for before, after in pairwise(trajectory.turns):
            ids = (*before.prompt_ids, *before.response_ids, end)
            assert after.prompt_ids[: len(ids)] == ids
    last = trajectory.turns[-1]
    if template == templates.CHATML:
        assert decode(learner.tokenizer, last.prompt_ids).endswith("<|im_start|>assistant\n")
    # One end of turn for each message of either side, and the system's.
    messages = 2 * last.t + 1 + (template == templates.CHATML)
    assert last.prompt_ids.count(end) == messages


def test_o32_the_length_is_that_of_the_prompt_that_would_be_sent():
    whole, learner, _ = _played(templates.CHATML)
    lengths = [len(turn.prompt_ids) for turn in whole.turns]
    assert lengths == sorted(lengths)
    for limit, turns in ((lengths[3], 4), (lengths[3] - 1, 3), (lengths[0] - 1, 0)):
        short = Student(learner.template, learner.tokenizer, learner.stop_ids, limit)
        talker = world.Talker(world.scripted(COMMANDS, THOUGHT))
        cut = world.one_episode(talker, short)
        assert len(cut.turns) == turns
        assert cut.stop_reason == CONTEXT_OVERFLOW
        assert not cut.success
        assert all(len(turn.prompt_ids) <= limit for turn in cut.turns)


def test_the_first_message_has_the_rules_and_later_ones_only_what_is_new():
    learner = world.student(templates.CHATML, prompt__template="field")
    talker = world.Talker(world.scripted(COMMANDS, THOUGHT))
    trajectory = world.one_episode(talker, learner)
    text = decode(learner.tokenizer, trajectory.turns[-1].prompt_ids)
    assert text.count("Decide on the next command.") == 1
    assert text.count("Commands that are possible now:") == len(trajectory.turns)
    for turn in trajectory.turns:
        assert text.count(turn.observation.strip()) >= 1
    for turn in trajectory.turns[:-1]:
        assert turn.reply in text
    assert trajectory.turns[-1].history == tuple(trajectory.history.items[:-1])


def test_requests_of_an_episode_share_a_session():
    _, _, talker = _played(templates.CHATML)
    names = {request.session for request in talker.requests}
    assert len(names) == 1
    assert None not in names


def test_kept_keys_and_values_change_no_reply():
    c, learner, policy = world.config(rollout__rollouts=2), world.student(), world.model()
    found = []
    for tokens in (100_000, 0):
        sampler = HFSampler(policy, learner.stop_ids, pad_id=learner.pad_id, session_tokens=tokens)
        turns = world.turns_of(world.rollouts(c, learner, sampler))
        found.append([(t.tid, t.t, t.prompt_ids, t.response_ids) for t in turns])
        assert (len(sampler.store) > 0) == (tokens > 0)
    assert found[0] == found[1]


def test_turns_on_disk_give_the_same_objective(tmp_path):
    c, learner = world.config(), world.student()
    sampler = world.Talker(lambda r: f"<think></think><action>{_random(r)}</action>")
    turns = world.turns_of(world.rollouts(c, learner, sampler))
    write_turns(tmp_path / "turns.parquet", turns)
    again = read_turns(tmp_path / "turns.parquet")
    assert segments_from_turns(again) == segments_from_turns(turns)
    left, right = (
        base_advantages(rows, segments_from_turns(rows), c.objective, c.rollout)
        for rows in (turns, again)
    )
    assert all(torch.equal(a, b) for a, b in zip(left.tokens, right.tokens, strict=True))


def _relabelled(segment, size):
    pairs = zip(segment.ids, segment.loss_mask, strict=True)
    return replace(segment, ids=tuple(i if keep else (i + 1) % size for i, keep in pairs))


def _random(request) -> str:
    return ["look", "inventory", "go to nowhere 1"][int(request.rng.integers(3))]


def test_window_context_looks_at_no_conversation():
    learner = small.student()
    assert learner.context == "window"
    sampler = small.CommandSampler(lambda request, prompt: "look")
    (first, *_) = small.rollouts(small.small_config(), sampler)
    said = learner.conversation(first.turns)
    assert said.messages == ()


@pytest.mark.parametrize("length", [2, 4, 5])
def test_instruction_first_shares_more_ids_with_the_turn_before(length):
    shared = {}
    for layout in ("standard", "instruction_first"):
        c = {"prompt__context": "window", "prompt__template": "field", "prompt__layout": layout}
        learner = world.student(**c, prompt__history_length=length)
        trajectory = world.one_episode(world.Talker(world.scripted(COMMANDS, THOUGHT)), learner)
        prompts = [turn.prompt_ids for turn in trajectory.turns]
        assert len(prompts) == 6
        shared[layout] = [common_prefix(a, b) for a, b in pairwise(prompts)]
    constant = min(shared["instruction_first"])
    pairs = list(zip(*shared.values(), strict=True))
    assert all(first >= 2 * standard for standard, first in pairs), pairs
    # The longest prefix is one that grows with the history.
    grown = shared["instruction_first"][1:length]
    assert all(b > a for a, b in pairwise(grown))
    assert max(grown) > constant


def test_a_copy_with_another_limit_still_speaks():
    learner = world.student()
    copy = replace(learner, max_prompt_tokens=77)
    assert (copy.context, copy.max_prompt_tokens) == ("chat", 77)
    assert copy.end_id == learner.end_id == copy.stop_ids[0]
    plain = replace(copy, template=small.student().template)
    assert (plain.context, plain.format) == ("window", None)


def test_a_turn_needs_the_turns_before_it():
    trajectory, learner, _ = _played(templates.CHATML)
    said = learner.conversation(trajectory.turns[:2])
    with pytest.raises(ValueError, match=r"turn 0 .* needs the 0 turns before it, found 2"):
        learner.prompt(prompt_view(trajectory.turns[0]), said)
    third = trajectory.turns[2]
    assert learner.prompt(prompt_view(third), said) == third.prompt_ids
