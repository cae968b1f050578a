"""OPID: T - O of both levels in the advantages, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.skill_runs import (
    LIMITS,
    config_of,
    hindsight_skill,
    prepared,
    skilled,
    turns_of,
    whole_step,
)
from tests.trainer.short_runs import learn
from trainer.auxiliary.skills import STEP_TITLE
from trainer.config import ConfigError
from trainer.config.auxiliary.skills import OpidConfig
from trainer.learning.update import score_segments
from trainer.rollouts.data import make_segment, segments_from_turns
from trainer.rollouts.tokens import encode_text

STEP_SKILL = "at this step open the closed thing first"


def _levels(turns: list[Any], model: Any) -> tuple[list[Any], dict[int, Any]]:
    """T_ep of every turn and T_step of second turns, their prompts written out by hand."""
    episode = score_segments(model, skilled(turns, hindsight_skill(turns)), LIMITS)
    places = [m for m, turn in enumerate(turns) if turn.t == 1]
    tokenizer, rows = small.tokenizer(), []
    for m in places:
        own = tokenizer.decode(list(turns[m].prompt_ids))
        ids = encode_text(tokenizer, f"{own}\n\n{STEP_TITLE}\n{STEP_SKILL}\n")
        rows.append(make_segment(ids, turns[m].response_ids))
    return episode, dict(zip(places, score_segments(model, rows, LIMITS), strict=True))


@pytest.mark.parametrize("mode", ["episode_step", "episode_only"])
def test_advantages_are_the_definition(mode: str) -> None:
    section = {"skill_mode": mode, "weight": 0.25}
    if mode == "episode_step":
        section["step_weight"] = 0.5
    config, model = config_of("opid", section), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    # As a critic gives them: another number for each token.
    base = [torch.arange(len(turn.response_ids)).double() + m for m, turn in enumerate(turns)]
    extra = torch.tensor([7.0], dtype=torch.float64)  # joined from elsewhere, not the method's
    shaped = method.shaped([*(row.clone() for row in base), extra])
    episode, step = _levels(turns, model)
    assert step
    added = []
    for m, turn in enumerate(turns):
        old = torch.tensor(turn.logprobs, dtype=torch.float64)
        expected = 0.25 * (episode[m].double() - old)
        if mode == "episode_step" and m in step:
            expected = expected + 0.5 * (step[m].double() - old)
        added.append(expected)
        torch.testing.assert_close(shaped[m], base[m] + expected, rtol=1e-5, atol=1e-6)
        assert not shaped[m].requires_grad
    assert torch.equal(shaped[-1], extra)
    figures = method.metrics()
    mean = float(torch.cat(added).abs().mean())
    assert figures["opid/added_abs_mean"] == pytest.approx(mean, rel=1e-4)
    share = len(step) / len(turns) if mode == "episode_step" else 0.0
    assert figures["opid/step_rows_on"] == pytest.approx(share)
    assert figures["opid/episode_rows_on"] == 1.0


@pytest.mark.parametrize(
    ("section", "levels"),
    [
        ({"step_weight": 0.0}, ["episode"]),
        ({"weight": 0.0}, []),
        ({"weight": 0.0, "step_weight": 0.5}, []),
    ],
)
def test_a_level_without_weight_is_measured_and_not_added(
    section: dict[str, Any], levels: list[str]
) -> None:
    config, model = config_of("opid", section), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    base = [torch.zeros(len(turn.response_ids), dtype=torch.float64) for turn in turns]
    shaped = method.shaped(base)
    seconds = {m for m, turn in enumerate(turns) if turn.t == 1}
    changed = {m for m, row in enumerate(shaped) if bool((row != 0).any())}
    everywhere = set(range(len(turns)))
    assert changed == (everywhere if "episode" in levels else seconds if levels else set())
    if not levels:
        assert shaped is base
        assert method.metrics()["opid/added_abs_mean"] is None
    assert method.metrics()["opid/episode_gap_mean"] is not None
    assert method.metrics()["opid/step_gap_mean"] is not None
    assert method.token_term(whole_step(turns)) is None, "there is no term in the loss"
    assert not method.has_pass(whole_step(turns))


def test_groups_without_a_signal_get_one() -> None:
    """With all rewards equal the base advantage is 0 and the teacher's opinion is left."""
    section = {"weight": 1.0, "step_weight": 1.0}
    config = config_of("opid", section, rollout__format_penalty=0.0, optim__steps=1)
    model = small.model()
    turns = [
        replace(turn, success=False, reward=0.0, task_score=0.0) for turn in turns_of(config, model)
    ]
    base = small.twin(model)
    assert learn(config.replace(**{"auxiliary.opid": None}), turns, base)["skipped_steps"] == 1
    segments = segments_from_turns(turns)
    before = torch.cat(score_segments(model, segments, LIMITS))
    added = torch.cat(
        [
            row.sign()
            for row in prepared(config, model, turns).shaped(
                [torch.zeros(segment.trained, dtype=torch.float64) for segment in segments]
            )
        ]
    )
    assert bool((added < 0).any())
    metrics = learn(config, turns, model)
    assert metrics["optimizer_steps"] == 1
    after = torch.cat(score_segments(model, segments, LIMITS))
    assert (after - before)[added < 0].mean() < 0, "what the skilled policy would not say falls"


def test_the_shuffled_control() -> None:
    model = small.model()
    found = {}
    for kind in ("off", "measure", "train"):
        config = config_of("opid", {"shuffle": kind})
        turns = turns_of(config, model)
        found[kind] = prepared(config, model, turns)
    off, measure, train = (found[kind].metrics() for kind in ("off", "measure", "train"))
    assert "opid/shuffled_episode_gap_mean" not in off
    assert measure["opid/episode_gap_mean"] == off["opid/episode_gap_mean"]
    assert measure["opid/shuffled_episode_gap_mean"] == train["opid/episode_gap_mean"]
    assert train["opid/episode_gap_mean"] != off["opid/episode_gap_mean"]


def test_defaults() -> None:
    c = OpidConfig()
    assert (c.weight, c.step_weight, c.skill_mode, c.shuffle) == (
        0.001, None, "episode_step", "off",
    )  # fmt: skip


def test_the_steps_weight_is_the_episodes_unless_given_and_goes_off_with_it() -> None:
    assert OpidConfig().of_steps == 0.001
    assert OpidConfig(weight=0.5).of_steps == 0.5
    assert OpidConfig(weight=0.5, step_weight=0.25).of_steps == 0.25
    assert OpidConfig(weight=0.5, step_weight=0.0).of_steps == 0.0
    assert OpidConfig(weight=0.0, step_weight=0.25).of_steps == 0.0


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"weight": -1.0}, r"auxiliary\.opid\.weight=-1"),
        ({"step_weight": -1.0}, r"auxiliary\.opid\.step_weight=-1"),
        ({"analyser": {"attempts": 0}}, r"auxiliary\.opid\.analyser\.attempts=0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("opid", section)
