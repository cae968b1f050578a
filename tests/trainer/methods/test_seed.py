"""SEED: the loss that is trained is the published one, on the rows that have a skill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.fakes import ScriptedSampler
from tests.trainer import small
from tests.trainer.methods import toy_analysers
from tests.trainer.methods.skill_runs import (
    ANALYSER,
    LIMITS,
    config_of,
    gradient,
    gradient_of,
    hindsight_skill,
    logprobs,
    prepared,
    skilled,
    turns_of,
    whole_step,
)
from tests.trainer.short_runs import learn
from trainer.config import ConfigError
from trainer.config.auxiliary.skills import AnalyserConfig, SeedConfig
from trainer.learning.update import score_segments
from trainer.rollouts.data import Turn, segments_from_turns

PLACE = "tests.trainer.methods.toy_analysers"


def _hand(
    turns: Sequence[Turn], model: Any, center: str = "none", tokens: torch.Tensor | None = None
) -> torch.Tensor:
    """sum m * (g - c) * (sg[T] - S) / sum m with everything in one batch."""
    student, mask = logprobs(model, segments_from_turns(turns))
    with torch.no_grad():
        teacher, _ = logprobs(model, skilled(turns, hindsight_skill(turns)))
    mask = mask if tokens is None else mask & tokens
    gate = torch.sigmoid(5.0 * (teacher - student.detach()))
    c = {"none": 0.0, "half": 0.5, "mean": float(gate[mask].mean())}[center]
    return ((gate - c) * (teacher - student))[mask].sum() / mask.sum()


@pytest.mark.parametrize("center", ["none", "half", "mean"])
def test_the_trained_loss_is_the_definition(center: str) -> None:
    config, model = config_of("seed", {"gate_center": center, "weight": 0.25}), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    found = gradient(method, model, turns, tokens=500)
    expected = gradient_of(model, lambda: 0.25 * _hand(turns, model, center))
    assert expected.abs().max() > 1e-5
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    loss = method.metrics()["seed/loss"]
    assert loss == pytest.approx(float(_hand(turns, model, center).detach()), rel=1e-4)


def test_defaults_are_the_published_ones() -> None:
    c = SeedConfig()
    assert (c.weight, c.beta, c.gate_center, c.teacher, c.tokens) == (
        0.01, 5.0, "none", "frozen", "reply",
    )  # fmt: skip
    assert (c.start_after, c.stop_after, c.failed_only) == (0, None, False)
    assert (c.skill_mode, c.shuffle) == ("episode_only", "off")
    a = AnalyserConfig()
    assert (a.model, a.attempts, a.max_new_tokens, a.max_prompt_tokens) == (
        "policy", 2, 1024, 16384,
    )  # fmt: skip
    assert (a.temperature, a.text_limit) == (1.0, None)


def test_only_tokens_of_the_command_where_asked_for() -> None:
    config, model = config_of("seed", {"tokens": "command", "weight": 1.0}), small.model()
    turns = turns_of(config, model)
    turns[1] = replace(turns[1], response_ids=turns[1].response_ids[:1], logprobs=(-1.0,))
    student = small.student()
    width = max(len(turn.response_ids) for turn in turns)
    command = torch.tensor(
        [
            [*student.command_mask(t.response_ids), *[False] * (width - len(t.response_ids))]
            for t in turns
        ]
    )
    assert not command[1].any(), "this reply has no command"
    method = prepared(config, model, turns)
    found = gradient(method, model, turns)
    expected = gradient_of(model, lambda: _hand(turns, model, tokens=command))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    term: Any = method._terms[0]
    assert (term.counts.tokens, term.counts.sequences) == (int(command.sum()), len(turns) - 1)
    assert not term.needs(1)
    assert method.metrics()["seed/gap_think"] is None


def test_a_frozen_teacher_stays_and_a_current_one_follows() -> None:
    moved = small.model(seed=3)
    for kind in ("frozen", "current"):
        config, model = config_of("seed", {"teacher": kind}), small.model()
        turns = turns_of(config, model)
        method = prepared(config, model, turns)
        first: Any = method.token_term(whole_step(turns))
        scores = score_segments(model, list(method._segments.values()), LIMITS)
        with torch.no_grad():
            for mine, new in zip(model.parameters(), moved.parameters(), strict=True):
                mine.copy_(new)
        second: Any = method.token_term(whole_step(turns))
        after = score_segments(model, list(method._segments.values()), LIMITS)
        for m, (old, new) in enumerate(zip(scores, after, strict=True)):
            torch.testing.assert_close(first.teacher[m], old)
            torch.testing.assert_close(second.teacher[m], new if kind == "current" else old)
        assert not torch.allclose(scores[0], after[0], atol=0.1)


def test_what_the_skill_makes_likelier_becomes_likelier() -> None:
    """The loss can only raise the policy's own tokens, most where the gate is open."""
    config = config_of("seed", {"weight": 1.0}, objective__name="none", optim__lr=1e-3)
    model = small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    # Gates of a skill that fits: open on half of the turns, closed on the others.
    for m, row in method._frozen.items():
        own = torch.tensor(turns[m].logprobs)
        method._frozen[m] = own + (2.0 if m % 2 else -2.0)
        assert row.shape == own.shape
    grad = gradient(method, model, turns)
    before = [row.mean() for row in score_segments(model, segments_from_turns(turns), LIMITS)]
    with torch.no_grad():
        start = 0
        for parameter in model.parameters():
            size = parameter.numel()
            parameter -= 1e-3 * grad[start : start + size].view_as(parameter)
            start += size
    after = [row.mean() for row in score_segments(model, segments_from_turns(turns), LIMITS)]
    change = torch.stack(after) - torch.stack(before)
    assert change[1::2].mean() > 0
    assert change[1::2].mean() > change[::2].mean()


