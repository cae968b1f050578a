"""The README and the pages under docs/ say what is so: code runs, links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
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


_PLACE = re.compile(r"(?:tests|examples|trainer|oracles|agent_envs)/[\w/*.-]*[\w*]")


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_files_that_are_named_exist(path: Path) -> None:
    """`tests/...` anywhere, other places where they stand as code of their own."""
    if path.name == "CHANGELOG.md":
        pytest.skip("it names what was")
    text = path.read_text(encoding="utf-8")
    named = {m[0] for m in re.finditer(r"(?<![\w/.-])tests/[\w/*.-]*[\w*]", text)}
    named |= {word for word in re.findall(r"`([^`\s]+)`", text) if _PLACE.fullmatch(word)}
    assert sorted(name for name in named if not any(ROOT.glob(name))) == []


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_modules_that_are_run_exist(path: Path) -> None:
    named = re.findall(r"python -m ((?:trainer|oracles|agent_envs)[\w.]*)", path.read_text("utf-8"))
    places = [name.replace(".", "/") for name in named]
    assert [p for p in places if not any(ROOT.glob(f"{p}.py")) and not (ROOT / p).is_dir()] == []


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [p.name for p in ROOT.glob("docs/*.md") if f"](docs/{p.name}" not in readme] == []


def test_the_own_environment_of_the_training_page_trains(tmp_path: Path) -> None:
    """Its YAML as it is written, on the game of the adoption page."""
    game = (ROOT / "docs/adoption.md").read_text(encoding="utf-8")
    (code,) = (code for code in _BLOCK.findall(game) if "class Corridor" in code)
    (tmp_path / "corridor.py").write_text(code, encoding="utf-8")
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8")
    (config,) = (c for c in re.findall(r"```yaml\n(.*?)```", page, re.S) if "corridor:" in c)
    (tmp_path / "own.yaml").write_text(config, encoding="utf-8")
    small = {
        "run.iterations": 1, "rollout.tasks": 2, "rollout.rollouts": 2, "eval.initial": False,
        "warmstart.demonstrations": 4, "warmstart.steps": 2, "model.tokenizer_games": 4,
        "model.hidden_size": 32, "model.layers": 1, "model.heads": 2, "model.kv_heads": 1,
        "model.intermediate_size": 48, "model.vocab_size": 400,
    }  # fmt: skip
    words = [word for key, value in small.items() for word in (f"--{key}", str(value).lower())]
    python = [sys.executable, "-m", "trainer.cli.main"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def sero(*words: str, where: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*python, *words], cwd=where, env=env, capture_output=True, text=True, check=False
        )

    done = sero("train", "own.yaml", "--out", "run", *words)
    assert done.returncode == 0, done.stderr
    assert "promises" not in done.stdout, "the module says nothing when it is imported"
    told = json.loads((tmp_path / "run/warmstart.json").read_text(encoding="utf-8"))
    assert (told["oracle"], told["demonstration_success"]) == ("corridor:Digger", 1.0)
    # From elsewhere the module is not found, and the message says what helps.
    elsewhere = sero("eval", str(tmp_path / "run"), where=ROOT)
    assert elsewhere.returncode == 2
    assert "set PYTHONPATH to its folder" in elsewhere.stderr


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
