"""OPSD: what the teacher knows, the divergence, and the form in published tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import agent_envs
from agent_envs import Snapshot
from tests.trainer import small
from tests.trainer.methods.distilling import (
    LIMITS,
    config_of,
    gradient,
    learned,
    method_of,
    prepared,
    scored,
    term_gradient,
    trajectories_of,
    turns_of,
    whole_step,
)
from trainer.auxiliary.divergence import divergence
from trainer.learning.update import score_segments
from trainer.methods.protocol import Rollouts
from trainer.models.policy import collate, token_distributions, token_logprobs
from trainer.rollouts.data import Turn, segments_from_turns
from trainer.rollouts.rollout import Trajectory
from trainer.worlds.tasks import make_env

# Trajectories of the world: 5 turns won, 5 won, 8 lost; 8 lost, 4 won, 8 lost.
SIZES = (5, 5, 8, 8, 4, 8)


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    found = trajectories_of(config_of())
    assert tuple(len(t.turns) for t in found) == SIZES
    return found


@pytest.fixture(scope="module")
def turns(trajectories: list[Trajectory]) -> list[Turn]:
    return turns_of(trajectories)


def _opsd(**section: Any) -> Any:
    return config_of(objective__name="none", auxiliary__opsd=section)


def _legacy(**section: Any) -> Any:
    return config_of(objective__name="none", auxiliary__opsd_legacy=section)


def _rollouts(turns: list[Turn], trajectories: Any = ()) -> Rollouts:
    return Rollouts(0, turns, segments_from_turns(turns), trajectories)


# ------------------------------------------------------------------------------ contexts


def test_success_shows_the_first_other_rollout_that_won(turns: list[Turn]) -> None:
    contexts = method_of(_opsd(rendering="observation_action"), small.model()).contexts
    found = contexts.sections(_rollouts(turns))
    ends = [sum(SIZES[:i]) for i in range(7)]
    shown = {0: 1, 1: 0, 2: 0, 3: 4, 5: 4}
    for number in range(6):
        for place in range(ends[number], ends[number + 1]):
            if number not in shown:
                assert found[place] == ()
                continue
            (section,) = found[place]
            other = turns[ends[shown[number]] : ends[shown[number] + 1]]
            assert section.text.count("Observation: ") == len(other)
            for turn in other:
                assert f"<action>{turn.command}</action>" in section.text
    told = contexts.told(_rollouts(turns))
    assert told.turns == 38
    assert told.offered == 34
    assert told.metrics("x")["x/context_share"] == pytest.approx(34 / 38)


def test_only_so_many_steps_are_shown(turns: list[Turn]) -> None:
    contexts = method_of(_opsd(context_steps=2), small.model()).contexts
    (section,) = contexts.sections(_rollouts(turns))[0]
    assert section.text.count("Response: ") == 2
    assert "(3 more)" in section.text


def test_feedback_is_what_the_environment_answered(turns: list[Turn]) -> None:
    some = [turns[0], replace(turns[1], next_observation="  \n")]
    found = method_of(_opsd(context="feedback"), small.model()).contexts.sections(_rollouts(some))
    assert [section.text for section in found[0]] == [turns[0].next_observation.strip()]
    assert found[1] == ()


def test_a_plan_leads_from_the_state_of_the_turn_to_the_goal(
    trajectories: list[Trajectory], turns: list[Turn]
) -> None:
    config = _opsd(context="plan")
    contexts = method_of(config, small.model(), played=True).contexts
    found = contexts.sections(_rollouts(turns, trajectories))
    env = make_env(config.env, small.games(), "train")
    snapshots = [s for t in trajectories for s in t.snapshots]
    for place in (0, 3, 12, 20, 37):
        agent_envs.restore(env, snapshots[place])
        (section,) = found[place]
        lines = section.text.splitlines()
        assert [line.split(". ")[0] for line in lines] == [str(i + 1) for i in range(len(lines))]
        info: Any = {}
        for line in lines[: turns[place].steps_left]:
            *_, info = env.step(line.split(". ", 1)[1])
        assert info["success"] == (len(lines) <= (turns[place].steps_left or 0))
    assert all(found), "every state of these tasks has a way to the goal"
    short = method_of(_opsd(context="plan", context_steps=1), small.model(), played=True).contexts
    (first,) = short.sections(_rollouts(turns, trajectories))[0]
    assert first.text == found[0][0].text.splitlines()[0]


def test_plans_come_from_recorded_states_as_well(
    trajectories: list[Trajectory], turns: list[Turn]
) -> None:
    contexts = method_of(_opsd(context="plan"), small.model(), played=True).contexts
    snapshots = [s for t in trajectories for s in t.snapshots]
    kept = [replace(t, snapshot=s.to_bytes()) for t, s in zip(turns[:4], snapshots, strict=False)]
    found = contexts.sections(_rollouts(kept))
    assert found == contexts.sections(_rollouts(turns, trajectories))[:4]
    assert contexts.sections(_rollouts(turns[:4])) == [()] * 4, "no state, no plan"
    assert contexts.sections(_rollouts([replace(kept[0], observation="elsewhere")])) == [()]
    foreign = replace(Snapshot.from_bytes(kept[0].snapshot or b""), task_id="train/none/trial")
    assert contexts.sections(_rollouts([replace(kept[0], snapshot=foreign.to_bytes())])) == [()]
    blind = method_of(_opsd(context="plan"), small.model()).contexts
    assert blind.sections(_rollouts(kept)) == [()] * 4, "no environment, no plan"


def test_what_the_teacher_knows_is_in_its_prompt_alone(
    trajectories: list[Trajectory], turns: list[Turn]
) -> None:
    model = small.model()
    method = method_of(_opsd(context="plan"), model, played=True)
    method.prepare(_rollouts(turns, trajectories), model)
    decode = small.tokenizer().decode
    for turn, pair in method.pairs.items():
        assert pair.student.ids == (*turns[turn].prompt_ids, *turns[turn].response_ids)
        told = decode(list(pair.teacher.ids))
        assert "Commands that solve the task from here:" in told
        assert "Commands that solve" not in decode(list(pair.student.ids))
    assert len(method.pairs) == len(turns)


def test_long_contexts_are_shortened_and_counted(turns: list[Turn]) -> None:
    model, longest = small.model(), max(len(turn.prompt_ids) for turn in turns)
    whole = prepared(_opsd(), model, turns).metrics()
    assert whole["opsd/truncated_share"] == 0.0
    limit = longest + 60
    method = prepared(_opsd(max_prompt_tokens=limit), model, turns)
    assert method.metrics()["opsd/truncated_share"] > 0.5
    for turn, pair in method.pairs.items():
        assert len(pair.teacher.ids) - len(turns[turn].response_ids) <= limit + 1
    assert len(method.pairs) > 10
    none = prepared(_opsd(max_prompt_tokens=longest), model, turns[:5])
    assert none.pairs == {}


# ------------------------------------------------------------------------------ the divergence


@pytest.mark.parametrize(
    ("kind", "beta", "top_k"), [("rkl", 0.5, None), ("fkl", 0.5, None), ("gjs", 0.3, 9)]
)
def test_the_loss_is_the_mean_divergence_over_told_turns(
    turns: list[Turn], kind: Any, beta: float, top_k: int | None
) -> None:
    teacher, model = small.model(1), small.model()
    config = _opsd(divergence=kind, beta=beta, top_k=top_k)
    some = [*turns[3:5], *turns[8:10], turns[30]]  # the last one has nobody to learn from
    method = prepared(config, teacher, some)
    assert set(method.pairs) == {0, 1, 2, 3}
    pairs = list(method.pairs.values())
    s = token_distributions(model, collate([pair.student for pair in pairs])).detach()
    t = token_distributions(teacher, collate([pair.teacher for pair in pairs])).detach()
    expected = divergence(s, t, kind=kind, beta=beta, top_k=top_k).mean()
    loss = method.backward(model, whole_step(some), LIMITS)
    assert loss == pytest.approx(float(expected), rel=1e-4)
    assert float(gradient(model).abs().max()) > 0


@pytest.mark.parametrize("kind", ["initial", "synced", "current"])
def test_the_teacher_is_of_the_kind_that_is_asked_for(kind: str) -> None:
    model = small.model()
    every = {"sync_every": 2} if kind == "synced" else {}
    method = method_of(_opsd(teacher=kind, **every), model)
    first = next(iter(model.parameters()))
    start = first.detach().clone()
    with torch.no_grad():
        first.add_(1.0)

    def weight() -> torch.Tensor:
        return next(iter(method.teacher.of(model).parameters())).detach()

    follows = kind == "current"
    method.finished_step(model)
    method.finished_iteration(0, model)
    assert torch.equal(weight(), start + 1 if follows else start)
    method.finished_iteration(1, model)
    assert torch.equal(weight(), start if kind == "initial" else start + 1)


def test_the_policy_learns_what_the_teacher_knows(turns: list[Turn]) -> None:
    some = turns[:10]
    config = _opsd(weight=1.0)
    losses = [line["loss/opsd"] for line in learned(config, small.model(), some, iterations=6)]
    assert losses[-1] < 0.7 * losses[0]


# ------------------------------------------------------------------------------ the published form


@pytest.mark.parametrize("beta", [0.0, 5.0])
def test_the_legacy_form_is_a_gated_likelihood(turns: list[Turn], beta: float) -> None:
    """-g dS per token of told turns, g from scores under the weights that made the rollouts."""
    behaviour, model = small.model(1), small.model()
    some = [*turns[3:5], *turns[8:10], turns[30]]
    config = _legacy(weight=0.5, beta=beta)
    method = prepared(config, behaviour, some)
    assert not method.has_pass(whole_step(some))
    found = term_gradient(config, method, model, some)
    pairs = list(method.pairs.values())
    assert len(pairs) == 4
    batch = collate([pair.student for pair in pairs])
    student = token_logprobs(model, batch).logprobs
    with torch.no_grad():
        told = token_logprobs(behaviour, collate([pair.teacher for pair in pairs])).logprobs
        gate = torch.sigmoid(beta * (told - student))
    mask = batch.mask_B_T
    model.zero_grad()
    loss = -0.5 * (gate * student)[mask].sum() / mask.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, gradient(model), rtol=1e-3, atol=1e-6)


def test_the_legacy_form_raises_told_tokens_whatever_the_teacher_says(turns: list[Turn]) -> None:
    some = [*turns[3:5], *turns[8:10]]
    model = small.model()
    before = sum(float(row.sum()) for row in score_segments(model, scored(model, some), LIMITS))
    learned(_legacy(weight=1.0), model, some, iterations=3)
    after = sum(float(row.sum()) for row in score_segments(model, scored(model, some), LIMITS))
    assert after > before + 1.0
