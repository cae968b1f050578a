"""Which wrappers a snapshot covers, and how others are added."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

import agent_envs
from agent_envs import (
    SnapshotMismatch,
    UnknownWrapperState,
    register_stateless_wrapper,
    register_wrapper_state,
    remaining_steps,
    restore,
    snapshot,
)
from agent_envs.wrapper_state import _HANDLERS, REFUSED
from tests.agent_envs.kinds import make, play


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    """Registrations of one test do not reach the next."""
    monkeypatch.setattr("agent_envs.wrapper_state._HANDLERS", dict(_HANDLERS))


class Plain(gymnasium.Wrapper):
    """No attribute of its own."""

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class Echo(gymnasium.ObservationWrapper):
    """No attribute of its own, and another view of the observation."""

    def observation(self, observation: str) -> str:
        return f"<{observation}>"


class Counter(gymnasium.Wrapper):
    """Counts steps in a list, and shows the count."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.seen: list[str] = []

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        self.seen.append(observation)
        return (f"{len(self.seen)}: {observation}", *rest)


class SlotCounter(gymnasium.Wrapper):
    """State in a slot instead of the instance dict."""

    __slots__ = ("count",)


def register_counter(**kwargs: Any) -> None:
    def put_back(wrapper: Counter, state: tuple[str, ...]) -> None:
        wrapper.seen[:] = state  # in place, as users do

    register_wrapper_state(Counter, lambda w: tuple(w.seen), put_back, **kwargs)


@pytest.mark.parametrize("cls", [Counter, SlotCounter])
def test_an_unknown_stateful_wrapper_is_refused_by_name(cls):
    plain = make("lamp")
    plain.reset(seed=0)
    env = wrappers.TimeLimit(cls(make("lamp")), 5)
    env.reset(seed=0)
    for call in (snapshot, agent_envs.fork, lambda e: restore(e, snapshot(plain))):
        with pytest.raises(UnknownWrapperState, match=f"{cls.__name__}.*register_wrapper_state"):
            call(env)
    assert remaining_steps(env) == 5


def test_the_error_names_the_attributes():
    env = Counter(make("lamp"))
    env.reset(seed=0)
    with pytest.raises(UnknownWrapperState, match=r"\(seen\)"):
        snapshot(env)


def test_a_wrapper_without_attributes_is_stateless():
    env = Echo(Plain(make("lamp")))
    first, _ = env.reset(seed=0)
    snap = snapshot(env)
    assert [name for name, _ in snap.wrappers[:2]] == [
        f"{__name__}:Echo",
        f"{__name__}:Plain",
    ]
    env.step("roll")
    assert restore(env, snap)[0] == first
    assert first.startswith("<Welcome")


def test_register_wrapper_state_adds_one():
    register_counter()
    env = wrappers.TimeLimit(Counter(make("lamp")), 9)
    _, info = env.reset(seed=0)
    info = play(env, info, [3, 5])[-1][-1]
    snap = snapshot(env)
    expected = play(env, info, [1, 2, 3, 4])
    assert expected[0][0].startswith("3: ")
    restore(env, snap)
    assert play(env, info, [1, 2, 3, 4]) == expected
    other = agent_envs.fork(env)
    play(other, info, [1])
    restore(env, snap)
    assert len(env.env.seen) == 2
    fresh = wrappers.TimeLimit(Counter(make("lamp")), 9)
    restore(fresh, agent_envs.Snapshot.from_bytes(snap.to_bytes()))
    assert play(fresh, info, [1, 2, 3, 4]) == expected


def test_a_wrapper_that_makes_its_state_in_reset():
    class Late(gymnasium.Wrapper):
        def reset(self, **kwargs: Any) -> Any:
            self.count = 0
            return self.env.reset(**kwargs)

        def step(self, action: Any) -> Any:
            self.count += 1
            return self.env.step(action)

    register_wrapper_state(
        Late, lambda w: (w.count,), lambda w, state: setattr(w, "count", state[0])
    )
    env, fresh = Late(make("lamp")), Late(make("lamp"))
    with pytest.raises(agent_envs.ResetNeeded):
        snapshot(env)
    env.reset(seed=0)
    env.step("roll")
    snap = snapshot(env)
    bad = agent_envs.Snapshot.from_bytes(snap.to_bytes())
    object.__setattr__(bad, "data_revision", "other")
    with pytest.raises(SnapshotMismatch, match="other"):
        restore(fresh, bad)
    assert "count" not in vars(fresh)
    restore(fresh, snap)
    assert (fresh.count, snapshot(fresh)) == (1, snap)


def test_a_registration_is_for_the_exact_type():
    class Derived(Counter):
        pass

    register_counter()
    env = Derived(make("lamp"))
    env.reset(seed=0)
    with pytest.raises(UnknownWrapperState, match="Derived"):
        snapshot(env)


def test_observe_shows_the_restored_observation():
    register_counter(observe=lambda w, observation, info: f"{len(w.seen)}: {observation}")
    env = Counter(make("lamp"))
    env.reset(seed=0)
    last = env.step("roll")[0]
    snap = snapshot(env)
    env.step("roll")
    assert restore(env, snap)[0] == last


