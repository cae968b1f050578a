"""SDAR: retrieved skills, three gates, and a bandit that survives a resume."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer import small
from tests.trainer.methods.skill_runs import (
    LIMITS,
    SKILLS,
    config_of,
    gradient,
    gradient_of,
    library_text,
    logprobs,
    made,
    prepared,
    skilled,
    turns_of,
    whole_step,
)
from tests.trainer.short_runs import learn, run_config
from trainer.config import ConfigError, from_dict, resolve
from trainer.config.auxiliary.skills import SdarConfig
from trainer.learning.update import score_segments
from trainer.loop import train
from trainer.methods.protocol import Rollouts
from trainer.models.policy import collate, token_distributions
from trainer.rollouts.data import Turn, segments_from_turns
from trainer.runs.checkpoint import CheckpointError


def _hand(
    turns: Sequence[Turn], model: Any, gate: str, center: str = "none"
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and the gates of all tokens, everything in one batch."""
    student, mask = logprobs(model, segments_from_turns(turns))
    with torch.no_grad():
        teacher, _ = logprobs(model, skilled(turns, library_text))
        log_p = token_distributions(model, collate(segments_from_turns(turns))).double()
    s, t = student[mask], teacher[mask]
    h = -(log_p.exp() * log_p).sum(-1) / math.log(log_p.shape[-1])
    gap = t - s.detach()
    score = {"gap": gap, "entropy": h, "soft_or": 1 - (1 - h) * (1 - gap)}[gate]
    g = torch.sigmoid(5.0 * score)
    c = float(g.mean()) if center == "mean" else 0.0
    return ((g - c) * (t - s)).mean(), g


@pytest.mark.parametrize(
    ("gate", "center"),
    [("gap", "none"), ("entropy", "none"), ("soft_or", "none"), ("entropy", "mean")],
)
def test_the_trained_loss_is_the_definition(gate: str, center: str) -> None:
    section = {"gate": gate, "gate_center": center, "weight": 0.5}
    config, model = config_of("sdar", section), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    found = gradient(method, model, turns, tokens=500)
    expected = gradient_of(model, lambda: 0.5 * _hand(turns, model, gate, center)[0])
    assert expected.abs().max() > 1e-5
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    loss, g = _hand(turns, model, gate, center)
    figures = method.metrics()
    assert figures["sdar/loss"] == pytest.approx(float(loss.detach()), rel=1e-3)
    assert figures["sdar/gate_mean"] == pytest.approx(float(g.mean()), rel=1e-3)
    active = float((g > 0.5).double().mean())
    assert figures["sdar/gate_active"] == pytest.approx(active, abs=1e-6)


def test_entropies_are_those_of_the_weights_before_the_step() -> None:
    config, model = config_of("sdar", {"gate": "entropy"}), small.model()
    turns = turns_of(config, model)
    method = prepared(config, model, turns)
    with torch.no_grad():
        for mine, new in zip(model.parameters(), small.model(seed=5).parameters(), strict=True):
            mine.copy_(new)
    term: Any = method.token_term(whole_step(turns))
    entropy, gate_mean = term.extra
    log_p = token_distributions(model, collate(segments_from_turns(turns))).double()
    h = -(log_p.exp() * log_p).sum(-1) / math.log(log_p.shape[-1])
    torch.testing.assert_close(
        torch.cat([entropy[m] for m in range(len(turns))]).double(), h, rtol=1e-4, atol=1e-5
    )
    assert gate_mean is None


def test_defaults() -> None:
    c = SdarConfig()
    assert (c.weight, c.beta, c.gate, c.gate_center, c.teacher) == (
        0.01, 5.0, "gap", "none", "frozen",
    )  # fmt: skip
    assert (c.skills, c.entries, c.retrieval, c.k) == (None, (), "keyword", 1)
    assert c.exploration == math.sqrt(2)


