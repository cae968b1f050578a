"""The catalogue says what there is: nothing missing, nothing extra, and true of the config."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from tests.support import ROOT
from trainer.catalogue import CATALOGUE, NOT_TRAINABLE, Need, chosen, where_to_say
from trainer.config import AuxiliaryConfig, ObjectiveConfig
from trainer.config.objective import CRITIC
from trainer.methods.registry import METHODS

BASE = [entry for entry in CATALOGUE if entry.kind == "base"]
AUXILIARY = [entry for entry in CATALOGUE if entry.kind == "auxiliary"]


def test_it_names_every_objective_of_the_config_and_no_other() -> None:
    names = list(get_args(get_type_hints(ObjectiveConfig)["name"]))
    assert [entry.name for entry in BASE] == names
    assert [entry.name for entry in AUXILIARY] == list(METHODS)
    sections = {field.name for field in fields(AuxiliaryConfig)} - {"measure_gradients"}
    assert {entry.name for entry in AUXILIARY} == sections


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_entry_is_complete(entry) -> None:
    assert entry.title
    assert entry.source
    assert entry.arxiv is None or re.fullmatch(r"\d{4}\.\d{4,5}", entry.arxiv)
    assert set(entry.needs) <= set(get_args(Need))
    assert (entry.forward + entry.backward > 0) == bool(entry.rows)
    assert entry.section == ("objective" if entry.kind == "base" else f"auxiliary.{entry.name}")


@pytest.mark.parametrize("entry", BASE, ids=lambda entry: entry.name)
def test_needs_of_the_bases_are_those_of_the_config(entry) -> None:
    objective = ObjectiveConfig(name=entry.name)
    assert ("groups" in entry.needs) == objective.needs_groups
    assert ("critic" in entry.needs) == (entry.name in CRITIC)


def test_who_asks_an_oracle_has_a_budget_for_it() -> None:
    for entry in AUXILIARY:
        hint = get_type_hints(AuxiliaryConfig)[entry.name]
        section = next(kind for kind in get_args(hint) if kind is not type(None))
        names = {field.name for field in fields(section)}
        if "oracle" in entry.needs:
            assert {"oracle", "oracle_budget_s"} <= names, entry.name
        assert ("analyser" in entry.needs) <= ("analyser" in names), entry.name


def test_every_objective_has_its_page_and_the_index_leads_to_it() -> None:
    index = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")
    for entry in CATALOGUE:
        page = f"objectives/{entry.page}.md"
        assert f"[{entry.name}]({page})" in index
        assert (ROOT / "docs" / page).is_file(), page


def test_words_choose() -> None:
    assert chosen(None) == chosen("") == list(CATALOGUE)
    assert [entry.name for entry in chosen("base CRITIC")] == ["ppo", "ppo_trajectory", "turn_gae"]
    assert [entry.name for entry in chosen("2402.03300")] == ["grpo"]
    assert [entry.name for entry in chosen("snapshots")] == [
        "sero", "dagger", "corrections", "step_dpo",
    ]  # fmt: skip
    assert chosen("critic snapshots") == []
    assert chosen("gepo") == []


def test_what_cannot_be_trained_says_so_and_has_its_page() -> None:
    assert set(NOT_TRAINABLE) == {"spo3", "gepo"}
    for name in NOT_TRAINABLE:
        told = where_to_say(name)
        assert told is not None
        assert f"{name!r} cannot be trained" in told
        assert f"(docs/objectives/{name}.md)" in told
        assert (ROOT / "docs" / "objectives" / f"{name}.md").is_file()
    assert where_to_say("telepathy") is None


def test_sources_are_such_that_others_can_look_them_up() -> None:
    pages = [ROOT / "docs" / "objectives.md", *(ROOT / "docs" / "objectives").glob("*.md")]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    texts |= {entry.name: f"{entry.title} {entry.source}" for entry in CATALOGUE}
    ours = re.compile(r"\b(specs?|specifications?)\b", re.IGNORECASE)
    assert [name for name, text in texts.items() if ours.search(text)] == []
