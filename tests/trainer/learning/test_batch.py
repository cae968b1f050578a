"""From turns to advantages and parts, and the order of tasks."""

from __future__ import annotations

import pytest
import torch

from agent_envs.prompting.history import History
from tests.trainer import small
from trainer.learning.base_advantages import turn_advantages
from trainer.learning.batch import constant_groups, partition, trained_turns
from trainer.rng import stream
from trainer.rollouts.metrics import rollout_metrics
from trainer.rollouts.rollout import Episode, Trajectory
from trainer.worlds.tasks import spread, tasks_at


def test_advantages_of_a_mixed_group_by_hand() -> None:
    """Two wins of four, one malformed reply: paper flavour, penalty 0.1."""
    from tests.fakes import make_turn

    turns = [
        make_turn(tid="a", t=0, format_valid=False),
        make_turn(tid="a", t=1, done=True, success=True),
        make_turn(tid="b", t=0, done=True, success=True),
        make_turn(tid="c", t=0, done=True),
        # A reward without success, and success without an end, are no win.
        make_turn(tid="d", t=0, done=True, reward=1.0),
        make_turn(tid="d", t=1, success=True),
    ]
    config = small.small_config()
    scores = torch.tensor([9.9, 10.0, 0.0, 0.0], dtype=torch.float64)
    z = (scores - scores.mean()) / (scores.std() + 1e-6)
    expected = torch.stack([z[0], z[0], z[1], z[2], z[3], z[3]])
    torch.testing.assert_close(turn_advantages(turns, config.objective, config.rollout), expected)


def test_constant_groups_can_be_dropped_despite_format_penalties() -> None:
    from tests.fakes import make_turn

    turns = [make_turn(tid=str(i), done=True, format_valid=i > 0) for i in range(3)]
    keep = small.small_config()
    drop = small.small_config(objective__drop_constant_groups=True)
    assert turn_advantages(turns, keep.objective, keep.rollout)[0] < -1
    assert turn_advantages(turns, drop.objective, drop.rollout).tolist() == [0.0, 0.0, 0.0]


def test_graded_rewards_make_groups_of_equal_success_differ() -> None:
    from tests.fakes import make_turn

    paid = [make_turn(tid=str(i), done=True, reward=r) for i, r in enumerate((0.5, 0.0, 0.5))]
    config = small.small_config(rollout__reward="env", objective__drop_constant_groups=True)
    # 10 * (0.5, 0, 0.5): mean 10/3, standard deviation 5 / sqrt(3)
    expected = torch.tensor([0.57735, -1.15470, 0.57735], dtype=torch.float64)
    advantage = turn_advantages(paid, config.objective, config.rollout)
    torch.testing.assert_close(advantage, expected, atol=1e-5, rtol=0)
    assert constant_groups(paid) == {"g0"}
    assert constant_groups(paid, "env") == frozenset()
    alike = [make_turn(tid=str(i), done=True, reward=0.5) for i in range(3)]
    assert constant_groups(alike, "env") == {"g0"}


def test_an_end_that_is_no_success_is_still_an_end() -> None:
    from tests.fakes import make_turn

    masked = small.small_config(objective__mask_truncated=True).objective
    ends = ("success", "purchase", "step_limit", "context_overflow", "wrapper_limit", None)
    turns = [
        make_turn(tid=str(i), t=t, done=t == 1 and end is not None, stop_reason=end if t else None)
        for i, end in enumerate(ends)
        for t in (0, 1)
    ]
    assert trained_turns(turns, masked)[::2] == [True, True, False, False, False, False]
    assert trained_turns(turns, masked)[1::2] == [True, True, False, False, False, False]
    assert all(trained_turns(turns, small.small_config().objective))


def test_o28_degenerate_groups_are_counted() -> None:
    from tests.fakes import make_turn

    draws = stream(0, purpose="test").random((4000, 2)) < 0.18
    turns = [
        make_turn(uid=str(g), tid=f"{g}.{i}", done=True, success=bool(won))
        for g, group in enumerate(draws)
        for i, won in enumerate(group)
    ]
    share = len(constant_groups(turns)) / 4000
    # 0.18^2 + 0.82^2 = 0.7048, standard deviation 0.0072
    assert share == pytest.approx(0.7048, abs=0.03)


def test_partition_is_even_complete_and_keyed() -> None:
    parts = partition(11, 4, stream(0, purpose="a"))
    assert sorted(len(p) for p in parts) == [2, 3, 3, 3]
    assert sorted(i for p in parts for i in p) == list(range(11))
    assert parts == partition(11, 4, stream(0, purpose="a"))
    assert parts != partition(11, 4, stream(0, purpose="b"))
    assert partition(1, 3, stream(0)) in ([[0], [], []], [[], [0], []], [[], [], [0]])


def test_the_task_schedule_is_one_permutation_after_another() -> None:
    ids = [f"t{i}" for i in range(5)]
    flat = [task for i in range(4) for task in tasks_at(ids, 5, 3, i)]
    for epoch in range(4):
        assert sorted(flat[5 * epoch : 5 * epoch + 5]) == ids
    assert flat[:5] != flat[5:10]
    # Cutting it into iterations of another size gives the same sequence.
    assert [task for i in range(10) for task in tasks_at(ids, 2, 3, i)] == flat
    assert tasks_at(ids, 5, 4, 0) != flat[:5]


def test_spread_keeps_ends_and_shares() -> None:
    ids = [f"a{i}" for i in range(6)] + [f"b{i}" for i in range(3)]
    assert spread(ids, 3) == ("a0", "a3", "b0")
    assert spread(ids, None) == spread(ids, 99) == tuple(ids)


def test_o28_the_logged_share_of_degenerate_groups() -> None:
    draws = stream(1, purpose="test").random((4000, 2)) < 0.18
    trajectories = [
        Trajectory(
            Episode(f"t{g}", str(g), f"{g}.{i}", 0), "pick", (), (), History(), bool(won),
            float(won), "success" if won else "step_limit",
        )
        for g, group in enumerate(draws)
        for i, won in enumerate(group)
    ]  # fmt: skip
    metrics = rollout_metrics(trajectories, [])
    assert metrics["frac_degenerate_groups"] == pytest.approx(0.7048, abs=0.03)
    assert metrics["mixed_group_share"] == 1 - metrics["frac_degenerate_groups"]
