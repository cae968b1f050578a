"""What an iteration learns from its turns."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.trainer import small
from tests.trainer.short_runs import learn, mixed
from trainer.config import Config
from trainer.generation.hf import HFSampler
from trainer.learning.batch import trained_turns
from trainer.learning.learner import Learner
from trainer.learning.update import BaseStep, LossStats, base_backward
from trainer.methods.protocol import Method, PassLimits, Setup, Step, TokenTerm
from trainer.metrics import Phases
from trainer.rollouts.metrics import rollout_metrics
from trainer.rollouts.rollout import play


def test_o27_a_batch_with_every_token_masked_is_skipped() -> None:
    config = small.small_config(objective__mask_truncated=True)
    trajectories = small.rollouts(config, small.CommandSampler(lambda r, p: "look"))
    turns = [turn for t in trajectories for turn in t.turns]
    turns = [replace(t, format_valid=t.t % 2 == 0) for t in turns]
    assert not any(trained_turns(turns, config.objective))
    model = small.model()
    before = small.weights(model)
    learner = Learner(config, model, small.student(config))
    metrics = learner.learn(0, turns, Phases())
    assert small.same(before, small.weights(model))
    assert learner.optimizer.state == {}
    assert (metrics["skipped_now"], metrics["skipped_steps"], metrics["optimizer_steps"]) == (
        2,
        2,
        0,
    )
    assert learner.learn(1, turns, Phases())["skipped_steps"] == 4
    json.dumps(metrics, allow_nan=False)
    # The loss itself: exactly 0, and backward works.
    stats = LossStats()
    segments = learner.segments(turns)
    ones = [torch.ones(s.trained, dtype=torch.float64) for s in segments]
    base = BaseStep(segments, range(len(turns)), ones, length=24)
    base_backward(model, base, config.objective, PassLimits(500, 0), stats)
    assert stats.metrics()["loss/policy"] == 0.0


def test_a_step_that_is_not_finite_is_counted_and_can_be_logged() -> None:
    config = small.small_config(auxiliary__format_only={})
    model = small.model()
    turns = mixed(config)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    before = small.weights(model)
    metrics = learn(config, turns, model)
    assert (metrics["nonfinite_steps"], metrics["optimizer_steps"]) == (2, 0)
    assert metrics["loss/policy"] is None
    assert metrics["loss/auxiliary"] is None
    json.dumps(metrics, allow_nan=False)
    after = small.weights(model)
    assert all(torch.equal(before[k].nan_to_num(), after[k].nan_to_num()) for k in before)


def test_dropout_neither_moves_ratios_nor_draws_from_global_state() -> None:
    config = small.small_config(optim__lr=0.0, optim__old_logprobs="recompute")
    model = small.model()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.config.attention_dropout = 0.5
    model.train()
    state = torch.get_rng_state()
    metrics = learn(config, mixed(config), model)
    assert metrics["optimizer_steps"] == 2
    assert metrics["kl_old"] == pytest.approx(0.0, abs=1e-9)
    assert torch.equal(torch.get_rng_state(), state)


def test_groups_that_ended_before_their_first_turn_teach_nothing() -> None:
    config = small.small_config(prompt__max_prompt_tokens=1)
    trajectories = small.rollouts(config, small.half_expert())
    assert [t.turns for t in trajectories] == [()] * 6
    metrics = rollout_metrics(trajectories, [])
    assert (metrics["frac_degenerate_groups"], metrics["mixed_group_share"]) == (1.0, 0.0)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum"])
def test_o28_equal_rewards_give_no_gradient_without_kl(aggregation: str) -> None:
    config = small.small_config(objective__aggregation=aggregation)
    trajectories = small.rollouts(config, small.CommandSampler(lambda r, p: "look"))
    turns = [turn for t in trajectories for turn in t.turns]
    model = small.model()
    before = small.weights(model)
    metrics = learn(config, turns, model)
    assert metrics["skipped_now"] == 2
    assert small.same(before, small.weights(model))
    # The forward pass that was saved would have given exactly zero.
    learner = Learner(config, model, small.student(config))
    segments = learner.segments(turns)
    tokens = learner.advantages(turns, segments).tokens
    base = BaseStep(segments, range(len(turns)), tokens, length=24)
    full = replace(config.objective, entropy_coef=1e-300)  # makes every row contribute
    stats = LossStats()
    base_backward(model, base, full, PassLimits(999, 0), stats)
    assert stats.metrics()["loss/policy"] == 0.0
    assert all(float(p.grad.abs().max()) == 0.0 for p in model.parameters() if p.grad is not None)


def test_o28_equal_rewards_keep_the_kl_term() -> None:
    """The documented choice: groups without a signal are kept, so KL still pulls them back."""
    config = small.small_config(objective__kl_coef=0.1)
    trajectories = small.rollouts(config, small.CommandSampler(lambda r, p: "look"))
    turns = [turn for t in trajectories for turn in t.turns]
    model = small.model()
    before = small.weights(model)
    metrics = learn(config, turns, model, reference=small.model(seed=1))
    assert metrics["skipped_now"] == 0
    assert metrics["loss/kl"] > 0
    assert not small.same(before, small.weights(model))


def test_o22_the_logged_kl_is_the_trained_one() -> None:
    config = small.small_config(objective__kl_coef=0.1, optim__steps=1)
    turns, model, reference = mixed(config), small.model(), small.model(seed=1)
    learner = Learner(config, small.twin(model), small.student(config), reference)
    metrics = learner.learn(0, turns, Phases())
    total, tokens = 0.0, 0
    for turn in turns:
        ids, n = [*turn.prompt_ids, *turn.response_ids], len(turn.response_ids)
        with torch.no_grad():
            pair = [
                torch.log_softmax(m(torch.tensor([ids])).logits[0].double(), -1)
                for m in (model, reference)
            ]
        for i in range(len(ids) - n, len(ids)):
            d = float(pair[1][i - 1, ids[i]] - pair[0][i - 1, ids[i]])
            total += min(math.exp(d) - d - 1, 10.0)
            tokens += 1
    assert metrics["loss/kl"] == pytest.approx(total / tokens, rel=1e-4)


def test_o22_the_logged_kl_of_the_reward_is_the_one_that_is_paid() -> None:
    config = small.small_config(
        objective__kl_coef=0.1, objective__kl_placement="reward", objective__kl_kind="k1"
    )
    turns, reference = mixed(config), small.model(seed=1)
    learner = Learner(config, small.model(), small.student(config), reference)
    metrics = learner.learn(0, turns, Phases())
    paid = []
    for turn in turns:
        ids, n = [*turn.prompt_ids, *turn.response_ids], len(turn.response_ids)
        with torch.no_grad():
            scores = torch.log_softmax(reference(torch.tensor([ids])).logits[0].double(), -1)
        places = range(len(ids) - n, len(ids))
        paid += [
            old - float(scores[i - 1, ids[i]]) for i, old in zip(places, turn.logprobs, strict=True)
        ]
    assert metrics["kl_reward"] == pytest.approx(sum(paid) / len(paid), rel=1e-4)
    assert metrics["loss/kl"] is None


def _own_rollouts(config: Config, model: Any) -> list[Any]:
    from trainer.rollouts.rollout import Episode, PlaySettings
    from trainer.worlds.tasks import make_env, split_tasks

    ids = split_tasks(config.env, small.games(), "train")
    episodes = [Episode(ids[i], str(i), f"{i}.{j}", 0, 0, i, j) for i in range(2) for j in range(4)]
    trajectories = play(
        episodes,
        [make_env(config.env, small.games(), "train") for _ in episodes],
        small.student(config),
        HFSampler(model, [small.tokenizer().eos_token_id]),
        PlaySettings(8, config.rollout.temperature),
    )
    return [turn for t in trajectories for turn in t.turns]


def test_o26_ratios_start_at_one_and_the_temperature_is_the_same_everywhere() -> None:
    config = small.small_config(
        rollout__temperature=0.6, optim__steps=1, objective__kl_coef=0.1, objective__dual_clip=None
    )
    model = small.model()
    turns = _own_rollouts(config, model)
    reference = small.twin(model)
    learner = Learner(config, small.twin(model), small.student(config), reference)
    segments = learner.segments(turns)
    recomputed = Learner(
        config.replace(**{"optim.old_logprobs": "recompute"}), model, learner.student, reference
    ).segments(turns)
    scored = learner.reference_logprobs(segments)
    assert scored is not None
    for turn, segment, again, ref in zip(turns, segments, recomputed, scored, strict=True):
        own = [v for v, keep in zip(segment.logprobs, segment.loss_mask, strict=True) if keep]
        new = [v for v, keep in zip(again.logprobs, again.loss_mask, strict=True) if keep]
        assert own == list(turn.logprobs)
        assert own == pytest.approx(new, abs=1e-4)
        assert own == pytest.approx(ref.tolist(), abs=1e-4)
    assert min(turn.logprobs[0] for turn in turns) < -0.5, "temperature must matter here"
    # Outcomes are all equal here, so advantages are put in by hand.
    first = LossStats()
    adv = torch.linspace(-1, 1, len(turns), dtype=torch.float64)
    tokens = [a.expand(s.trained) for a, s in zip(adv, segments, strict=True)]
    base = BaseStep(segments, range(len(turns)), tokens, scored)
    step = Step(0, 0, 0, 1, tuple(range(len(turns))))
    learner.step(base, step, first, {})
    second = LossStats()
    learner.step(base, step, second, {})
    before, after = first.metrics(), second.metrics()
    assert before["clip_fraction"] == 0.0
    assert before["kl_old"] == pytest.approx(0.0, abs=1e-8)
    assert before["loss/kl"] == pytest.approx(0.0, abs=1e-8)
    assert after["kl_old"] is not None
    assert after["kl_old"] > 1e-4
    assert after["clip_fraction"] is not None
    assert after["clip_fraction"] > 0


def test_epochs_and_steps_multiply() -> None:
    config = small.small_config(optim__steps=3, optim__epochs=2)
    metrics = learn(config, mixed(config), small.model())
    assert metrics["optimizer_steps"] + metrics["skipped_steps"] == 6


class _Reshaping(Method):
    """Wants every turn, has no loss, doubles advantages; the base may be switched off."""

    name = "reshaping"
    scale = 1.0
    steps = 0

    def base_scale(self, iteration: int) -> float:
        return self.scale

    def shaped(self, advantages: Sequence[Tensor]) -> Sequence[Tensor]:
        return [2 * row for row in advantages]

    def token_term(self, step: Step) -> TokenTerm:
        class Term(TokenTerm):
            def needs(self, turn: int) -> bool:
                return True

        return Term()

    def finished_step(self, model: nn.Module) -> None:
        self.steps += 1


def test_terms_without_a_loss_beside_no_base_loss_are_no_step() -> None:
    config, model = small.small_config(optim__weight_decay=0.1), small.model()
    student = small.student(config)
    method = _Reshaping(Setup(config, student, model), SimpleNamespace(weight=1.0))
    learner = Learner(config, model, student, methods=[method])
    turns = mixed(config)
    assert learner.learn(0, turns, Phases())["optimizer_steps"] == method.steps == 2
    before = small.weights(model)
    method.scale = 0.0
    metrics = learner.learn(1, turns, Phases())
    assert (metrics["optimizer_steps"], metrics["skipped_now"], metrics["lr"]) == (2, 2, None)
    assert method.steps == 2, "a teacher that follows the policy has nothing to follow"
    assert small.same(before, small.weights(model))


def test_the_logged_advantage_is_the_base_objectives() -> None:
    config, model = small.small_config(), small.model()
    turns, student = mixed(config), small.student(config)
    expected = learn(config, turns, small.twin(model))
    method = _Reshaping(Setup(config, student, model), SimpleNamespace(weight=1.0))
    metrics = Learner(config, model, student, methods=[method]).learn(0, turns, Phases())
    assert metrics["advantage_abs_mean"] == expected["advantage_abs_mean"] > 0
    assert metrics["loss/policy"] != expected["loss/policy"], "the reshaped ones are trained on"
