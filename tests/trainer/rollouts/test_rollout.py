from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent_envs.prompting import PromptView
from tests.trainer import small
from trainer.generation.base import Generation, GenerationRequest, Rounds, SamplerError
from trainer.generation.hf import HFSampler
from trainer.learning.batch import training_rewards
from trainer.rollouts.metrics import rollout_metrics
from trainer.rollouts.rollout import Episode, PlaySettings, Trajectory, play
from trainer.worlds.tasks import make_env, split_tasks


def _tasks(n: int) -> list[str]:
    return list(split_tasks(small.small_config().env, small.games(), "train")[:n])


def _play(episodes, sampler, *, envs=None, config=None, **settings):  # type: ignore[no-untyped-def]
    config = config or small.small_config()
    count = len(episodes) if envs is None else envs
    return play(
        episodes,
        [make_env(config.env, small.games(), "train") for _ in range(count)],
        small.student(config),
        sampler,
        PlaySettings(**{"max_new_tokens": 64, **settings}),
    )


def _always(text: str) -> small.CommandSampler:
    return small.CommandSampler(lambda request, prompt: text)


def test_only_live_environments_are_in_the_batch() -> None:
    config = small.small_config(env__max_steps=15)
    episodes = [Episode(task, "g", task, 0) for task in _tasks(6)]
    sampler = small.CommandSampler(lambda request, prompt: small.walkthroughs()[prompt])
    trajectories = _play(episodes, sampler, config=config)
    lengths = [len(t.turns) for t in trajectories]
    assert len(set(lengths)) > 1, "the tasks must differ in length for this test to say anything"
    expected = [sum(n > round_ for n in lengths) for round_ in range(max(lengths))]
    assert sampler.sizes == expected


def test_number_of_environments_and_order_of_episodes_change_nothing() -> None:
    sampler = HFSampler(small.model(), [small.tokenizer().eos_token_id])
    episodes = [
        Episode(task, f"g{i}", f"g{i}.{j}", 7, 3, i, j)
        for i, task in enumerate(_tasks(3))
        for j in range(2)
    ]
    settings = {"max_new_tokens": 8, "temperature": 0.9}
    whole = _play(episodes, sampler, **settings)
    two = _play(episodes, sampler, envs=2, **settings)
    backwards = _play(episodes[::-1], sampler, envs=4, **settings)[::-1]
    for left, right in ((whole, two), (whole, backwards)):
        for a, b in zip(left, right, strict=True):
            assert a.episode == b.episode
            assert [t.response_ids for t in a.turns] == [t.response_ids for t in b.turns]
            assert [t.prompt_ids for t in a.turns] == [t.prompt_ids for t in b.turns]
            assert a.history == b.history
    replies = {t.turns[0].response_ids for t in whole}
    assert len(replies) > 1, "rollouts of a group must not share one stream"


class _Stubborn:
    """A streaming sampler that answers when and in which order it likes."""

    def __init__(self, inner: HFSampler, order: str) -> None:
        self.inner, self.order = inner, order
        self.pending: dict[int, GenerationRequest] = {}
        self.calls = 0

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return self.inner.generate(requests)

    def submit(self, key: int, request: GenerationRequest) -> None:
        assert key not in self.pending
        self.pending[key] = request

    def collect(self) -> list[tuple[int, Generation]]:
        self.calls += 1
        keys = list(self.pending)
        chosen = {
            "first in, first out": keys[:1],
            "last in, first out": keys[-1:],
            "one episode to its end": [max(keys)] if keys else [],
            "backwards": keys[::-1],
            "every other": keys[::2][::-1],
        }[self.order]
        return [(key, self.generate([self.pending.pop(key)])[0]) for key in chosen]

    def drop(self) -> None:
        self.pending.clear()

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_the_order_in_which_replies_arrive_changes_nothing() -> None:
    inner = HFSampler(small.model(), [small.tokenizer().eos_token_id], join_share=0.1)
    episodes = [
        Episode(task, f"g{i}", f"g{i}.{j}", 7, 3, i, j)
        for i, task in enumerate(_tasks(3))
        for j in range(2)
    ]
    settings = {"max_new_tokens": 8, "temperature": 0.9, "envs": 4}
    expected = _play(episodes, Rounds(inner), **settings)
    orders = ("first in, first out", "last in, first out", "one episode to its end")
    for order in (*orders, "backwards", "every other"):
        sampler = _Stubborn(inner, order)
        found = _play(episodes, sampler, **settings)
        assert sampler.calls > 10
        _same_trajectories(expected, found)
    _same_trajectories(expected, _play(episodes, inner, **settings))


