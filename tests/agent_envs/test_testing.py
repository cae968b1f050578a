"""The conformance checks: sound envs pass, and each broken one fails with the right message."""

from __future__ import annotations

import pickle
import random
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

import agent_envs
from agent_envs import InvalidOption, testing
from agent_envs.testing import PROMISES, ConformanceError, check_snapshot_env
from tests.agent_envs import broken_envs_shared  # noqa: F401  (enters its classes)
from tests.agent_envs.broken_envs import BROKEN, ListsTooMuch, ShowsThePlan, WithView, plan
from tests.agent_envs.lamp_env import ENV_ID, LampEnv
from tests.support import full_count

HOUSES = "generated:small?seed=5&train=8&valid_seen=0&valid_unseen=0"


def shipped_plan(env: gymnasium.Env) -> tuple[str, ...]:
    """The plan that comes with a generated game."""
    inner: Any = env.unwrapped
    walkthrough = inner.games.walkthrough(inner._task_id)
    assert walkthrough is not None
    return tuple(walkthrough)


# ------------------------------------------------------------------ sound envs


@pytest.mark.parametrize("seed", [0, 3])
def test_our_env_keeps_every_promise(seed):
    env = gymnasium.make("SeroALFWorld-v0", data=HOUSES)
    report = check_snapshot_env(env, seed=seed, plan=shipped_plan)
    assert report.unchecked == ()
    assert report.passed == tuple(PROMISES)
    assert f"keeps {len(PROMISES)} promises (seed {seed})" in str(report)
    env.reset(seed=0)  # it is not closed


def test_real_games_keep_every_promise(real_games):
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split="valid_seen")
    report = check_snapshot_env(env, plan=shipped_plan, walks=2)
    assert [name for name, _ in report.unchecked] == ["schedule"]  # more tasks than it plays


STACKS: dict[str, Any] = {
    "limit": lambda env: wrappers.TimeLimit(env, 20),
    "statistics": lambda env: wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(env, 30)),
    "frames": lambda env: wrappers.FrameStackObservation(env, 3),
    "timed": lambda env: wrappers.TimeAwareObservation(
        wrappers.TimeLimit(env, 40), flatten=False, normalize_time=False
    ),
}


@pytest.mark.parametrize("stack", STACKS)
def test_wrapped_envs_keep_every_promise(stack):
    def make() -> gymnasium.Env:
        return STACKS[stack](gymnasium.make(ENV_ID))

    report = check_snapshot_env(make(), make=make, plan=plan)
    assert report.unchecked == ()


def test_a_time_limit_that_ends_episodes_breaks_no_promise():
    # Gymnasium's wrapper says that the episode is over, and then passes on every step.
    env = gymnasium.make("SeroALFWorld-v0", data=HOUSES, max_episode_steps=10)
    left = dict(check_snapshot_env(env, walks=2).unchecked)
    assert left.keys() == {"step_after_end", "success"}
    assert "TimeLimit" in left["step_after_end"]
    env = gymnasium.make("SeroALFWorld-v0", data=HOUSES, max_steps=10, max_episode_steps=10)
    assert testing.check_step_after_end(env) is None


def test_envs_of_others_pass_with_a_factory():
    for cls in (LampEnv, WithView):
        assert check_snapshot_env(cls(), make=cls, plan=plan).unchecked == ()
    report = check_snapshot_env(LampEnv(), plan=plan)
    assert {name for name, _ in report.unchecked} == {
        "reset_needed",
        "fresh_restore",
        "envs_independent",
        "close",
    }
    assert all("register the env, or give make=" in why for _, why in report.unchecked)
    assert "not checked: close" in str(report)


def test_what_cannot_be_checked_is_said():
    def make() -> LampEnv:
        return LampEnv(n_tasks=1, max_steps=None)

    report = check_snapshot_env(make(), make=make, walks=1, steps=2)
    assert dict(report.unchecked) == {
        "seeds_differ": "the env has a single task",
        "step_budget": "the episode has no limit of at most 1000 steps",
        "step_after_end": "the episode has no limit of at most 1000 steps",
        "success": "no walk ended in success: give plan=, which tells how to win",
    }
    assert testing.check_seeds_differ(make()) == "the env has a single task"
    assert testing.check_spaces(make()) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_steps", [1, 2, 3, 6, 50])
