"""The script that plants bugs: where it runs, what it counts, what it remembers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

MODULE = "trainer/objectives/half.py"
CLEAN = "def half(x):\n    return x / 2\n"
NEAR = "from trainer.objectives.half import half\n\n\ndef test_it():\n    assert half(4) == 2\n"
FAR = "from trainer.objectives import half\n\n\ndef test_it():\n    assert half.half(0) == 0\n"


@pytest.fixture(scope="module")
def script() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("mutants")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def tree(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one module and three test files, which the script takes for its own."""
    root = tmp_path / "checkout"
    files = {
        MODULE: CLEAN,
        "trainer/__init__.py": "",
        "trainer/objectives/__init__.py": "",
        "tests/trainer/objectives/test_half.py": NEAR,
        "tests/trainer/auxiliary/test_far.py": FAR,
        "tests/trainer/vectors/test_verify_vectors.py": "def test_vectors():\n    pass\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "-ra"\n')
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    monkeypatch.setattr(script, "ROOT", root)
    return root


def mutant(script: Any, after: str, occurrence: int = 0) -> Any:
    code = CLEAN.replace("return x / 2", after)
    place = script.mutant_sample.Place(MODULE, "core/Some", occurrence)
    return script.Mutant(place, code, 2, "return x / 2", after)


def test_bugs_are_caught_in_a_copy(script: Any, tree: Path, tmp_path: Path) -> None:
    bugs = [
        mutant(script, "return x * 2", 0),
        mutant(script, "return x / 2.0", 1),
        mutant(script, "while True: pass", 2),
        mutant(script, "return x / 2 if x else 1", 3),
    ]
    memory = script.Memory(tmp_path / "judged.jsonl")
    slow = script.PATIENCE
    try:
        script.PATIENCE = 1.5
        found, clean = script.judge_all(bugs, tmp_path / "work", 1, memory)
    finally:
        script.PATIENCE = slow
    assert [verdict.outcome for verdict in found] == ["caught", "survived", "timeout", "caught"]
    assert found[0].by == "tests/trainer/objectives/test_half.py"
    assert found[3].by == "tests/trainer/auxiliary/test_far.py"
    assert clean > 0
    assert (tree / MODULE).read_text(encoding="utf-8") == CLEAN
    assert (tmp_path / "work" / "tree0" / MODULE).read_text(encoding="utf-8") == CLEAN

    # A second run has nothing to do, until a test or the module changes.
    again, clean = script.judge_all(bugs, tmp_path / "work", 1, script.Memory(memory.path))
    assert clean is None
    assert again == [script.Verdict(v.outcome, v.by, round(v.seconds, 1)) for v in found]
    (tree / "tests/trainer/auxiliary/test_far.py").write_text("", encoding="utf-8")
    known = script.Memory(memory.path)
    assert [known.recall(bug) is None for bug in bugs] == [False, True, True, True]
    (tree / MODULE).write_text(CLEAN + "\n", encoding="utf-8")
    assert script.Memory(memory.path).recall(bugs[0]) is None


def test_near_tests_come_first_and_none_is_left_out(script: Any) -> None:
    near, far = script.ordered_tests(ROOT, "trainer/objectives/hgpo.py")
    assert near[0] == "tests/trainer/objectives/test_objectives_hgpo.py"
    assert far[0] == "tests/trainer/vectors/test_verify_vectors.py"
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in ("objectives", "auxiliary")
        for path in (ROOT / "tests" / "trainer" / folder).glob("test_*.py")
    }
    assert set(near) | set(far) == wanted | {far[0]}
    assert not set(near) & set(far)


def test_equivalent_mutants_are_few_and_argued(script: Any, tmp_path: Path) -> None:
    listed = script.set_aside()
    for entry in listed:
        text = (ROOT / entry["module"]).read_text(encoding="utf-8")
        assert entry["before"] in text, "the line has changed: is it still equivalent?"
    one = {"module": MODULE, "before": "a", "after": "b", "reason": "the same"}
    path = tmp_path / "equivalent.json"
    for wrong, message in (
        ([one] * 11, "sets 11 mutants aside, at most 10"),
        ([{**one, "reason": " "}], "expected module, before, after, reason"),
        ([{"module": MODULE}], "expected module, before, after, reason"),
    ):
        path.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(SystemExit, match=message):
            script.set_aside(path)
    path.write_text(json.dumps([{**one, "before": "return x / 2", "after": "return 2"}]))
    aside = script.set_aside(path)
    assert script.is_set_aside(mutant(script, "return 2"), aside)
    assert not script.is_set_aside(mutant(script, "return 3"), aside)


def test_annotations_are_no_bugs(script: Any) -> None:
    differs = script.mutant_sample.differs
    code = "def f(x: int | None = 1) -> int | None:\n    y: int | None = x\n    return y\n"
    assert not differs(code, code.replace("|", "+"))
    assert not differs(code, code.replace("return y", "return return"))
    assert differs(code, code.replace("= 1", "= 2"))
    assert differs(code, code.replace("return y", "return not y"))


def test_the_sample_is_the_tools_own(script: Any) -> None:
    pytest.importorskip("cosmic_ray")
    sample = script.mutant_sample
    places = sample.places(ROOT)
    drawn = [bug for bug in (sample.planted(ROOT, place) for place in places[:5]) if bug]
    assert all(bug.before != bug.after for bug in drawn)
    assert len({place.key for place in places}) == len(places) > 1000