def test_learning_alone_raises_the_policys_tokens() -> None:
    config = config_of("seed", {"weight": 1.0, "beta": 0.0}, objective__name="none")
    model = small.model()
    turns = turns_of(config, model)
    segments = segments_from_turns(turns)
    before = torch.cat(score_segments(model, segments, LIMITS)).mean()
    metrics = learn(config, turns, model)
    after = torch.cat(score_segments(model, segments, LIMITS)).mean()
    assert after > before + 0.1
    assert metrics["optimizer_steps"] == 2
    assert metrics["seed/gate_mean"] == 0.5


@pytest.mark.parametrize(
    ("section", "iteration", "rows"),
    [
        ({"start_after": 2}, 1, "none"),
        ({"start_after": 2}, 2, "all"),
        ({"stop_after": 2}, 1, "all"),
        ({"stop_after": 2}, 2, "none"),
        ({"failed_only": True}, 0, "failed"),
        ({"analyser": {"model": f"{PLACE}:failures_only"}}, 0, "failed"),
    ],
)
def test_which_rows_take_part(section: dict[str, Any], iteration: int, rows: str) -> None:
    config, model = config_of("seed", section, run__iterations=3), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns, iteration=iteration)
    won = {(turn.uid, turn.tid) for turn in turns if turn.success}
    expected = {
        m
        for m, turn in enumerate(turns)
        if rows == "all" or (rows == "failed" and (turn.uid, turn.tid) not in won)
    }
    assert set(method._frozen) == expected
    figures = method.metrics()
    if rows == "none":
        assert figures["seed/skill_calls"] is None, "outside the window nobody is asked"
    if section.get("failed_only"):
        assert figures["seed/skill_valid_success"] is None, "a success is not analysed"
        assert figures["seed/skill_valid_failure"] == 1.0


