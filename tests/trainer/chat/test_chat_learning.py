"""What an update does with conversations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.trainer import small
from tests.trainer.chat import templates, world
from trainer.learning.batch import partition_whole, trajectory_sizes
from trainer.learning.learner import Learner
from trainer.learning.update import score_segments
from trainer.methods.protocol import PassLimits
from trainer.metrics import Phases
from trainer.rng import stream
from trainer.rollouts.data import segments_from_turns


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 5))
def test_no_trajectory_is_cut_between_steps(sizes, parts):
    found = partition_whole(sizes, parts, stream(0, purpose="shuffle"))
    assert len(found) == parts
    assert sorted(i for part in found for i in part) == list(range(sum(sizes)))
    first = 0
    for size in sizes:
        own = set(range(first, first + size))
        assert any(own <= set(part) for part in found)
        first += size
    if sizes:
        share = sum(sizes) / parts
        assert all(abs(len(part) - share) < 2 * max(sizes) for part in found)


def test_an_update_runs_every_trajectory_once_and_learns():
    c = world.config(rollout__tasks=2, rollout__rollouts=3, optim__steps=2, env__max_steps=5)
    learner = world.student()
    turns = world.turns_of(world.rollouts(c, learner, world.Talker(_mixed)))
    assert trajectory_sizes(turns) == [5] * 6
    policy = world.model()
    before = small.weights(policy)
    update = Learner(c, policy, learner)
    parts = update._partition(turns, 0, 0)
    assert [len(part) for part in parts] == [15, 15]
    for part in parts:
        assert len({turns[i].tid for i in part}) == 3
    metrics = update.learn(0, turns, Phases())
    assert metrics["optimizer_steps"] >= 1
    assert not small.same(before, small.weights(policy))


def test_log_probs_of_a_conversation_are_those_of_its_turns_one_by_one():
    c, learner, policy = world.config(env__max_steps=5), world.student(), world.model()
    for template in (templates.CHATML, templates.DROPS_THOUGHTS):
        student = world.student(template)
        talker = world.Talker(_mixed, template)
        turns = world.turns_of(world.rollouts(c, student, talker))
        segments = segments_from_turns(turns)
        limits = PassLimits.of(c, learner)
        whole = score_segments(policy, segments, limits)
        alone = [score_segments(policy, [segment], limits)[0] for segment in segments]
        for a, b in zip(whole, alone, strict=True):
            assert float((a - b).abs().max()) < 1e-5


def _mixed(request) -> str:
    """Some replies are malformed, so rewards differ within a group."""
    kind = request.rng.random()
    if kind < 0.3:
        return "look"
    return f"<think>hm</think><action>{'look' if kind < 0.6 else 'inventory'}</action>"
