"""SDPO: who is shown what, the loss against its definition, and the slow teacher."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.distilling import (
    LIMITS,
    config_of,
    learned,
    method_of,
    prepared,
    trajectories_of,
    turns_of,
    whole_step,
)
from trainer.auxiliary.divergence import divergence
from trainer.auxiliary.feedback_context import TITLES
from trainer.learning.learner import Learner
from trainer.methods.protocol import Rollouts
from trainer.metrics import Phases
from trainer.models.policy import collate, token_distributions
from trainer.rollouts.data import Turn, segments_from_turns

SUCCESS, FEEDBACK = TITLES["success"], TITLES["feedback"]


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    """Of six trajectories: two won and one lost; lost, won, lost."""
    return turns_of(trajectories_of(config_of()))


def _sdpo(**section: Any) -> Any:
    return config_of(objective__name="none", auxiliary__sdpo=section)


def _sections(config: Any, turns: list[Turn]) -> Any:
    method = method_of(config, small.model())
    return method.sections(Rollouts(0, turns, segments_from_turns(turns)))


def _of(turns: list[Turn], tid: str) -> list[int]:
    return [i for i, turn in enumerate(turns) if turn.tid == tid]


def test_a_won_sibling_is_shown_else_the_feedback(turns: list[Turn]) -> None:
    found = _sections(_sdpo(), turns)
    shown = {"0.0.0": "0.0.1", "0.0.1": "0.0.0", "0.0.2": "0.0.0", "0.1.0": "0.1.1",
             "0.1.2": "0.1.1"}  # fmt: skip
    for tid, other in shown.items():
        replies = [turns[i].reply.removeprefix("<think></think>") for i in _of(turns, other)]
        for i in _of(turns, tid):
            ((title, text),) = found[i]
            assert title == SUCCESS
            assert text.split("\n\n") == [
                f"Step {t + 1}\nResponse: {reply}" for t, reply in enumerate(replies)
            ]
    for i in _of(turns, "0.1.1"):
        assert found[i] == ((FEEDBACK, turns[i].next_observation.strip()),)


def test_without_feedback_the_only_winner_learns_nothing(turns: list[Turn]) -> None:
    found = _sections(_sdpo(feedback=False), turns)
    alone = _of(turns, "0.1.1")
    assert [i for i, sections in enumerate(found) if not sections] == alone
    blank = [replace(turns[i], next_observation=" ") for i in alone]
    assert _sections(_sdpo(), blank) == [()] * len(alone)
    metrics = prepared(_sdpo(), small.model(), turns).metrics()
    assert metrics["sdpo/sibling_share"] == pytest.approx(34 / 38)
    assert metrics["sdpo/feedback_share"] == pytest.approx(4 / 38)
    assert metrics["sdpo/context_share"] == 1.0


def test_the_order_of_trajectories_decides_and_that_of_turns_does_not(turns: list[Turn]) -> None:
    first = _sections(_sdpo(), turns)
    order = [*reversed(range(5)), *range(5, 38)]  # the first trajectory backwards
    assert _sections(_sdpo(), [turns[i] for i in order]) == [first[i] for i in order]


@pytest.mark.parametrize(("paid", "kind"), [(0.49, FEEDBACK), (0.5, SUCCESS), (0.9, SUCCESS)])
def test_paid_scores_count_from_the_threshold_on(turns: list[Turn], paid: float, kind: str) -> None:
    group = [replace(turn, reward=0.0, success=False) for turn in turns if turn.uid == "0.0"]
    end = max(_of(group, "0.0.2"))
    group[end] = replace(group[end], reward=paid)
    config = _sdpo().replace(**{"rollout.reward": "env"})
    assert _sections(config, group)[0][0].title == kind
    assert _sections(_sdpo(), group)[0][0].title == FEEDBACK, "a score is no success"
    strict = _sdpo(success_threshold=1.0).replace(**{"rollout.reward": "env"})
    assert _sections(strict, group)[0][0].title == FEEDBACK


def test_thoughts_are_not_shown(turns: list[Turn]) -> None:
    spoken = [
        replace(turn, reply=turn.reply.replace("<think></think>", "<think>my secret</think>"))
        for turn in turns
    ]
    text = _sections(_sdpo(), spoken)[0][0].text
    assert "secret" not in text
    assert "<action>" in text
    both = _sdpo(rendering="observation_action", context_steps=1)
    shown = _sections(both, turns)[0][0].text
    assert shown.startswith("Step 1\nObservation: ")
    assert shown.endswith("(4 more)")


@pytest.mark.parametrize(
    ("alpha", "top_k", "is_clip", "kind"),
    [
        (0.5, 100, 2.0, "gjs"),
        (0.0, None, None, "fkl"),
        (1.0, 5, 1.2, "rkl"),
        (0.25, None, 2.0, "gjs"),
    ],
)
def test_the_loss_is_its_definition(
    turns: list[Turn], alpha: float, top_k: int | None, is_clip: float | None, kind: Any
) -> None:
    """Mean over tokens of the divergence times min(exp(S - O), is_clip)."""
    teacher, model = small.model(1), small.model()
    some = [*turns[3:5], *turns[8:10]]
    step = whole_step(some)
    with torch.no_grad():
        batch = collate(segments_from_turns(some))
        s = token_distributions(model, batch)
        own = s.gather(-1, batch.labels_B_T[batch.mask_B_T][:, None])[:, 0]
    # Behaviour log-probs around the policy's, so that some weights are cut and some are not.
    shift = torch.linspace(-1.5, 1.5, len(own))
    old = iter((own + shift).tolist())
    some = [replace(turn, logprobs=tuple(next(old) for _ in turn.logprobs)) for turn in some]
    method = prepared(_sdpo(alpha=alpha, top_k=top_k, is_clip=is_clip), teacher, some)
    pairs = list(method.pairs.values())
    assert len(pairs) == 4
    t = token_distributions(teacher, collate([pair.teacher for pair in pairs])).detach()
    value = divergence(s, t, kind=kind, beta=alpha or 0.5, top_k=top_k)
    rho = torch.ones_like(value) if is_clip is None else (-shift).exp().clamp(max=is_clip)
    loss = method.backward(model, step, LIMITS)
    assert loss == pytest.approx(float((value * rho).mean()), rel=1e-3)


def test_the_teacher_follows_slowly(turns: list[Turn]) -> None:
    model = small.model()
    config = config_of(auxiliary__sdpo={"rate": 0.25}, optim__steps=1)
    method = method_of(config, model)
    start = small.weights(model)
    learner = Learner(config, model, small.student(config), methods=[method])
    learner.learn(0, turns, Phases())
    end = small.weights(model)
    assert not small.same(start, end)
    for name, value in small.weights(method.teacher.of(model)).items():
        torch.testing.assert_close(value, start[name] + 0.25 * (end[name] - start[name]))
    assert method_of(_sdpo(), model).teacher.kind == "ema"
    assert method_of(_sdpo(teacher="initial"), model).teacher.kind == "initial"


def test_it_trains_alone_and_beside_a_base(turns: list[Turn]) -> None:
    alone, beside, turns = small.model(), small.model(), turns[:18]
    config = config_of(auxiliary__sdpo={"weight": 0.3})
    (pure,) = learned(_sdpo(weight=0.3), alone, turns)
    (hybrid,) = learned(config, beside, turns)
    assert pure["grad/base_norm"] == 0.0
    assert hybrid["grad/base_norm"] > 0
    assert min(pure["grad/aux_norm"], hybrid["grad/aux_norm"]) > 0
    assert hybrid["loss/auxiliary"] == pytest.approx(0.3 * hybrid["loss/sdpo"])
    assert not small.same(small.weights(alone), small.weights(beside))
    won, lost = small.model(), small.model()
    flat = [replace(turn, reward=0.0) for turn in turns]
    learned(_sdpo(weight=0.3), won, flat)
    learned(_sdpo(weight=0.3), lost, turns)
    assert small.same(small.weights(won), small.weights(lost)), "rewards reach nobody"


def test_the_policy_learns_what_the_teacher_saw(turns: list[Turn]) -> None:
    some = turns[:10]
    # Behaviour log-probs of the policy itself, as in a run: the weights then begin at 1.
    config = _sdpo(teacher="initial").replace(**{"optim.old_logprobs": "recompute"})
    losses = [line["loss/sdpo"] for line in learned(config, small.model(), some, iterations=6)]
    assert losses[-1] < 0.7 * losses[0]
