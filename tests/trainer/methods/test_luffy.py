"""LUFFY: what joins a group, what it counts for, and what its rows train."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from oracles.base import Decision, PlanStatus
from tests.trainer import small
from tests.trainer.methods.imitation_support import (
    LIMITS,
    base_pass,
    config_of,
    gradient,
    learn,
    logprob,
    mixed,
    prepared,
    setup_of,
    turns_of,
    whole,
)
from tests.trainer.methods.test_oracle_rows import Says
from trainer.config import ConfigError
from trainer.learning.base_advantages import base_advantages
from trainer.learning.learner import Learner
from trainer.learning.update import score_segments
from trainer.methods.imitation.luffy import Luffy
from trainer.methods.protocol import Rollouts, Step
from trainer.models.policy import collate, token_logprobs
from trainer.rollouts.data import make_segment, segments_from_turns
from trainer.rollouts.rollout import PlaySettings, play
from trainer.worlds.tasks import make_env


def test_a_joined_episode_is_what_a_rollout_of_the_oracle_would_have_recorded() -> None:
    config = config_of("luffy", rollout__temperature=0.7)
    trajectories = mixed(config)
    trajectories = [
        replace(t, turns=tuple(replace(turn, temperature=0.7) for turn in t.turns))
        for t in trajectories
    ]
    model = small.model()
    method = prepared(config, trajectories, model)
    joined = method.joined()
    scored = score_segments(model, segments_from_turns(joined), LIMITS)
    place = 0
    for trajectory in (trajectories[0], trajectories[4]):
        plan = small.games().walkthrough(trajectory.episode.task_id) or ()
        commands = iter(plan)
        (driven,) = play(
            [replace(trajectory.episode, tid=f"{trajectory.episode.uid}.oracle")],
            [make_env(config.env, small.games(), "train")],
            method.setup.student,
            small.CommandSampler(lambda request, prompt, plan=commands: next(plan)),
            PlaySettings(64, temperature=0.7),
        )
        for turn in driven.turns:
            expected = replace(
                turn,
                logprobs=tuple(scored[place].tolist()),
                provenance=trajectory.turns[0].provenance,
            )
            assert joined[place] == expected
            place += 1
    assert place == len(joined) == method.metrics()["luffy/rows"]


def test_what_does_not_solve_its_task_does_not_join_nor_anything_at_weight_0() -> None:
    config = config_of("luffy")
    trajectories, model = mixed(config), small.model()
    turns = turns_of(trajectories)
    method = Luffy(setup_of(config, model), config.auxiliary.luffy)
    assert method.desk is not None
    method.desk.oracle = Says(Decision(PlanStatus.FOUND, "inventory"))
    method.prepare(Rollouts(0, turns, segments_from_turns(turns), trajectories), model)
    assert method.joined() == []
    assert method.token_term(whole(len(turns))) is None
    assert method.metrics()["luffy/solved_share"] == 0.0
    assert method.metrics()["luffy/p"] is None
    idle = prepared(config_of("luffy", auxiliary__luffy__weight=0.0), trajectories, model)
    assert idle.joined() == []
    assert idle.metrics()["luffy/solved_share"] == 1.0


def test_a_success_joins_the_statistics_of_its_group() -> None:
    """Four failures alone teach nothing; beside the oracle each lies below the mean."""
    config = config_of("luffy", env__max_steps=12)
    failed = [t for t in mixed(config, 0.5) if not t.success]
    group = [t for t in failed if t.episode.uid == failed[0].episode.uid]
    method = prepared(config, group)
    turns = turns_of(group)

    def advantages(rows: Any) -> list[float]:
        found = base_advantages(rows, segments_from_turns(rows), config.objective, config.rollout)
        return [float(row[0]) for row in found.tokens]

    assert len(group) > 1
    assert set(advantages(turns)) == {0.0}
    together = advantages([*turns, *method.joined()])
    assert all(value < 0 for value in together[: len(turns)])
    assert all(value > 0 for value in together[len(turns) :])


def _parts(config: Any, model: Any) -> tuple[Any, list[Any], list[Any], Any]:
    """A prepared method, segments and advantages with its rows at the end, and their number."""
    trajectories = mixed(config)
    method = prepared(config, trajectories, model)
    turns = [*turns_of(trajectories), *method.joined()]
    segments = segments_from_turns(turns)
    learner = Learner(config, model, small.student(config))
    return method, segments, learner.advantages(turns, segments).tokens, len(method.joined())


def _both(config: Any, model: Any) -> tuple[Any, list[Any], list[Any], Any, Any]:
    """A prepared method, all segments, its own rows (segment, turn, advantage), the gradient of
    everything, and that of the base alone; the model's is zero afterwards."""
    method, segments, advantages, n = _parts(config, model)
    first = len(segments) - n
    term = method.token_term(whole(len(segments)))
    found = base_pass(config, model, segments, advantages, term, tokens=2000)
    silent = [*advantages[:first], *(torch.zeros_like(row) for row in advantages[first:])]
    own = base_pass(config, model, segments, silent, None)
    model.zero_grad()
    joined = list(zip(segments[first:], method.joined(), advantages[first:], strict=True))
    return method, segments, joined, found, own


