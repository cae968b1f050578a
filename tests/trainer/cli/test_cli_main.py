"""Dispatch, help and errors of the `sero` command."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

import pytest

from tests.trainer.cli.conftest import Sero
from trainer.cli import main as cli
from trainer.cli.common import printable


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_exists_and_explains_itself(sero: Sero, name: str) -> None:
    module = cli.COMMANDS[name].module
    assert importlib.util.find_spec(f"trainer.cli.{module}") is not None
    with pytest.raises(SystemExit) as exit_info:
        sero(*name.split(), "--help")
    assert exit_info.value.code == 0


def test_help_lists_every_command(sero: Sero) -> None:
    outcome = sero("--help")
    assert outcome.code == 0
    for name, command in cli.COMMANDS.items():
        assert any(name in line and command.summary in line for line in outcome.lines), name


def test_nothing_is_not_a_success(sero: Sero) -> None:
    assert sero().code == 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["plya"], "Did you mean `sero play`?"),
        (["verify", "nonsense"], "`sero verify objectives`"),
        (["xyzzy"], "`sero --help` lists"),
    ],
)
def test_unknown_command_is_named_with_a_hint(sero: Sero, words: list[str], hint: str) -> None:
    outcome = sero(*words)
    assert outcome.code == 2
    assert " ".join(words) in outcome.errors
    assert hint in outcome.errors


def test_version_of_a_checkout_that_is_not_installed(
    sero: Sero, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cli.metadata, "version", missing)
    outcome = sero("--version")
    assert outcome.code == 0
    assert outcome.lines == ["sero (a checkout that is not installed)"]


def test_a_file_is_no_run_folder(sero: Sero, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("")
    outcome = sero("eval", file)
    assert outcome.code == 2
    assert "no run folder" in outcome.errors


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_help_names_no_default_twice(
    sero: Sero, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        sero(*name.split(), "--help")
    text = capsys.readouterr().out
    assert "(default: None)" not in text
    assert "(default: )" not in text
    if name != "demo":  # two numbers of its recipe may be absent, and say what that means
        assert "None" not in text


def test_a_group_lists_its_commands(sero: Sero) -> None:
    outcome = sero("data", "--help")
    assert outcome.code == 0
    names = [line.split()[2] for line in outcome.lines]
    assert names == ["status", "fetch", "import", "generate", "export"]


def test_wrong_option_is_a_usage_error(sero: Sero) -> None:
    with pytest.raises(SystemExit) as exit_info:
        sero("data", "status", "--no-such-option")
    assert exit_info.value.code == 2


def test_control_characters_become_visible() -> None:
    assert printable("a\x1b[2J\x07b\x7f\x9b1m\r") == r"a\x1b[2J\x07b\x7f\x9b1m\r"
    assert printable("two\nlines\té 𝛑") == "two\nlines\té 𝛑"
    # A right-to-left override could make a command read as another.
    assert printable("\u202eabc") == r"\u202eabc"
