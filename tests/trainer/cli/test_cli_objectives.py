"""`sero objectives`."""

from __future__ import annotations

from tests.trainer.cli.conftest import Sero
from trainer.catalogue import CATALOGUE


def test_everything_is_listed_with_its_number(sero: Sero) -> None:
    outcome = sero("objectives", "--json")
    assert outcome.code == 0
    assert outcome.figures["objectives"] == [entry.as_dict() for entry in CATALOGUE]
    names = [line.split()[0] for line in outcome.lines if line.strip()]
    assert {entry.name for entry in CATALOGUE} <= set(names)
    assert names.index("turn_gae") < names.index("sero")
    assert outcome.lines[0].startswith("base objectives (objective.name)")


def test_words_filter(sero: Sero) -> None:
    outcome = sero("objectives", "Snapshots", "roots", "--json")
    assert outcome.code == 1
    outcome = sero("objectives", "oracle", "dpo", "--json")
    (found,) = outcome.figures["objectives"]
    assert outcome.code == 0
    assert (found["name"], found["forward"], found["backward"]) == ("step_dpo", 2, 2)
    assert found["needs"] == ["snapshots", "oracle"]
    assert not any(line.startswith("base") for line in outcome.lines)
    assert any(line.startswith("auxiliary objectives") for line in outcome.lines)


def test_nothing_found_is_no_success(sero: Sero) -> None:
    outcome = sero("objectives", "telepathy")
    assert outcome.code == 1
    assert outcome.lines == ["no objective has 'telepathy'"]