def test_sound_envs_with_short_episodes_pass(max_steps, seed):
    """In two rooms walks win early, each after another number of steps."""

    def make() -> LampEnv:
        return LampEnv(n_rooms=2, max_steps=max_steps)

    report = check_snapshot_env(make(), make=make, seed=seed)
    single = {"invalid_is_noop": "episodes have a single step"} if max_steps == 1 else {}
    won = {"success": "no walk ended in success: give plan=, which tells how to win"}
    assert {**dict(report.unchecked), **won} == {**single, **won}


def test_a_wrapper_that_cannot_be_rebuilt_is_said():
    class Mine(gymnasium.Wrapper): ...

    env = Mine(gymnasium.make(ENV_ID))
    report = check_snapshot_env(env)
    assert {name for name, _ in report.unchecked} >= {"fresh_restore", "close"}
    assert all("Mine" in why and "make=" in why for n, why in report.unchecked if n != "success")
    again = check_snapshot_env(env, make=lambda: Mine(gymnasium.make(ENV_ID)), plan=plan)
    assert again.unchecked == ()


def test_the_global_generators_are_left_as_they_were():
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()
    check_snapshot_env(LampEnv(), make=LampEnv)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


# ------------------------------------------------------------------ broken ones


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.env.__name__)
def test_a_broken_promise_is_named_with_its_cause(case):
    check = getattr(testing, f"check_{case.promise}")
    with pytest.raises(ConformanceError) as caught:
        check(case.env(), make=case.env, plan=plan)
    (failure,) = caught.value.failures
    assert failure.promise == case.promise
    text = str(caught.value)
    assert text.startswith(f"One promise is broken.\n{case.promise}: ")
    assert re.search(case.message, text, re.DOTALL), text
    for part in ("\n  found: ", "\n  expected: ", "\n  likely cause: "):
        assert text.count(part) == 1


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.env.__name__)
def test_nothing_but_what_is_broken_is_reported(case):
    with pytest.raises(ConformanceError) as caught:
        check_snapshot_env(case.env(), make=case.env, plan=plan)
    assert {failure.promise for failure in caught.value.failures} == case.all_broken


def test_every_promise_has_an_env_that_breaks_it():
    assert {case.promise for case in BROKEN} == set(PROMISES)


def test_every_promise_is_public_and_says_what_is_promised():
    for name, check in PROMISES.items():
        public = getattr(testing, f"check_{name}")
        assert public is check
        assert public.__name__ == f"check_{name}"
        assert f"check_{name}" in testing.__all__
        assert len((public.__doc__ or "").splitlines()[0]) > 20
        assert public.__doc__.splitlines()[0].endswith(".")


def test_the_error_collects_all_failures():
    env, case = ListsTooMuch, next(case for case in BROKEN if len(case.all_broken) > 3)
    with pytest.raises(AssertionError, match="promises are broken") as caught:
        check_snapshot_env(case.env(), make=case.env, plan=plan)
    assert isinstance(caught.value, agent_envs.SeroError)
    order = [failure.promise for failure in caught.value.failures]
    assert order == [name for name in PROMISES if name in case.all_broken]
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    report = check_snapshot_env(env(), make=env, plan=plan, skip=["admissible_accepted"])
    assert report.unchecked == (("admissible_accepted", "left out"),)


def test_public_keys_of_ones_own():
    assert testing.check_nothing_privileged(ShowsThePlan(), public_keys=["plan"]) is None
    with pytest.raises(ConformanceError, match="name its key in public_keys="):
        testing.check_nothing_privileged(ShowsThePlan(), public_keys=["plans"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"skip": ["snapshot_reply"]}, "did you mean 'snapshot_replay'"),
        ({"walks": 0}, "walks is an int of at least 1"),
        ({"steps": 1}, "steps is an int of at least 2"),
        ({"seed": -1}, "seed is an int of at least 0"),
        ({"env": agent_envs.make_vec(ENV_ID, 2)}, "Expected a gymnasium.Env"),
        ({"env": gymnasium.make("CartPole-v1")}, "inside the wrappers, found CartPoleEnv"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(InvalidOption, match=message):
        check_snapshot_env(**{"env": LampEnv(), **arguments})


@pytest.mark.usefixtures("reference")
def test_the_original_engine_keeps_every_promise():
    data = "generated:small?seed=5&train=1&valid_seen=0&valid_unseen=0"
    how = {"plan": shipped_plan} if full_count(0, 1) else {}  # minutes: it is slow
    env = gymnasium.make("SeroALFWorld-v0", data=data, engine="textworld", max_steps=10)
    try:
        report = check_snapshot_env(env, walks=1, steps=3, **how)
    finally:
        env.close()
    unchecked = {name for name, _ in report.unchecked}
    assert unchecked == {"seeds_differ"} | ({"success"} if not how else set())