def test_figures_tell_outcomes_kinds_of_token_and_skills_apart() -> None:
    section = {"analyser": {"model": f"{PLACE}:failures_only"}}
    config, model = config_of("seed", section), small.model()
    turns = turns_of(config, model)
    figures = prepared(config, model, turns).metrics()
    won = {(turn.uid, turn.tid) for turn in turns if turn.success}
    failed = [turn for turn in turns if (turn.uid, turn.tid) not in won]
    rows = skilled(failed, hindsight_skill(turns))
    gaps = [
        row.double() - torch.tensor(turn.logprobs, dtype=torch.float64)
        for turn, row in zip(failed, score_segments(model, rows, LIMITS), strict=True)
    ]
    command = [torch.tensor(small.student().command_mask(t.response_ids)) for t in failed]
    gap, inside = torch.cat(gaps), torch.cat(command)
    close = {"abs": 1e-5}
    assert figures["seed/gap_mean"] == pytest.approx(float(gap.mean()), **close)
    assert figures["seed/gap_abs_mean"] == pytest.approx(float(gap.abs().mean()), **close)
    assert figures["seed/gap_failure"] == pytest.approx(float(gap.mean()), **close)
    assert figures["seed/gap_success"] is None
    assert figures["seed/gap_command"] == pytest.approx(float(gap[inside].mean()), **close)
    assert figures["seed/gap_think"] == pytest.approx(float(gap[~inside].mean()), **close)
    gate = torch.sigmoid(5.0 * gap)
    assert figures["seed/gate_mean"] == pytest.approx(float(gate.mean()), **close)
    assert figures["seed/gate_active"] == pytest.approx(float((gap > 0).double().mean()), **close)
    assert figures["seed/rows_on"] == pytest.approx(len(failed) / len(turns))
    runs = {(turn.uid, turn.tid) for turn in turns}
    assert figures["seed/skill_valid"] == pytest.approx(1 - len(won) / len(runs))
    assert (figures["seed/skill_valid_success"], figures["seed/skill_valid_failure"]) == (0.0, 1.0)
    assert figures["seed/skill_calls"] == pytest.approx(1 + len(won) / len(runs))
    assert figures["seed/skill_too_long"] == 0.0
    words = [len(hindsight_skill(turns)(turn).split()) for turn in failed if turn.done]
    assert figures["seed/skill_words"] == pytest.approx(sum(words) / len(words))


def test_the_shuffled_control_is_measured_beside_or_trained() -> None:
    model = small.model()
    found = {}
    for kind in ("off", "measure", "train"):
        config = config_of("seed", {"shuffle": kind})
        turns = turns_of(config, model)
        found[kind] = prepared(config, model, turns)
    off, measure, train = found["off"], found["measure"], found["train"]
    assert measure._segments == off._segments
    assert "seed/shuffled_gap_mean" not in off.metrics()
    assert measure.metrics()["seed/gap_mean"] == off.metrics()["seed/gap_mean"]
    assert measure.metrics()["seed/shuffled_gap_mean"] == train.metrics()["seed/gap_mean"]
    assert measure.metrics()["seed/shuffled_gate_mean"] == train.metrics()["seed/gate_mean"]
    assert train.metrics()["seed/gap_mean"] != off.metrics()["seed/gap_mean"]
    changed = [m for m in off._segments if train._segments[m] != off._segments[m]]
    assert changed
    assert set(train._segments) == set(off._segments)


def test_steps_have_their_own_skill_in_that_mode() -> None:
    model = small.model()
    analyser = {"model": f"{PLACE}:steps"}
    prompts = {}
    for mode in ("episode_only", "episode_step"):
        config = config_of("seed", {"skill_mode": mode, "analyser": analyser})
        turns = turns_of(config, model)
        prompts[mode] = prepared(config, model, turns)._segments
    different = {
        m
        for m in prompts["episode_only"]
        if prompts["episode_only"][m] != prompts["episode_step"][m]
    }
    assert different == {m for m, turn in enumerate(turns) if turn.t == 1}


# ------------------------------------------------------------------ the policy as its own analyser


class _Asked:
    """A sampler that writes skills, and counts its calls."""

    def __init__(self, answer: Any) -> None:
        self.inner = ScriptedSampler(small.tokenizer(), answer)
        self.calls: list[int] = []
        self.requests: list[Any] = []

    def generate(self, requests: Any) -> Any:
        self.calls.append(len(requests))
        self.requests += requests
        return self.inner.generate(requests)


def _written(prompt: str) -> str:
    return toy_analysers.outcome()([{"role": "user", "content": prompt}])


