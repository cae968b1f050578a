"""The README and the pages under docs/ say what is so: code runs, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import ROOT, run_python
from trainer.cli.main import COMMANDS

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"^```(?:sh|console|text)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#:\s]+)(#[^)]*)?\)")
BLOCKS = [
    (path, number, code)
    for path in PAGES
    for number, code in enumerate(_BLOCK.findall(path.read_text(encoding="utf-8")))
]


def _name(value: object) -> str | None:
    return value.name if isinstance(value, Path) else None


@pytest.mark.parametrize(("path", "number", "code"), BLOCKS, ids=_name)
def test_code_blocks_run(path: Path, number: int, code: str) -> None:
    run_python(code, env={"SERO_ALFWORLD_DATA": "", "ALFWORLD_DATA": ""})


def test_the_readme_has_a_code_example() -> None:
    assert any(path.name == "README.md" for path, _, _ in BLOCKS)


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_links_lead_to_files(path: Path) -> None:
    targets = [match[0] for match in _LINK.findall(path.read_text(encoding="utf-8"))]
    assert [t for t in targets if not (path.parent / t).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_commands_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = [line for block in _SHELL.findall(text) for line in block.splitlines()]
    used = [line.split("#")[0].split()[1:3] for line in lines if line.startswith("sero ")]
    used += [m.split() for m in re.findall(r"`sero ((?!COMMAND)[a-z]+(?: [a-z]+)?)", text)]
    known = {tuple(name.split()) for name in COMMANDS}
    groups = {name[:1] for name in known if len(name) == 2}
    unknown = [
        words
        for words in used
        if tuple(words) not in known
        and tuple(words[:1]) not in known | (groups if len(words) == 1 else set())
    ]
    assert unknown == []


def _targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_make_targets_that_are_named_exist(path: Path) -> None:
    used = set(re.findall(r"\bmake ([a-z][a-z-]+)", path.read_text(encoding="utf-8")))
    prose = {"it", "sure", "a", "the", "no"}
    assert used - prose <= _targets()


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"sero {name}" not in readme] == []


def test_the_architecture_page_names_every_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    modules = [
        path
        for package in ("agent_envs", "oracles", "trainer")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert sorted(str(p.relative_to(ROOT)) for p in modules if p.name not in page) == []