def _same_trajectories(left: Sequence[Trajectory], right: Sequence[Trajectory]) -> None:
    """Equal in everything; log-probs but for rounding, which batches of other sizes change."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        for x, y in zip(a.turns, b.turns, strict=True):
            assert x.logprobs == pytest.approx(y.logprobs, abs=1e-4)
        assert _without_logprobs(a) == _without_logprobs(b)


def _without_logprobs(trajectory: Trajectory) -> Trajectory:
    turns = tuple(replace(t, logprobs=(0.0,) * len(t.logprobs)) for t in trajectory.turns)
    return replace(trajectory, turns=turns)


def test_an_environment_that_is_free_takes_the_next_episode_at_once() -> None:
    """With two environments and one reply at a time, a third episode starts while the first is
    still under way."""
    inner = HFSampler(small.model(), [small.tokenizer().eos_token_id])
    sampler = _Stubborn(inner, "one episode to its end")
    config = small.small_config(env__max_steps=2)
    started: list[int] = []
    submit = sampler.submit
    sampler.submit = lambda key, request: (started.append(key), submit(key, request))[1]  # type: ignore[method-assign]
    tasks = [Episode(task, "g", task, 0) for task in _tasks(4)]
    _play(tasks, sampler, envs=2, config=config, max_new_tokens=8)
    assert started == [0, 1, 1, 2, 2, 3, 3, 0]


def test_a_rollout_that_fails_leaves_nothing_pending() -> None:
    class Broken(_Stubborn):
        def collect(self) -> list[tuple[int, Generation]]:
            if self.calls == 3:
                raise SamplerError("the server is gone")
            return super().collect()

    class Mute(_Stubborn):
        def collect(self) -> list[tuple[int, Generation]]:
            return []

    inner = HFSampler(small.model(), [small.tokenizer().eos_token_id])
    episodes = [Episode(task, "g", task, 0) for task in _tasks(3)]
    for kind, message in ((Broken, "the server is gone"), (Mute, "3 requests are pending")):
        sampler = kind(inner, "last in, first out")
        with pytest.raises(SamplerError, match=message):
            _play(episodes, sampler, max_new_tokens=8)
        assert not sampler.pending


def test_only_a_conversation_names_its_session() -> None:
    seen: list[str | None] = []

    def choose(request: GenerationRequest, prompt: str) -> str:
        seen.append(request.session)
        return "look"

    episodes = [Episode(_tasks(1)[0], "g", "t", 0, rollout=j) for j in range(2)]
    _play(episodes, small.CommandSampler(choose))
    assert set(seen) == {None}
    seen.clear()
    _play(episodes, small.CommandSampler(choose), sessions=True)
    assert len(set(seen)) == 2, "one for each episode, the same at every turn"


def test_o6_running_out_of_steps_is_no_success() -> None:
    (trajectory,) = _play([Episode(_tasks(1)[0], "g", "t", 0)], _always("look"))
    assert (trajectory.success, trajectory.stop_reason) == (False, "step_limit")
    assert len(trajectory.turns) == 6
    assert [turn.done for turn in trajectory.turns] == [False] * 5 + [True]
    assert training_rewards(trajectory.turns, 10.0).tolist() == [0.0] * 6
    assert [turn.steps_left for turn in trajectory.turns] == [6, 5, 4, 3, 2, 1]


def test_o6_winning_on_the_last_allowed_step_is_success() -> None:
    task = _tasks(1)[0]
    plan = small.games().walkthrough(task)
    assert plan is not None
    config = small.small_config(env__max_steps=len(plan))
    sampler = small.CommandSampler(lambda request, prompt: small.walkthroughs()[prompt])
    (trajectory,) = _play([Episode(task, "g", "t", 0)], sampler, config=config)
    assert (trajectory.success, trajectory.stop_reason) == (True, "success")
    assert len(trajectory.turns) == len(plan)
    assert training_rewards(trajectory.turns, 10.0).tolist() == [0.0] * (len(plan) - 1) + [10.0]
    assert [turn.reward for turn in trajectory.turns] == [0.0] * (len(plan) - 1) + [1.0]


def test_prompts_show_the_students_own_record_refusals_included() -> None:
    commands = iter(["go to nowhere 9", "look", "inventory", "look", "look", "look"])
    sampler = small.CommandSampler(lambda request, prompt: next(commands))
    (trajectory,) = _play([Episode(_tasks(1)[0], "g", "t", 0)], sampler)
    turns, student = trajectory.turns, small.student()
    assert [turn.command_valid for turn in turns[:3]] == [False, True, True]
    assert turns[1].observation == turns[0].next_observation == "Nothing happens."
    for t, turn in enumerate(turns):
        view = PromptView(
            turn.goal,
            turn.observation,
            turn.admissible,
            tuple((old.observation, old.command) for old in turns[:t]),
            t,
        )
        assert turn.prompt_ids == student.prompt(view)
        assert turn.history == tuple(
            (old.observation, old.command, old.command_valid) for old in turns[max(0, t - 2) : t]
        )
    assert "> go to nowhere 9" in small.tokenizer().decode(list(turns[2].prompt_ids))


def test_malformed_replies_act_and_are_marked() -> None:
    sampler = _always("<action>look</action>")
    (trajectory,) = _play([Episode(_tasks(1)[0], "g", "t", 0)], sampler)
    turn = trajectory.turns[0]
    assert (turn.command, turn.command_valid) == ("look", True)
    assert (turn.format_valid, turn.parse_reason) == (False, "missing_think_tag")
    assert turn.response_ids[-1] == small.tokenizer().eos_token_id


def test_o5_an_episode_of_refused_commands_shows_in_the_metrics() -> None:
    trajectories = _play([Episode(_tasks(1)[0], "g", "t", 0)], _always("> go to shelf 1"))
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    metrics = rollout_metrics(trajectories, turns)
    assert metrics["invalid_action_rate"] == 1.0
    assert metrics["command_valid_share"] == 0.0
    assert metrics["format_valid_share"] == 1.0


def test_o32_a_prompt_that_outgrows_its_limit_ends_the_episode() -> None:
    task = _tasks(1)[0]
    (probe,) = _play([Episode(task, "g", "t", 0)], _always("look"))
    sizes = [len(turn.prompt_ids) for turn in probe.turns]
    assert sizes[1] > sizes[0]
    config = small.small_config(prompt__max_prompt_tokens=sizes[0])
    (cut,) = _play([Episode(task, "g", "t", 0)], _always("look"), config=config)
    assert (cut.stop_reason, cut.success, len(cut.turns)) == ("context_overflow", False, 1)
    assert cut.turns[-1].done
    assert cut.turns[-1].stop_reason == "context_overflow"
    config = small.small_config(prompt__max_prompt_tokens=sizes[0] - 1)
    (none,) = _play([Episode(task, "g", "t", 0)], _always("look"), config=config)
    assert (none.stop_reason, none.turns) == ("context_overflow", ())


def test_greedy_needs_no_stream_and_sampling_gets_its_own() -> None:
    seen: list[GenerationRequest] = []

    def choose(request: GenerationRequest, prompt: str) -> str:
        seen.append(request)
        return "look"

    episode = Episode(_tasks(1)[0], "g", "t", 0)
    _play([episode], small.CommandSampler(choose), greedy=True)
    assert all(request.rng is None and request.greedy for request in seen)
    seen.clear()
    _play([episode], small.CommandSampler(choose), temperature=0.5)
    draws = [request.rng.random() for request in seen if request.rng is not None]
    assert len(draws) == len(set(draws)) == 6
    assert {request.temperature for request in seen} == {0.5}


def test_no_environment_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one environment"):
        _play([], _always("look"), envs=0)


def test_snapshots_are_kept_only_on_request_and_restore_each_state() -> None:
    import agent_envs

    task = _tasks(1)[0]
    (without,) = _play([Episode(task, "g", "t", 0)], _always("look"))
    assert without.snapshots == ()
    (trajectory,) = _play([Episode(task, "g", "t", 0)], small.half_expert(), snapshots=True)
    env = make_env(small.small_config().env, small.games(), "train")
    for turn, snapshot in zip(trajectory.turns, trajectory.snapshots, strict=True):
        observation, info = agent_envs.restore(env, snapshot)
        assert observation == turn.observation
        assert info["admissible_actions"] == turn.admissible
        assert info["steps_left"] == turn.steps_left
