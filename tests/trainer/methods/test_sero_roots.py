"""SERO's settings, roots and returns, each against a case by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.trainer.methods.sero_support import (
    CHOOSE,
    grown,
    lookers,
    sero_config,
)
from trainer.branches.branching import select_roots
from trainer.config import ConfigError, SeroConfig, from_dict, resolve
from trainer.rollouts.rollout import Trajectory

# ---------------------------------------------------------------------- settings


def test_the_defaults_are_the_reading_of_the_description() -> None:
    assert asdict(SeroConfig()) == {
        "weight": 0.1, "rule": "sero", "delta": 0.9, "decay": "exponential",
        "normaliser": "selected", "branch_norm": "none", "w_min": 1e-4, "z_every": "iteration",
        "pool": "failed", "scheme": "rollout_then_step", "target": "success", "gamma": 1.0,
        "return_scale": 1.0, "think_mode": "empty", "think_text": CHOOSE, "loss_tokens": None,
        "z_tokens": "command", "token_weights": "none", "oracle": "planner",
        "oracle_budget_s": 1.0, "max_depth": None, "depth_iterations": 0, "depth_start": 1,
        "depth_direction": "forward", "overlap": True, "workers": 0,
    }  # fmt: skip
    assert SeroConfig().trained_tokens == "command_closing"
    assert SeroConfig(think_mode="full").trained_tokens == "all"
    assert SeroConfig(think_mode="full", loss_tokens="command").trained_tokens == "command"


def test_a_decay_is_a_number_or_matched_and_both_round_trip() -> None:
    half = SeroConfig(delta=0.5, rule="depth")
    assert sero_config(delta="0.5", rule="depth").auxiliary.sero == half
    matched = sero_config(delta="matched", rule="depth")
    assert matched.auxiliary.sero == SeroConfig(delta="matched", rule="depth")
    assert from_dict(resolve(matched)) == matched
    with pytest.raises(ConfigError, match=r"auxiliary\.sero\.delta='most' must be of type float"):
        sero_config(delta="most")


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"delta": 1.5}, r"delta=1\.5 must lie in \[0, 1\]"),
        ({"delta": "matched", "decay": "linear"}, "decay=linear has none"),
        ({"gamma": -0.1, "target": "reward"}, r"gamma=-0\.1 must lie"),
        ({"gamma": 0.9}, "target=success has none"),
        ({"gamma": 0.9, "target": "score"}, "target=score has none"),
        ({"think_text": " "}, "think_text=' ' must be plain text"),
        ({"think_text": "a</think>b"}, "without tags"),
        ({"think_text": "a <action>"}, "without tags"),
        ({"think_text": "\u6211"}, "Chinese"),
        ({"think_mode": "full"}, r"oracle=planner has none\. Give the 'module:factory'"),
        ({"depth_iterations": -1}, "depth_iterations=-1 must be at least 0"),
        ({"depth_start": 0}, "depth_start=0 must be positive"),
        ({"scheme": "critical"}, r"scheme='critical' must be one of rollout_then_step"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    switches: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sero_config(**switches)


# ------------------------------------------------------------------------- roots


def test_schemes_choose_among_the_states_of_failed_rollouts() -> None:
    config = sero_config()
    trajectories = lookers(config)[:3]
    # A success and unequal lengths, so that every scheme and pool is told apart.
    trajectories[1] = replace(trajectories[1], success=True)
    trajectories[2] = replace(trajectories[2], turns=trajectories[2].turns[:2])

    def chosen(scheme: str, pool: str = "failed") -> list[tuple[int, int]]:
        section = SeroConfig(scheme=scheme, pool=pool)  # type: ignore[arg-type]
        found = []
        for iteration in range(80):
            (root,) = select_roots(trajectories, section, 0, iteration)
            found.append((root.index, root.t))
        return found

    assert set(chosen("first")) == {(0, 0), (2, 0)}
    assert set(chosen("last")) == {(0, 11), (2, 1)}
    assert {index for index, _ in chosen("first", "any")} == {0, 1, 2}
    share = {s: sum(i == 2 for i, _ in chosen(s)) for s in ("rollout_then_step", "uniform_state")}
    # 2 of 14 states (11 of 80 draws), or one of two rollouts (40 of 80)
    assert share["uniform_state"] < 23 < share["rollout_then_step"]
    # Schemes share their draws: the rollout that is drawn first is the same.
    assert [i for i, _ in chosen("first")] == [i for i, _ in chosen("rollout_then_step")]


# ----------------------------------------------------------------------- returns


def _paid(trajectory: Trajectory, rewards: Sequence[float]) -> Trajectory:
    turns = [
        replace(turn, reward=reward) for turn, reward in zip(trajectory.turns, rewards, strict=True)
    ]
    return replace(trajectory, turns=tuple(turns))


def test_raw_rewards_are_discounted_from_the_root() -> None:
    trajectory = _paid(lookers(sero_config())[0], [5.0, 0.25, 0.5, *([0.0] * 9)])
    plain = grown(sero_config(target="reward"), trajectory, 1)
    paid = [step.reward for step in plain.branch.steps]
    assert paid[:-1] == [0.0] * (len(paid) - 1)
    assert paid[-1] > 0
    assert len(paid) >= 2
    assert (plain.G_pi, plain.G_O) == (0.75, paid[-1])
    assert plain.gate == min(1.0, paid[-1] - 0.75)
    halved = grown(sero_config(target="reward", gamma=0.5, return_scale=4.0), trajectory, 1)
    assert halved.G_pi == 0.25 + 0.5 * 0.5
    assert 0.5 ** (len(paid) - 1) * paid[-1] == halved.G_O
    assert halved.gate == max(halved.G_O - halved.G_pi, 0.0) / 4.0
    success = grown(sero_config(), trajectory, 1)
    assert (success.G_pi, success.G_O, success.gate) == (0.0, 1.0, 1.0)
    scored = grown(sero_config(target="score"), replace(trajectory, score=0.25), 1)
    assert (scored.G_pi, scored.gate) == (0.25, scored.G_O - 0.25)


def test_a_return_that_is_not_finite_makes_the_branch_invalid() -> None:
    trajectory = _paid(lookers(sero_config())[0], [math.nan, *([0.0] * 11)])
    root = grown(sero_config(target="reward"), trajectory)
    assert (root.valid, root.gate, root.rows) == (False, 0.0, ())
    assert (root.reasons, root.gate_reason) == (("non_finite",), "invalid")
    assert grown(sero_config(target="reward"), trajectory, 1).valid, "it lies before this root"
