"""What the numbers of base objectives are made of: KL, length, groups of equal outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.fakes import make_turn
from tests.trainer.hand_turns import Hand, hand, padded, token_rows
from tests.trainer.learning.base_numbers import (
    CASES,
    EVERY,
    GROUPED,
    advantages_of,
    config_of,
    values_for,
)
from trainer.config import ConfigError
from trainer.learning.base_advantages import (
    turn_advantages,
)
from trainer.objectives.ppo import ppo_trajectory, ppo_turnwise, turn_gae
from trainer.objectives.reinforce_pp import (
    reinforce_pp_advantages,
)
from trainer.rollouts.data import (
    Turn,
)

# ------------------------------------------------------------------------------ what is paid


def _kl(kind: str, d: float) -> float:
    return {"k1": -d, "k2": d * d / 2, "k3": math.expm1(d) - d}[kind]


def _kl_rows(made: Hand, reference: Sequence[Tensor], kind: str) -> list[list[float]]:
    """KL estimates of each token, in plain Python."""
    return [
        [_kl(kind, float(r) - old) for r, old in zip(row, turn.logprobs, strict=True)]
        for row, turn in zip(reference, made.turns, strict=True)
    ]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("name", EVERY)
def test_the_kl_in_the_reward(name: str, kind: str) -> None:
    made = hand()
    config = config_of(
        name, objective__kl_coef=0.5, objective__kl_placement="reward", objective__kl_kind=kind
    )
    values, reference = values_for(config, made), token_rows(made, 2)
    found = advantages_of(config, made.turns, values, reference)
    kl = _kl_rows(made, reference, kind)
    every = [value for row in kl for value in row]
    assert found.kl == pytest.approx(sum(every) / len(every), rel=1e-9)

    paid = replace(
        made, rewards=made.rewards - 0.5 * torch.tensor([sum(row) for row in kl]).double()
    )
    rows = torch.cat([torch.tensor(row, dtype=torch.float64) for row in kl])
    cost = torch.zeros(made.mask.shape, dtype=torch.float64).masked_scatter(made.mask, rows)
    tokens = (made.rewards, made.valid, made.tid)
    if name == "reinforce_pp":
        want = reinforce_pp_advantages(*tokens, made.mask, kl_M_T=cost, kl_coef=0.5)[0][made.mask]
    elif values is not None and name == "turn_gae":
        first = torch.stack([row[0] for row in values])
        each = turn_gae(paid.rewards, made.valid, made.tid, first, made.t).advantages
        want = each[:, None].expand(made.mask.shape)[made.mask]
    elif values is not None:
        value_M_T = padded(values, made.mask)
        if name == "ppo":
            both = ppo_turnwise(*tokens, value_M_T, made.mask, token_rewards_M_T=-0.5 * cost)
        else:
            both = ppo_trajectory(
                *tokens, value_M_T, made.mask, made.t, token_rewards_M_T=-0.5 * cost
            )
        want = both.advantages[made.mask]
    else:
        pure = next(f for n, settings, f in CASES if n == name and not settings)
        want = pure(paid)[:, None].expand(made.mask.shape)[made.mask]
    torch.testing.assert_close(torch.cat(found.tokens), want, rtol=1e-5, atol=1e-6)
    plain = advantages_of(config_of(name), made.turns, values)
    assert not torch.allclose(torch.cat(plain.tokens), want, atol=1e-3)
    with pytest.raises(ValueError, match="needs the reference's log-probs"):
        advantages_of(config, made.turns, values)


def test_o22_estimator_and_placement_are_settings_of_their_own() -> None:
    for kind in ("k1", "k2", "k3"):
        for placement in ("reward", "loss"):
            settings = {"objective__kl_kind": kind, "objective__kl_placement": placement}
            if (kind, placement) == ("k1", "loss"):
                with pytest.raises(ConfigError, match="gradient of k1 does not contain"):
                    config_of("grpo", **settings)
                continue
            objective = config_of("grpo", objective__kl_coef=0.1, **settings).objective
            assert objective.kl_in_loss == (placement == "loss")
    assert not config_of("grpo", objective__kl_coef=0.0).objective.kl_in_loss


def test_the_kl_in_the_loss_is_not_in_the_reward() -> None:
    made, config = hand(), config_of("grpo", objective__kl_coef=0.5)
    found = advantages_of(config, made.turns, reference=token_rows(made, 2))
    assert torch.equal(
        torch.cat(found.tokens), torch.cat(advantages_of(config_of("grpo"), made.turns).tokens)
    )
    assert found.kl is None


def test_long_replies_cost_reward() -> None:
    """Limit 24, buffer 20: replies of 4 tokens are in bounds, one of 5 costs a twentieth."""
    made = hand()
    plain, long = config_of("dapo"), config_of("dapo", objective__overlong_buffer=20)
    in_bounds = turn_advantages(made.turns, plain.objective, plain.rollout)
    found = turn_advantages(made.turns, long.objective, long.rollout)
    changed = [t.tid for t, a, b in zip(made.turns, in_bounds, found, strict=True) if a != b]
    assert set(changed) == {"e", "f"}, "f has a reply of 5 tokens; e is its group"
    scores = torch.tensor([10.0, 10.0 - 1 / 20], dtype=torch.float64)
    z = (scores - scores.mean()) / (scores.std() + 1e-6)
    e = [t.tid for t in made.turns].index("e")
    torch.testing.assert_close(found[e : e + 3], torch.stack([z[0], z[1], z[1]]))
    half = config_of("dapo", objective__overlong_buffer=20, objective__overlong_factor=0.0)
    assert torch.equal(turn_advantages(made.turns, half.objective, half.rollout), in_bounds)


def test_what_length_costs_makes_no_group_one_of_different_outcomes() -> None:
    made = hand()
    config = config_of("dapo", objective__overlong_buffer=20, objective__drop_constant_groups=True)
    found = turn_advantages(made.turns, config.objective, config.rollout)
    constant = torch.tensor([t.uid != "g0" for t in made.turns])
    assert (found[constant] == 0).all()
    assert (found[~constant] != 0).all()


def test_what_length_costs_is_no_distance_on_the_graph() -> None:
    made = hand()
    settings = {"objective__graph__episode_weight": 0.0}
    plain = config_of("graphgpo", **settings)
    long = config_of("graphgpo", objective__overlong_buffer=24, **settings)
    a, b = (turn_advantages(made.turns, c.objective, c.rollout) for c in (plain, long))
    assert a.abs().max() > 0.1
    assert torch.equal(a, b)
    whole = config_of("graphgpo", objective__overlong_buffer=24)
    assert not torch.equal(b, turn_advantages(made.turns, whole.objective, whole.rollout))


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_equal_outcomes_can_be_dropped(name: str) -> None:
    made = hand()
    keep, drop = config_of(name), config_of(name, objective__drop_constant_groups=True)
    kept = turn_advantages(made.turns, keep.objective, keep.rollout)
    dropped = turn_advantages(made.turns, drop.objective, drop.rollout)
    mixed = made.uid == 0
    assert torch.equal(dropped[mixed], kept[mixed])
    assert (dropped[~mixed] == 0).all()
    # A malformed reply, or a longer way to the win, would have been judged.
    assert (kept[~mixed] != 0).any()


def test_graded_rewards_and_the_graph_of_wins() -> None:
    """A purchase with a score below 1 is paid and is still no win: nothing leads to SUCCESS."""

    def purchase(tid: str, reward: float, success: bool) -> Turn:
        return make_turn(
            tid=tid, done=True, reward=reward, success=success, next_observation=tid,
            stop_reason="success" if success else "purchase",
        )  # fmt: skip

    turns = [purchase("a", 1.0, True), purchase("b", 0.5, False), purchase("c", 0.0, False)]
    settings = {"rollout__reward": "env", "objective__use_std": False}
    graph = config_of("graphgpo", objective__graph__episode_weight=0.0, **settings)
    episode = config_of("graphgpo", objective__graph__step_weight=0.0, **settings)
    # d(SUCCESS) = 0: 10 * 0.1; the others end nowhere: d = d_max + 1 = 2, 10 * 0.1^3.
    values = torch.tensor([1.0, 0.01, 0.01], dtype=torch.float64)
    found = turn_advantages(turns, graph.objective, graph.rollout)
    torch.testing.assert_close(found, values - values.mean())
    found = turn_advantages(turns, episode.objective, episode.rollout)
    torch.testing.assert_close(found, torch.tensor([5.0, 0.0, -5.0], dtype=torch.float64))


def test_success_that_was_not_kept_to_the_end_is_no_win_on_the_graph() -> None:
    """As for rewards: only a last turn can win."""

    def pair(done: bool) -> list[Turn]:
        return [
            make_turn(tid="a", t=0, success=True, observation="p"),
            make_turn(tid="a", t=1, done=True, success=done, observation="q"),
            make_turn(tid="b", t=0, done=True, observation="p", stop_reason="purchase"),
        ]  # fmt: skip

    config = config_of("graphgpo", objective__graph__episode_weight=0.0)
    for done in (True, False):
        found = turn_advantages(pair(done), config.objective, config.rollout)
        assert bool((found != 0).any()) == done