def test_only_groups_with_a_skill_take_part() -> None:
    """Keywords: `put` calls for one skill, `look` and `examine` for the other; `xyz` for none."""
    section = {
        "retrieval": "keyword",
        "entries": [{**SKILLS[0], "keywords": ["put"]}],
        "allow_missing": True,
    }
    config, model = config_of("sdar", section), small.model()
    turns = turns_of(config, model)
    uids = sorted({turn.uid for turn in turns})
    turns = [
        replace(turn, goal="put it down" if turn.uid == uids[0] else "look around")
        for turn in turns
    ]
    method = prepared(config, model, turns)
    assert set(method._frozen) == {m for m, turn in enumerate(turns) if turn.uid == uids[0]}
    assert method.metrics()["sdar/retrieved"] == 0.5
    assert method.metrics()["sdar/skills_mean"] == 0.5
    assert method.metrics()["sdar/arms_used"] is None


def test_o24_every_type_of_task_says_how_many_skills_it_loaded() -> None:
    """None for a type is an error, unless that was allowed."""
    section = {"retrieval": "keyword", "entries": [{**SKILLS[0], "keywords": ["put"]}]}
    config, model = config_of("sdar", section), small.model()
    turns = turns_of(config, model)
    uids = sorted({turn.uid for turn in turns})
    kinds = {
        uid: ("put it down", "placing") if uid == uids[0] else ("look", "looking") for uid in uids
    }
    turns = [replace(turn, goal=kinds[turn.uid][0], task_type=kinds[turn.uid][1]) for turn in turns]
    with pytest.raises(
        ConfigError, match=r"no skill for tasks of the type 'looking'.*allow_missing"
    ):
        prepared(config, model, turns)
    allowed = config_of("sdar", {**section, "allow_missing": True})
    figures = prepared(allowed, model, turns).metrics()
    assert figures["sdar/loaded/placing"] == 1.0
    assert figures["sdar/loaded/looking"] == 0.0


def test_random_choices_are_keyed_by_iteration_and_group() -> None:
    section = {
        "retrieval": "random",
        "entries": [{"name": str(i), "text": f"number {i} is the skill"} for i in range(50)],
    }
    config, model = config_of("sdar", section), small.model()
    turns = turns_of(config, model)
    first = prepared(config, model, turns)._segments
    assert prepared(config, model, turns)._segments == first
    assert prepared(config, model, turns, iteration=1)._segments != first
    backwards = prepared(config, model, turns[::-1])._segments
    count = len(turns)
    assert [backwards[count - 1 - m].ids for m in range(count)] == [first[m].ids for m in first]
    texts = {
        turns[m].uid: small.tokenizer().decode(list(row.ids)).split("number ")[1][:2]
        for m, row in first.items()
    }
    assert len(texts) == 2
    assert len(set(texts.values())) == 2


def test_the_bandit_learns_from_the_outcomes_of_its_choices() -> None:
    config, model = config_of("sdar", {"retrieval": "ucb"}), small.model()
    turns = turns_of(config, model)
    method = made(config, model)
    assert method.state()["counts"].tolist() == [0, 0]
    won = {(turn.uid, turn.tid) for turn in turns if turn.success}
    runs = {(turn.uid, turn.tid) for turn in turns}
    method.prepare(Rollouts(0, turns, segments_from_turns(turns)), model)
    state = method.state()
    assert int(state["counts"].sum()) == len(runs)
    assert float(state["rewards"].sum()) == len(won)
    assert state["rewards"].dtype == torch.float64
    other = made(config, model)
    other.load_state(state)
    assert {k: v.tolist() for k, v in other.state().items()} == {
        k: v.tolist() for k, v in state.items()
    }
    assert other.library.stats == method.library.stats
    used = int((state["counts"] > 0).sum())
    assert method.metrics()["sdar/arms_used"] == used


def test_the_choice_knows_earlier_iterations_only() -> None:
    """What is chosen first does not depend on how the rollouts ended."""
    config, model = config_of("sdar", {"retrieval": "ucb"}), small.model()
    turns = turns_of(config, model)
    lost = [replace(turn, success=False) for turn in turns]
    assert prepared(config, model, turns)._segments == prepared(config, model, lost)._segments


