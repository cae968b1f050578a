"""The base loss of each objective in an optimiser step, against the formula written out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer import small
from tests.trainer.hand_turns import hand
from tests.trainer.short_runs import learn, mixed
from trainer.config import Config
from trainer.learning.learner import Learner
from trainer.learning.update import (
    BaseStep,
    LossStats,
    base_backward,
    contributing,
    score_segments,
    step_counts,
)
from trainer.methods.protocol import PassLimits, TokenTerm
from trainer.models.packed_attention import use_packing
from trainer.planning.accounting import Work
from trainer.rollouts.data import Segment, make_segment, segments_from_turns

LIMITS = PassLimits(10**9, 0)
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum",
                "seq-mean-token-sum-norm", "dr_grpo")  # fmt: skip


def rows(model: Any, offsets: Sequence[float]) -> list[Segment]:
    """Replies of 2 to 4 tokens whose behaviour log-probs lie `offset` below the present ones."""
    plain = [
        make_segment((5, 6, 7 + i), tuple(range(20 + i, 22 + i + i % 3)))
        for i in range(len(offsets))
    ]
    found = score_segments(model, plain, LIMITS)
    return [
        make_segment(s.ids[:3], s.ids[3:], logprobs=(new - offset).tolist())
        for s, new, offset in zip(plain, found, offsets, strict=True)
    ]


def stepped(
    config: Config,
    model: Any,
    segments: Sequence[Segment],
    advantages: Sequence[float],
    **more: Any,
) -> tuple[Tensor, dict[str, float | None]]:
    """The gradient of one step, and what is logged of it."""
    tokens = [
        torch.full((s.trained,), a, dtype=torch.float64)
        for s, a in zip(segments, advantages, strict=True)
    ]
    base = BaseStep(segments, range(len(segments)), tokens, length=24, **more)
    stats = LossStats()
    model.zero_grad()
    base_backward(model, base, config.objective, LIMITS, stats)
    return gradient(model), stats.metrics()


def gradient(model: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def logprobs(model: Any, segment: Segment) -> Tensor:
    """Of the reply's tokens, from the model's own full logits."""
    ids = torch.tensor([segment.ids])
    scores = torch.log_softmax(model(input_ids=ids).logits[0], -1)
    return torch.stack([scores[i - 1, ids[0, i]] for i in range(3, ids.shape[1])])


def old(segment: Segment) -> Tensor:
    return torch.tensor([x for x, k in zip(segment.logprobs, segment.loss_mask, strict=True) if k])


def test_gspo_has_one_ratio_a_reply() -> None:
    """Clips 3e-4 and 4e-4: of six replies two are clipped, the sequences weigh alike."""
    config, model = small.small_config(objective__name="gspo"), small.model()
    offsets = (0.0, 2e-4, 1e-3, -1e-3, 1e-3, -1e-3)
    advantages = (1.0, 2.0, 1.0, 1.5, -1.0, -0.5)
    segments = rows(model, offsets)
    found, logged = stepped(config, model, segments, advantages)
    model.zero_grad()
    total = torch.zeros(())
    for segment, a in zip(segments, advantages, strict=True):
        ratio = (logprobs(model, segment) - old(segment)).mean().exp()
        total = total - torch.minimum(a * ratio, a * ratio.clamp(1 - 3e-4, 1 + 4e-4)) / 6
    total.backward()
    torch.testing.assert_close(found, gradient(model), rtol=1e-3, atol=1e-5)
    assert logged["loss/policy"] == pytest.approx(float(total.detach()), rel=1e-5)
    lengths = [segment.trained for segment in segments]
    # Above with A > 0, and below with A < 0.
    assert logged["clip_fraction"] == pytest.approx((lengths[2] + lengths[5]) / sum(lengths))
    assert logged["dual_clip_fraction"] == 0.0


def test_dapo_clips_higher() -> None:
    """A ratio of 1.25 still learns; 1.3 no more."""
    model = small.model()
    for name, offset, share in (
        ("grpo", 1.25, 1.0),
        ("dapo", 1.25, 0.0),
        ("dapo", 1.3, 1.0),
        ("dapo", 0.81, 0.0),
    ):
        config = small.small_config(objective__name=name)
        segments = rows(model, [math.log(offset)] * 3)
        found, logged = stepped(config, model, segments, [1.0] * 3)
        assert logged["clip_fraction"] == share, (name, offset)
        assert bool((found != 0).any()) == (share == 0.0)
    low, _ = stepped(
        small.small_config(objective__name="dapo"), model, rows(model, [math.log(0.79)]), [-1.0]
    )
    assert not low.any(), "below it is 0.2 as before"


def test_dr_grpo_divides_by_the_length_of_the_config() -> None:
    config, model = small.small_config(objective__name="dr_grpo"), small.model()
    segments = rows(model, [0.0] * 3)
    found, logged = stepped(config, model, segments, [1.0, -2.0, 0.5])
    model.zero_grad()
    total = torch.zeros(())
    for segment, a in zip(segments, (1.0, -2.0, 0.5), strict=True):
        total = total - (a * (logprobs(model, segment) - old(segment)).exp()).sum() / (3 * 24)
    total.backward()
    torch.testing.assert_close(found, gradient(model), rtol=1e-3, atol=1e-6)
    assert logged["loss/policy"] == pytest.approx(float(total.detach()), rel=1e-5)


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_o22_the_regularised_loss_is_the_formula_written_out(kind: str) -> None:
    """L = policy + kl_coef * KL - entropy_coef * H; the KL and H that are logged are those of L."""
    config = small.small_config(
        objective__kl_coef=0.3, objective__kl_kind=kind, objective__entropy_coef=0.2
    )
    model, advantages = small.model(), (1.0, -2.0, 0.5)
    segments = rows(model, [0.0] * 3)
    reference = score_segments(small.model(seed=1), segments, LIMITS)
    found, logged = stepped(config, model, segments, advantages, reference=reference)
    model.zero_grad()
    count = sum(segment.trained for segment in segments)
    policy, kl, entropy = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for segment, a, ref in zip(segments, advantages, reference, strict=True):
        new = logprobs(model, segment)
        policy = policy - (a * (new - old(segment)).exp()).sum() / count
        d = ref - new
        estimate = d.square() / 2 if kind == "k2" else (d.exp() - d - 1).clamp(max=10.0)
        kl = kl + estimate.sum() / count
        places = slice(len(segment.ids) - segment.trained - 1, -1)
        scores = model(input_ids=torch.tensor([segment.ids])).logits[0, places].log_softmax(-1)
        entropy = entropy - (scores.exp() * scores).sum() / count
    (policy + 0.3 * kl - 0.2 * entropy).backward()
    torch.testing.assert_close(found, gradient(model), rtol=1e-3, atol=1e-5)
    expected = {"loss/policy": policy, "loss/kl": kl, "loss/entropy": entropy}
    for name, value in expected.items():
        assert logged[name] == pytest.approx(float(value.detach()), rel=1e-4), name
        assert abs(float(value.detach())) > 1e-2, name


@pytest.mark.parametrize("how", [*AGGREGATIONS, "gspo"])
def test_o23_rows_without_an_advantage_need_no_pass_and_count(how: str) -> None:
    """The loss is divided by the counts of the whole step, whichever rows are run."""
    name = {"objective__name": "gspo"} if how == "gspo" else {"objective__aggregation": how}
    config, model = small.small_config(**name), small.model()
    segments, advantages = rows(model, [0.0] * 4), (1.0, 0.0, -2.0, 0.0)
    found, logged = stepped(config, model, segments, advantages)
    every = replace(config, objective=replace(config.objective, entropy_coef=1e-300))
    whole, expected = stepped(every, model, segments, advantages)
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-6)
    assert logged["loss/policy"] == pytest.approx(expected["loss/policy"], rel=1e-5)
    assert abs(logged["loss/policy"] or 0.0) > 1e-2


@pytest.mark.parametrize("tokens", [1, 20])
@pytest.mark.parametrize("how", [*AGGREGATIONS, "gspo"])
def test_o23_no_cut_changes_the_gradient_of_any_reduction(how: str, tokens: int) -> None:
    """Eight replies as one micro-batch, a few, and eight; KL and entropy are in the loss."""
    settings = {"objective__kl_coef": 0.1, "objective__entropy_coef": 0.01}
    name = {"objective__name": "gspo"} if how == "gspo" else {"objective__aggregation": how}
    config, model = small.small_config(**settings, **name), small.model()
    segments = rows(model, [0.1 * i for i in range(-4, 4)])
    advantages = [
        torch.linspace(-1, 1, s.trained, dtype=torch.float64) + 0.25 * i
        for i, s in enumerate(segments)
    ]
    reference = score_segments(small.model(seed=1), segments, LIMITS)
    seen = []
    for size in (10**9, tokens):
        stats = LossStats()
        model.zero_grad()
        base = BaseStep(segments, range(8), advantages, reference, length=24)
        base_backward(model, base, config.objective, PassLimits(size, 0), stats)
        seen.append((gradient(model), stats.metrics()))
    assert seen[0][0].abs().max() > 1e-3
    torch.testing.assert_close(seen[1][0], seen[0][0], rtol=1e-4, atol=1e-5)
    for key, value in seen[0][1].items():
        assert seen[1][1][key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("tokens", [1, 40, 10**9])
@pytest.mark.parametrize("how", [*AGGREGATIONS, "gspo"])
def test_o23_no_packing_and_no_sharing_changes_the_gradient_of_any_reduction(
    how: str, tokens: int
) -> None:
    """Two conversations of four turns, read from two passes, packed or padded, and turn by turn."""
    settings = {"objective__kl_coef": 0.1, "objective__entropy_coef": 0.01}
    name = {"objective__name": "gspo"} if how == "gspo" else {"objective__aggregation": how}
    config, model = small.small_config(**settings, **name), small.model()
    packing = small.model()
    packing.model.layers[0].register_forward_hook(lambda *_: None)  # no shorter way: it packs
    assert use_packing(packing, None)
    assert not use_packing(model, None)
    segments: list[Segment] = []
    for first in (5, 105):
        past: tuple[int, ...] = ()
        for turn in range(4):
            prompt = (*past, first, first + turn, 7)
            reply = tuple(range(20 + first + turn, 21 + first + 2 * turn))
            segments.append(make_segment(prompt, reply, logprobs=[-5.0] * len(reply)))
            past = (*prompt, *reply)
    advantages = [
        torch.linspace(-1, 1, s.trained, dtype=torch.float64) + 0.25 * i
        for i, s in enumerate(segments)
    ]
    reference = [score_segments(small.model(seed=1), [s], LIMITS)[0] for s in segments]

    def run(policy: Any, size: int, nested: bool) -> tuple[Tensor, dict[str, float | None]]:
        stats = LossStats()
        policy.zero_grad()
        counts = step_counts(segments, 24)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("trainer.learning.update.step_counts", lambda *_: counts)
            for part in [range(8)] if nested else [[i] for i in range(8)]:
                own = ([segments[i] for i in part], part, [advantages[i] for i in part],
                       [reference[i] for i in part])  # fmt: skip
                base = BaseStep(*own, length=24)
                base_backward(policy, base, config.objective, PassLimits(size, 0), stats)
        # A conversation is run once, however many turns are read from it.
        longest = [len(segments[3].ids), len(segments[7].ids)]
        run = longest if nested else [len(s.ids) for s in segments]
        assert stats.work == Work.of(run, sum(s.trained for s in segments))
        return gradient(policy), {k: v for k, v in stats.metrics().items() if "loss" not in k}

    expected, logged = run(model, 10**9, nested=False)
    assert expected.abs().max() > 1e-3
    near = {"rtol": 1e-4, "atol": 1e-5}
    for policy in (model, packing):
        found, metrics = run(policy, tokens, nested=True)
        torch.testing.assert_close(found, expected, **near)
        for key, value in logged.items():
            assert metrics[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
        again = score_segments(policy, segments, PassLimits(tokens, 0))
        lone = [score_segments(policy, [s], LIMITS)[0] for s in segments]
        torch.testing.assert_close(torch.cat(again), torch.cat(lone), atol=1e-5, rtol=0)


class Pull(TokenTerm):
    """Raises the log-prob of every token of the rows it needs."""

    def __init__(self, turns: Sequence[int]) -> None:
        self.turns = turns

    def needs(self, turn: int) -> bool:
        return turn in self.turns

    def loss(self, new_B_T: Tensor, batch: Any, turns_B: Sequence[int]) -> Tensor | None:
        chosen = torch.tensor([turn in self.turns for turn in turns_B])
        if not bool(chosen.any()):
            return None
        return -(new_B_T * (batch.mask_B_T & chosen[:, None])).sum()


def _kl_without_a_base() -> Config:
    """As no file may have it: the update has to stand it all the same."""
    config = small.small_config(objective__name="none", auxiliary__format_only={})
    return replace(config, objective=replace(config.objective, kl_coef=0.1))


def test_terms_without_a_base_loss_need_no_reference_and_stand_alone() -> None:
    """`objective.name: none` with a KL coefficient: no reward reaches the policy, nor does KL."""
    config = _kl_without_a_base()
    model = small.model()
    segments = rows(model, [math.inf, 0.0, 0.0])  # 0 * inf would be NaN
    found, logged = stepped(config, model, segments, [1.0] * 3, scale=0.0, terms=[Pull([0, 2])])
    model.zero_grad()
    (-logprobs(model, segments[0]).sum() - logprobs(model, segments[2]).sum()).backward()
    torch.testing.assert_close(found, gradient(model), rtol=1e-3, atol=1e-5)
    assert set(logged.values()) == {None}
    # Micro-batches in which the term has nothing are no error either.
    base = BaseStep(segments, range(3), [torch.ones(s.trained) for s in segments], scale=0.0,
                    terms=[Pull([0]), _Needy()])  # fmt: skip
    base_backward(model, base, config.objective, PassLimits(1, 0), LossStats())


class _Needy(TokenTerm):
    def needs(self, turn: int) -> bool:
        return True


def test_a_learner_of_terms_alone_asks_no_reference() -> None:
    config = _kl_without_a_base()
    model = small.model()
    metrics = learn(config, mixed(config), model, reference=small.model(seed=1))
    assert metrics["loss/format_only"] > 0
    assert metrics["loss/policy"] is None
    assert metrics["loss/kl"] is None


# ------------------------------------------------------------------------------ left-out turns


def test_trajectories_that_ran_out_of_steps_can_be_left_out() -> None:
    """Nothing of b and h reaches the policy but what their outcome says of the others."""
    config = small.small_config(objective__mask_truncated=True, optim__steps=1)
    made = hand()
    model, other, whole = small.model(), small.model(), small.model()
    start = small.weights(model)
    learn(config, made.turns, model)
    garbled = [
        replace(t, response_ids=(99,) * len(t.response_ids), logprobs=(-9.0,) * len(t.logprobs))
        if t.tid in "bh" else t
        for t in made.turns
    ]  # fmt: skip
    learn(config, garbled, other)
    assert small.same(small.weights(model), small.weights(other))
    assert not small.same(start, small.weights(model))
    learn(config.replace(**{"objective.mask_truncated": False}), made.turns, whole)
    assert not small.same(small.weights(model), small.weights(whole))
    # As outcomes they count: without b the wins of its group would stand for less.
    learner = Learner(config, model, small.student(config))
    alone = [t for t in made.turns if t.tid not in "bh"]
    first = float(learner.advantages(made.turns, learner.segments(made.turns)).tokens[0][0])
    apart = float(learner.advantages(alone, learner.segments(alone)).tokens[0][0])
    assert abs(first - apart) > 0.05
    kept = [s.trained > 0 for s in learner.segments(made.turns)]
    assert kept == [t.tid not in "bh" for t in made.turns]


def test_rows_that_cannot_move_a_parameter_need_no_pass() -> None:
    made = hand()
    segments = segments_from_turns(made.turns)
    tokens = [torch.zeros(s.trained, dtype=torch.float64) for s in segments]
    tokens[3] = torch.tensor([0.0, 1.0], dtype=torch.float64)[: len(tokens[3])]
    base = BaseStep(segments, range(len(segments)), tokens, length=24)
    plain = small.small_config().objective
    assert contributing(base, plain) == [3]
    assert contributing(replace(base, scale=0.0), plain) == []
    assert contributing(replace(base, terms=[Pull([5])]), plain) == [3, 5]
    everything = list(range(len(segments)))
    for regularised in ({"objective__kl_coef": 0.1}, {"objective__entropy_coef": 0.1}):
        objective = small.small_config(**regularised).objective
        assert contributing(base, objective) == everything
        assert contributing(replace(base, scale=0.0), objective) == []
    in_reward = small.small_config(objective__kl_coef=0.1, objective__kl_placement="reward")
    assert contributing(base, in_reward.objective) == [3]


def test_terms_that_the_loss_does_not_have_are_not_measured() -> None:
    """0 would say that the policy is the reference, or has no entropy."""
    for more, kl, entropy in (
        ({}, False, False),
        ({"objective__kl_coef": 0.1, "objective__kl_placement": "reward"}, False, False),
        ({"objective__kl_coef": 0.1}, True, False),
        ({"objective__entropy_coef": 0.1}, False, True),
    ):
        config = small.small_config(**more)
        metrics = learn(config, mixed(config), small.model(), reference=small.model(seed=1))
        assert metrics["loss/policy"] is not None
        assert (metrics["loss/kl"] is not None) == kl
        assert (metrics["loss/entropy"] is not None) == entropy