def test_register_stateless_wrapper():
    class Named(gymnasium.Wrapper):
        def __init__(self, env: gymnasium.Env) -> None:
            super().__init__(env)
            self.name = "constant"

    env = Named(make("lamp"))
    env.reset(seed=0)
    with pytest.raises(UnknownWrapperState, match="register_stateless_wrapper"):
        snapshot(env)
    register_stateless_wrapper(Named)
    assert restore(env, snapshot(env))[1]["command_valid"] is True


@pytest.mark.parametrize("cls", [int, "Counter", gymnasium.Env])
def test_only_wrappers_can_be_registered(cls):
    for call in (register_stateless_wrapper, lambda c: register_wrapper_state(c, tuple, print)):
        with pytest.raises(TypeError, match=r"gymnasium\.Wrapper"):
            call(cls)


def test_a_check_guards_a_registered_wrapper():
    def check(wrapper: Counter, state: tuple[Any, ...]) -> None:
        if not all(isinstance(item, str) for item in state):
            raise ValueError("expected texts")

    register_counter(check=check)
    env = Counter(make("lamp"))
    env.reset(seed=0)
    env.step("roll")
    snap = snapshot(env)
    bad = snap.wrappers[0][0], (1, 2)
    with pytest.raises(SnapshotMismatch, match="expected texts"):
        restore(env, with_wrappers(snap, (bad, *snap.wrappers[1:])))
    assert snapshot(env) == snap


def with_wrappers(snap: agent_envs.Snapshot, states: tuple[Any, ...]) -> agent_envs.Snapshot:
    return agent_envs.Snapshot(
        snap.format,
        snap.env_id,
        snap.task_id,
        snap.state,
        snap.steps_left,
        snap.rng_state,
        states,
        snap.data_revision,
    )


def test_a_failing_restore_puts_every_wrapper_back():
    """The inner wrapper refuses after the outer ones have changed, and so does the env."""

    class Picky(Counter):
        pass

    def refuse(wrapper: Picky, state: tuple[Any, ...]) -> None:
        if "bad" in state:
            wrapper.seen.append("half done")
            raise RuntimeError("no")
        wrapper.seen[:] = state

    register_counter()
    register_wrapper_state(Picky, lambda w: tuple(w.seen), refuse)
    env = wrappers.RecordEpisodeStatistics(Counter(Picky(make("lamp", "limit"))))
    _, info = env.reset(seed=0)
    info = play(env, info, [3, 5])[-1][-1]
    before = snapshot(env)
    start_time = env.episode_start_time
    control = play(agent_envs.fork(env), info, range(1, 9))
    names = [name for name, _ in before.wrappers]
    states = [state for _, state in before.wrappers]
    changed = (9, 1.0, 9, *states[0][3:])
    bad = (changed, ("a",), ("bad",), *states[3:])
    with pytest.raises(SnapshotMismatch, match="RuntimeError: no"):
        restore(env, with_wrappers(before, tuple(zip(names, bad, strict=True))))
    assert snapshot(env) == before

    worse = with_wrappers(before, tuple(zip(names, (changed, *states[1:]), strict=True)))
    object.__setattr__(worse, "state", ((99, 0, False), *before.state[1:]))
    with pytest.raises(SnapshotMismatch, match="not possible"):
        restore(env, worse)
    assert snapshot(env) == before
    assert env.episode_start_time == start_time
    assert play(env, info, range(1, 9)) == control


@pytest.mark.parametrize("started", [True, False])
def test_a_failing_view_puts_the_env_back(started):
    """The wrapper fails on the restored observation, when all else has been restored."""

    def picky(observation: str) -> str:
        if "dice make" in observation:
            raise ValueError("no dice")
        return observation

    source = wrappers.TransformObservation(make("lamp", "limit"), str, None)
    source.reset(seed=3)
    source.step("roll")
    env = wrappers.TransformObservation(make("lamp", "limit"), picky, None)
    _ = env.unwrapped.np_random
    if started:
        env.reset(seed=0)
        env.step("fly")
        before = snapshot(env)
    with pytest.raises(SnapshotMismatch, match=r"ValueError: no dice.*unchanged"):
        restore(env, snapshot(source))
    if started:
        assert snapshot(env) == before
    else:
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step("fly")


def test_another_stack_or_other_limits_are_refused():
    env = make("lamp", "limit")
    env.reset(seed=0)
    snap = snapshot(env)
    plain = make("lamp")
    with pytest.raises(SnapshotMismatch, match=r"TimeLimit.*outermost first"):
        restore(plain, snap)
    longer = wrappers.TimeLimit(make("lamp"), 8)
    with pytest.raises(SnapshotMismatch, match="max_episode_steps=7"):
        restore(longer, snap)
    swapped = wrappers.Autoreset(wrappers.TimeLimit(make("lamp"), 7))
    with pytest.raises(SnapshotMismatch, match="Autoreset"):
        restore(swapped, snap)
    buffers = [wrappers.RecordEpisodeStatistics(make("lamp"), size) for size in (3, 4)]
    buffers[0].reset(seed=0)
    with pytest.raises(SnapshotMismatch, match="buffer_length=3"):
        restore(buffers[1], snapshot(buffers[0]))