def test_the_gradient_is_that_of_the_clipped_loss_and_of_minus_f_times_a() -> None:
    config = config_of("luffy", auxiliary__luffy__weight=0.5, auxiliary__luffy__gamma=0.2)
    model = small.model()
    method, segments, joined, found, own = _both(config, model)
    count = sum(s.trained for s in segments)
    total = torch.zeros(())
    for segment, turn, adv in joined:
        target = method.setup.student.target(turn.command)
        mask = torch.tensor(target.loss_mask)
        p = token_logprobs(model, collate([segment])).logprobs[0][mask].exp()
        total = total - 0.5 * (p / (p + 0.2) * adv[mask].float()).sum() / count
    assert float(adv[0]) > 0
    total.backward()
    torch.testing.assert_close(found, own + gradient(model), rtol=1e-4, atol=1e-6)
    assert gradient(model).abs().max() > 1e-5


def test_a_mean_over_a_reply_is_one_over_the_whole_reply() -> None:
    config = config_of("luffy", objective__aggregation="seq-mean-token-mean")
    model = small.model()
    method, segments, joined, found, own = _both(config, model)
    total = torch.zeros(())
    for segment, turn, adv in joined:
        mask = torch.tensor(method.setup.student.target(turn.command).loss_mask)
        p = token_logprobs(model, collate([segment])).logprobs[0][mask].exp()
        share = len(segments) * segment.trained
        total = total - (p / (p + 0.1) * adv[mask].float()).sum() / share
    assert 0 < int(mask.sum()) < segment.trained
    total.backward()
    torch.testing.assert_close(found, own + gradient(model), rtol=1e-4, atol=1e-6)
    assert gradient(model).abs().max() > 1e-5


def test_own_rows_keep_their_loss_and_are_not_asked_for() -> None:
    config = config_of("luffy")
    model = small.model()
    method, segments, _, n = _parts(config, model)
    first = len(segments) - n
    own = Step(0, 0, 0, 2, tuple(range(first)))
    assert method.token_term(own) is None
    term = method.token_term(whole(len(segments)))
    adv = torch.arange(3.0)[:, None].expand(3, 2)
    batch = collate([make_segment((1,), (2, 3))] * 3)
    kept = term.advantages(adv, torch.zeros(3, 2), batch, (0, first, 1))
    assert kept.tolist() == [[0.0, 0.0], [0.0, 0.0], [2.0, 2.0]]
    assert not any(term.needs(turn) for turn in range(len(segments)))
    assert term.loss(torch.zeros(2, 2), batch, (0, 1)) is None


def test_the_counts_of_a_step_hold_the_joined_rows_with_their_whole_replies() -> None:
    config = config_of("luffy")
    model = small.model()
    method, segments, _, n = _parts(config, model)
    first = len(segments) - n
    term = method.token_term(Step(0, 0, 0, 2, (0, 1, first)))
    assert term._counts.tokens == sum(segments[i].trained for i in (0, 1, first))
    assert term._counts.sequences == 3
    assert term._counts.length == config.rollout.max_new_tokens


def test_the_oracles_commands_become_likelier() -> None:
    config = config_of("luffy", env__max_steps=12)
    failed = [t for t in mixed(config, 0.5) if not t.success]
    model = small.model()
    method = prepared(config, failed, model)
    student = method.setup.student
    segments = [
        make_segment(t.prompt_ids, t.response_ids, mask=student.target(t.command).loss_mask)
        for t in method.joined()
    ]
    before = logprob(model, segments)
    metrics = learn(config, model, failed, iterations=3)
    assert logprob(model, segments) > before + 0.5
    assert metrics["luffy/p"] > method.metrics()["luffy/p"] > 0
    assert metrics["kl_old"] < 5, "joined rows carry the policy's own log-probs"


@pytest.mark.parametrize("objective", ["ppo", "reinforce_pp", "none"])
def test_there_has_to_be_a_group(objective: str) -> None:
    with pytest.raises(ConfigError, match=rf"luffy.*objective\.name={objective} has none"):
        prepared(config_of("luffy", objective__name=objective), [])


def test_the_format_control_trains_the_policys_own_replies_alone() -> None:
    config = config_of("luffy", auxiliary__format_only={}, optim__steps=1)
    trajectories, model = mixed(config), small.model()
    metrics = learn(config, model, trajectories)
    alone = config_of("format_only", objective__name="none", optim__steps=1)
    assert metrics["luffy/rows"] > 0
    expected = learn(alone, small.model(), trajectories)["loss/format_only"]
    assert metrics["loss/format_only"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("objective", ["gigpo", "hgpo", "graphgpo", "rloo", "gspo", "dr_grpo"])
def test_it_joins_every_kind_of_group(objective: str) -> None:
    config = config_of("luffy", objective__name=objective, optim__steps=1)
    model = small.model()
    before = small.weights(model)
    learn(config, model, mixed(config))
    assert not small.same(before, small.weights(model))
    assert all(bool(torch.isfinite(value).all()) for value in small.weights(model).values())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weight", -1.0, r"auxiliary\.luffy\.weight=-1"),
        ("gamma", 0.0, r"auxiliary\.luffy\.gamma=0"),
        ("oracle_budget_s", 0.0, r"auxiliary\.luffy\.oracle_budget_s=0"),
    ],
)
def test_fields_are_checked(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("luffy", **{f"auxiliary__luffy__{field}": value})