def test_state_of_another_library_is_refused() -> None:
    config, model = config_of("sdar", {"retrieval": "ucb"}), small.model()
    state = made(config, model).state()
    other = config_of(
        "sdar", {"retrieval": "ucb", "entries": [SKILLS[0], {"name": "z", "text": "another one"}]}
    )
    with pytest.raises(ValueError, match="another library of skills"):
        made(other, model).load_state(state)
    with pytest.raises(ValueError, match="it holds nothing, expected"):
        made(config, model).load_state({})
    plain = made(config_of("sdar"), model)
    plain.load_state(plain.state())
    with pytest.raises(ValueError, match=r"\['counts', 'library', 'rewards'\], expected \['lib"):
        plain.load_state(state)


@pytest.mark.parametrize("retrieval", ["keyword", "full", "random", "ucb"])
@pytest.mark.parametrize(
    "change",
    [
        {"name": "table"},
        {"text": "put it down somewhere else"},
        {"keywords": ["carry"]},
        {"keywords": []},
    ],
)
def test_a_library_that_was_edited_is_refused_however_skills_are_chosen(
    retrieval: str, change: dict[str, Any], tmp_path: Path
) -> None:
    path, model = tmp_path / "skills.json", small.model()
    path.write_text(json.dumps(SKILLS), encoding="utf-8")
    section = {"skills": str(path), "entries": [], "retrieval": retrieval}
    config = config_of("sdar", section)
    state = made(config, model).state()
    made(config, model).load_state(state)
    path.write_text(json.dumps([{**SKILLS[0], **change}, SKILLS[1]]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"order of auxiliary\.sdar\.skills have changed since"):
        made(config, model).load_state(state)
    path.write_text(json.dumps(SKILLS[::-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="another library of skills"):
        made(config, model).load_state(state)


def test_texts_and_keywords_do_not_run_into_each_other() -> None:
    model = small.model()
    states = [
        made(
            config_of("sdar", {"entries": [{"name": "a", "text": text, "keywords": words}]}), model
        )
        for text, words in (("go b", ["c"]), ("go b c", []), ("go", ["b", "c"]), ("go", ["b c"]))
    ]
    assert len({tuple(method.state()["library"].tolist()) for method in states}) == 4


def test_a_run_whose_file_of_skills_was_edited_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "skills.json"
    path.write_text(json.dumps(SKILLS), encoding="utf-8")
    section = {"skills": str(path), "retrieval": "full"}
    config = run_config(tmp_path, run__iterations=2, eval__tasks=1, auxiliary__sdar=section)
    train(config, tmp_path / "run", until=1)
    path.write_text(json.dumps([{**SKILLS[0], "text": "leave it"}, SKILLS[1]]), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"auxiliary\.sdar\.skills have changed since"):
        train(config, tmp_path / "run", resume=True)


def test_learning_alone_raises_the_policys_tokens(tmp_path: Path) -> None:
    """With the library in a file."""
    path = tmp_path / "skills.json"
    path.write_text(json.dumps(SKILLS), encoding="utf-8")
    section = {"weight": 1.0, "beta": 0.0, "skills": str(path), "entries": []}
    config = config_of("sdar", section, objective__name="none")
    model = small.model()
    turns = turns_of(config, model)
    segments = segments_from_turns(turns)
    before = torch.cat(score_segments(model, segments, LIMITS)).mean()
    learn(config, turns, model)
    assert torch.cat(score_segments(model, segments, LIMITS)).mean() > before + 0.1


def test_a_library_in_the_config_survives_writing_it() -> None:
    config = config_of("sdar")
    assert from_dict(resolve(config)) == config
    assert config.auxiliary.sdar is not None
    assert config.auxiliary.sdar.entries[0].keywords == ("put",)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"weight": -1.0}, r"auxiliary\.sdar\.weight=-1"),
        ({"beta": -1.0}, r"auxiliary\.sdar\.beta=-1"),
        ({"k": 0}, r"auxiliary\.sdar\.k=0"),
        ({"exploration": -1.0}, r"auxiliary\.sdar\.exploration=-1"),
        ({"entries": []}, r"give either auxiliary\.sdar\.skills"),
        ({"skills": "a.json"}, r"give either auxiliary\.sdar\.skills"),
        ({"gate": "open"}, r"auxiliary\.sdar\.gate='open' must be one of"),
    ],
)
def test_settings_that_make_no_sense_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of("sdar", section)