def test_every_wrapper_of_gymnasium_is_decided():
    """Known, refused with a reason, or for arrays (no text env can be inside)."""
    arrays = {
        "ArrayConversion",
        "JaxToNumpy",
        "JaxToTorch",
        "NumpyToTorch",
        "ClipAction",
        "RescaleAction",
        "DiscretizeAction",
        "GrayscaleObservation",
        "RescaleObservation",
        "ResizeObservation",
        "DiscretizeObservation",
        "AddRenderObservation",
        "vector",
    }
    for name in wrappers.__all__:
        if name not in arrays:
            cls = getattr(wrappers, name)
            assert (cls in _HANDLERS) != (cls in REFUSED), name


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda env: wrappers.DelayObservation(env, 2), "DelayObservation.*not kept"),
        (lambda env: wrappers.RenderCollection(env), "RenderCollection.*without bound"),
    ],
)
def test_wrappers_with_hidden_state_are_refused_with_the_reason(build, reason):
    env = build(make("lamp", render_mode="ansi"))
    env.reset(seed=0)
    with pytest.raises(UnknownWrapperState, match=reason):
        snapshot(env)


def test_a_refused_wrapper_can_still_be_registered():
    def put_back(wrapper: Any, state: tuple[str, ...]) -> None:
        wrapper.observation_queue.clear()
        wrapper.observation_queue.extend(state)

    register_wrapper_state(
        wrappers.DelayObservation,
        lambda w: tuple(w.observation_queue),
        put_back,
        observe=lambda w, observation, info: "",
    )
    env = wrappers.DelayObservation(make("lamp"), 1)
    env.reset(seed=0)
    snap = snapshot(env)
    expected = [env.step("roll")[0] for _ in range(4)]
    restore(env, snap)
    assert [env.step("roll")[0] for _ in range(4)] == expected


def test_episode_statistics_go_back():
    env = wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(make("lamp"), 4), 3)
    env.reset(seed=0)
    for _ in range(4):
        info = env.step("roll")[-1]
    assert (info["episode"]["r"], info["episode"]["l"]) == (1.0, 4)
    env.reset()
    env.step("roll")
    snap = snapshot(env)
    for _ in range(3):
        info = env.step("roll")[-1]
    assert (info["episode"]["r"], info["episode"]["l"]) == (1.0, 4)
    env.reset()
    restore(env, snap)
    assert (env.episode_count, env.episode_lengths, env.episode_returns) == (1, 1, 0.25)
    assert list(env.length_queue) == [4]
    assert env.length_queue.maxlen == 3
    env.step("fly")
    for _ in range(2):
        info = env.step("roll")[-1]
    assert (info["episode"]["r"], info["episode"]["l"]) == (0.75, 4)


def test_restoring_in_a_fresh_env_counts_as_reset():
    source = gymnasium.make("TestLamp-v0", max_episode_steps=3)
    source.reset(seed=0)
    fresh = gymnasium.make("TestLamp-v0", max_episode_steps=3)
    with pytest.raises(gymnasium.error.ResetNeeded):
        fresh.step("roll")
    restore(fresh, snapshot(source))
    for _ in range(3):
        *_, truncated, _ = fresh.step("roll")
    assert truncated is True


@pytest.mark.parametrize("count", [1 << 31, 1 << 70, -1, True, 2.0, "2"])
def test_an_impossible_step_count_is_refused(count):
    env = make("lamp", "timed")
    env.reset(seed=0)
    before = snapshot(env)
    forged = before.wrappers[0][0], (count,)
    with pytest.raises(SnapshotMismatch, match="one count"):
        restore(env, with_wrappers(before, (forged, *before.wrappers[1:])))
    assert snapshot(env) == before


@pytest.mark.parametrize("action", [7, b"roll", ["roll"], float("nan"), np.str_("roll"), None])
def test_a_sticky_action_of_any_type_goes_back(action):
    def sticky() -> gymnasium.Env:
        return wrappers.StickyAction(make("lamp"), 0.9, (2, 2))

    env, fresh = sticky(), sticky()
    env.reset(seed=0)
    env.step(action)
    snap = agent_envs.Snapshot.from_bytes(snapshot(env).to_bytes())
    restore(fresh, snap)
    assert snapshot(fresh) == snap
    expected = [env.step("go east") for _ in range(9)]
    assert [fresh.step("go east") for _ in range(9)] == expected


def test_a_normalised_reward_goes_back_exactly():
    env = wrappers.NormalizeReward(make("lamp"))
    env.reset(seed=0)
    for _ in range(5):
        env.step("roll")
    snap = agent_envs.Snapshot.from_bytes(snapshot(env).to_bytes())
    expected = [env.step("roll")[1] for _ in range(6)]
    env.reset(seed=3)
    restore(env, snap)
    assert [env.step("roll")[1] for _ in range(6)] == expected
    assert len(np.unique(expected)) > 3