def test_the_policy_analyses_all_its_trajectories_in_one_call() -> None:
    own = {"max_new_tokens": 200, "temperature": 0.7}
    config, model = config_of("seed", {"analyser": own}), small.model()
    turns, sampler = turns_of(config, model), _Asked(_written)
    method = prepared(config, model, turns, sampler=sampler)
    runs = len({(turn.uid, turn.tid) for turn in turns})
    assert sampler.calls == [runs]
    assert {(r.max_new_tokens, r.temperature, r.greedy) for r in sampler.requests} == {
        (200, 0.7, False)
    }
    other = prepared(config_of("seed", {"analyser": ANALYSER}), model, turns)
    assert method._segments == other._segments, "whoever writes it, a skill is a skill"


def test_a_policy_that_writes_no_skill_trains_nothing() -> None:
    """A tiny model, asked for real: its answers are no JSON."""
    config = config_of("seed", {"analyser": {"max_new_tokens": 6}})
    model = small.model()
    turns = turns_of(config, model)
    base, other = small.twin(model), small.twin(model)
    learn(config.replace(**{"auxiliary.seed": None}), turns, base)
    metrics = learn(config, turns, other)
    assert small.same(small.weights(base), small.weights(other))
    assert metrics["seed/skill_valid"] == 0.0
    assert metrics["seed/skill_calls"] == 2.0, "one retry"
    assert metrics["seed/skill_words"] is None


def test_draws_are_keyed_by_iteration_trajectory_and_call() -> None:
    config, model = config_of("seed", {"analyser": {"max_new_tokens": 300}}), small.model()
    turns = turns_of(config, model)

    def drawn(iteration: int, order: list[Turn]) -> dict[str, list[float]]:
        sampler = _Asked(lambda prompt: "no")
        prepared(config, model, order, iteration=iteration, sampler=sampler)
        prompts = [small.tokenizer().decode(list(r.prompt_ids)) for r in sampler.requests]
        draws: dict[str, list[float]] = {}
        for prompt, request in zip(prompts, sampler.requests, strict=True):
            draws.setdefault(prompt, []).append(request.rng.random())
        return {prompt: sorted(values) for prompt, values in draws.items()}

    first = drawn(0, turns)
    values = [value for row in first.values() for value in row]
    assert len(set(values)) == len(values), "a stream a trajectory and call"
    assert drawn(0, turns[::-1]) == first
    assert drawn(1, turns) != first


def test_a_trajectory_longer_than_the_limit_is_left_out() -> None:
    config, model = config_of("seed", {"analyser": {"max_prompt_tokens": 10}}), small.model()
    turns, sampler = turns_of(config, model), _Asked(_written)
    method = prepared(config, model, turns, sampler=sampler)
    assert sampler.calls == []
    assert method.metrics()["seed/skill_too_long"] == 1.0
    assert method.token_term(whole_step(turns)) is None


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"weight": -1.0}, r"auxiliary\.seed\.weight=-1.0"),
        ({"beta": -1.0}, r"auxiliary\.seed\.beta=-1.0"),
        ({"start_after": -1}, r"auxiliary\.seed\.start_after=-1"),
        ({"start_after": 3, "stop_after": 3}, r"auxiliary\.seed\.stop_after=3 must exceed"),
        ({"analyser": {"model": "me"}}, r"auxiliary\.seed\.analyser\.model='me' must be 'policy'"),
        ({"analyser": {"attempts": 0}}, r"auxiliary\.seed\.analyser\.attempts=0"),
        ({"analyser": {"max_new_tokens": 0}}, r"auxiliary\.seed\.analyser\.max_new_tokens=0"),
        ({"analyser": {"max_prompt_tokens": 0}}, r"analyser\.max_prompt_tokens=0"),
        ({"analyser": {"temperature": -1.0}}, r"auxiliary\.seed\.analyser\.temperature=-1"),
        ({"analyser": {"text_limit": 0}}, r"auxiliary\.seed\.analyser\.text_limit=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("seed", section)


def test_an_analyser_that_does_not_exist_is_found_when_the_run_starts() -> None:
    config = config_of("seed", {"analyser": {"model": f"{PLACE}:nobody"}})
    with pytest.raises(ConfigError, match=r"auxiliary\.seed\.analyser\.model=.*nobody"):
        prepared(config, small.model(), [])


def test_skills_are_json_that_the_toy_really_writes() -> None:
    text = _written("Task: put it down.\nOutcome: failure\n")
    assert json.loads(text)["episode_skill"].endswith("put it down.")
