"""Skill-SD: k3 with an importance ratio, from a library or from hindsight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.skill_runs import (
    ANALYSER,
    LIMITS,
    config_of,
    gradient,
    gradient_of,
    hindsight_skill,
    library_text,
    logprobs,
    made,
    prepared,
    skilled,
    turns_of,
    whole_step,
)
from tests.trainer.short_runs import learn
from trainer.config import ConfigError
from trainer.config.auxiliary.skills import SkillSdConfig
from trainer.learning.update import score_segments
from trainer.rollouts.data import Turn, segments_from_turns

# The library's settings are at their defaults: they would be refused.
HINDSIGHT = {
    "source": "hindsight", "entries": [], "retrieval": "keyword", "analyser": ANALYSER,
}  # fmt: skip


def _hand(turns: Sequence[Turn], model: Any, skill: Callable[[Turn], str]) -> torch.Tensor:
    """mean of exp(S - O) * (exp(d) - 1 - d), d = T - S."""
    student, mask = logprobs(model, segments_from_turns(turns))
    with torch.no_grad():
        teacher, _ = logprobs(model, skilled(turns, skill))
    old = torch.cat([torch.tensor(turn.logprobs, dtype=torch.float64) for turn in turns])
    s, d = student[mask], teacher[mask] - student[mask]
    return ((s - old).exp() * (d.exp() - 1 - d)).mean()


@pytest.mark.parametrize("source", ["library", "hindsight"])
def test_the_trained_loss_is_the_definition(source: str) -> None:
    section = {"weight": 0.5, **(HINDSIGHT if source == "hindsight" else {})}
    config, model = config_of("skill_sd", section), small.model()
    # Rollouts of a slightly other policy, so that the ratio is not 1.
    turns = turns_of(config, model)
    turns = [replace(t, logprobs=tuple(x - 0.1 for x in t.logprobs)) for t in turns]
    method = prepared(config, model, turns)
    found = gradient(method, model, turns, tokens=500)
    skill = hindsight_skill(turns) if source == "hindsight" else library_text
    expected = gradient_of(model, lambda: 0.5 * _hand(turns, model, skill))
    assert expected.abs().max() > 1e-5
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    loss = method.metrics()["skill_sd/loss"]
    assert loss == pytest.approx(float(_hand(turns, model, skill).detach()), rel=1e-4)


def test_figures_are_those_of_the_source() -> None:
    model = small.model()
    library, hindsight = config_of("skill_sd"), config_of("skill_sd", HINDSIGHT)
    turns = turns_of(library, model)
    first = prepared(library, model, turns).metrics()
    second = prepared(hindsight, model, turns).metrics()
    assert first["skill_sd/retrieved"] == 1.0
    assert first["skill_sd/skills_mean"] == 2.0
    assert "skill_sd/skill_valid" not in first
    assert second["skill_sd/skill_valid"] == 1.0
    assert "skill_sd/retrieved" not in second
    for figures in (first, second):
        assert figures["skill_sd/gap_abs_mean"] > 0
        assert "skill_sd/gate_mean" not in figures, "there is no gate"


def test_learning_moves_the_policy_towards_itself_with_the_skill() -> None:
    """The sampled estimate of KL(S || T) falls on the tokens it was made of."""
    config = config_of("skill_sd", {"weight": 1.0}, objective__name="none", optim__lr=1e-3)
    model = small.model()
    turns = turns_of(config, model)
    with torch.no_grad():
        teacher, mask = logprobs(model, skilled(turns, library_text))
        first, _ = logprobs(model, segments_from_turns(turns))

    def k3() -> float:
        with torch.no_grad():
            student, _ = logprobs(model, segments_from_turns(turns))
        d = (teacher - student)[mask]
        ratio = (student - first)[mask].exp()
        return float((ratio * (d.exp() - 1 - d)).mean())

    before = k3()
    for _ in range(3):
        learn(config, turns, model)
    assert k3() < before


def test_state_follows_the_source() -> None:
    model = small.model()
    ucb = made(config_of("skill_sd", {"retrieval": "ucb"}), model)
    assert set(ucb.state()) == {"library", "counts", "rewards"}
    ucb.load_state(ucb.state())
    keyword = made(config_of("skill_sd"), model)
    assert set(keyword.state()) == {"library"}
    hindsight = made(config_of("skill_sd", HINDSIGHT), model)
    assert hindsight.state() == {}
    hindsight.load_state({})
    with pytest.raises(ValueError, match="keeps no state"):
        hindsight.load_state(ucb.state())


def test_the_current_teacher_is_asked_before_every_step() -> None:
    config, model = config_of("skill_sd", {"teacher": "current"}), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    term: Any = method.token_term(whole_step(turns))
    now = score_segments(model, skilled(turns, library_text), LIMITS)
    for m, row in enumerate(now):
        torch.testing.assert_close(term.teacher[m], row)


def test_defaults() -> None:
    c = SkillSdConfig()
    assert (c.weight, c.source, c.teacher, c.skill_mode) == (
        0.1, "library", "frozen", "episode_only",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"weight": -1.0}, r"auxiliary\.skill_sd\.weight=-1"),
        ({"entries": []}, r"give either auxiliary\.skill_sd\.skills"),
        ({"source": "hindsight"}, r"auxiliary\.skill_sd\.source=hindsight uses no library"),
        ({**HINDSIGHT, "skills": "a.json"}, r"source=hindsight uses no library"),
        ({"analyser": {"attempts": 0}}, r"auxiliary\.skill_sd\.analyser\.attempts=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("skill_sd", section)
