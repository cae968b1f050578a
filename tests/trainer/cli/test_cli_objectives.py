"""`sero objectives`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.trainer.cli.conftest import Sero
from trainer.catalogue import CATALOGUE
from trainer.cli.objectives import show


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


def test_a_pipe_gets_each_objective_on_one_line_with_its_paper_and_page(
    sero: Sero, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    outcome = sero("objectives")
    for entry in CATALOGUE:
        (line,) = (line for line in outcome.lines if line.split()[0] == entry.name)
        assert line.endswith(f"  {entry.page}.md")
        assert f"  {entry.title}  " in line
        assert entry.arxiv is None or f"  {entry.arxiv}  " in line
        assert ", ".join(entry.needs) in line
    assert "Pages are in docs/objectives/." in outcome.lines[-1]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (59, "name what"),
        (60, "name what arXiv"),
        (80, "name what arXiv page"),
        (100, "name what arXiv needs page"),
        (125, "name what source arXiv needs page"),
        (150, "name what source arXiv needs passes page"),
    ],
)
def test_a_narrow_terminal_loses_columns_and_cuts_no_name(width: int, columns: str) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    show(CATALOGUE, console)
    lines = file.getvalue().splitlines()
    assert lines[1].split() == columns.split()
    assert "…" not in file.getvalue()
    firsts = {line.split()[0] for line in lines}
    assert {entry.name for entry in CATALOGUE} <= firsts
    words = set(file.getvalue().split())
    if "arXiv" in columns:
        assert {entry.arxiv for entry in CATALOGUE if entry.arxiv} <= words
    if "page" in columns:
        assert {f"{entry.page}.md" for entry in CATALOGUE} <= words
        assert max(len(line) for line in lines[1:-3]) <= width
    assert any(line.startswith("Not shown") for line in lines) == (width < 150)
