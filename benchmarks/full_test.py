"""Every check at its full count: writes benchmarks/results/full_test.json.

    make test-full                                    all parts that this commit has not passed yet
    make test-full ARGS="tests/oracles tests/trainer/runs"   these parts alone

A part is a folder of the suite, run by pytest with SERO_TEST_FULL=1 in two processes. Its counts,
the reasons of skips, minutes and the commit are written when it ends, so that a run that is
interrupted goes on where it was, and every part says which commit it was checked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import record

from trainer.cli.common import machine

ROOT = record.HERE.parent
RESULTS = record.HERE / "results" / "full_test.json"


def parts_of(root: Path) -> dict[str, list[str]]:
    """Part -> what pytest is given: each folder below a package's tests, and the files beside."""
    tests = root / "tests"
    found: dict[str, list[str]] = {}
    for folder in sorted(p for p in tests.iterdir() if any(p.rglob("test_*.py"))):
        inner = sorted(p for p in folder.iterdir() if p.is_dir() and any(p.rglob("test_*.py")))
        for place in (folder, *inner):
            own = place.rglob("test_*.py") if place in inner else place.glob("test_*.py")
            files = sorted(str(path.relative_to(root)) for path in own)
            if files:
                found[str(place.relative_to(root))] = files
    found["tests"] = sorted(str(path.relative_to(root)) for path in tests.glob("test_*.py"))
    return found


def chosen(parts: Sequence[str], words: Sequence[str]) -> list[str]:
    """The parts at or below the named ones; all where none is named.

    Raises:
        SystemExit: a name is no part and no folder of parts.
    """
    if not words:
        return list(parts)
    found = []
    for word in (w.rstrip("/") for w in words):
        below = [part for part in parts if part == word or part.startswith(f"{word}/")]
        if not below:
            raise SystemExit(f"{word} is none of the parts: {', '.join(parts)}.")
        found += [part for part in below if part not in found]
    return found


def run(files: Sequence[str]) -> dict[str, Any]:
    """One part: its counts, minutes and pytest's exit code."""
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={junit}", *files]
        environment = {**os.environ, "SERO_TEST_FULL": "1"}
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        # Our own pytest wrote this file a moment ago.
        cases = list(ET.parse(junit).getroot().iter("testcase")) if junit.is_file() else []
    skipped = Counter(
        skip.get("message", "") for case in cases if (skip := case.find("skipped")) is not None
    )
    failed = sum(
        case.find("failure") is not None or case.find("error") is not None for case in cases
    )
    return {
        "tests": len(cases),
        "passed": len(cases) - failed - sum(skipped.values()),
        "failed": failed,
        "skipped": dict(skipped),
        "minutes": round((time.time() - begin) / 60, 1),
        "exit_code": code,
        "checked_at": record.commit(),
    }


def totals(parts: Mapping[str, Mapping[str, Any]], every: Sequence[str]) -> dict[str, Any]:
    """Sums over parts, the commits that they were checked at, and which of `every` are missing."""
    skipped: Counter[str] = Counter()
    for part in parts.values():
        skipped.update(part["skipped"])
    return {
        **{name: sum(p[name] for p in parts.values()) for name in ("tests", "passed", "failed")},
        "skipped": dict(skipped),
        "minutes": round(sum(part["minutes"] for part in parts.values()), 1),
        "exit_code": max((part["exit_code"] for part in parts.values()), default=0),
        "checked_at": sorted({part["checked_at"] for part in parts.values()}),
        "not_checked": [name for name in every if name not in parts],
        "parts": dict(parts),
    }


def main(words: Sequence[str]) -> int:
    """Runs what is asked for, writes after each part; 0 where every part that is known passed."""
    parts, commit = parts_of(ROOT), record.commit()
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    known = {n: p for n, p in before.get("parts", {}).items() if n in parts}
    asked = chosen(list(parts), words)
    if not words:
        passed = [n for n in asked if n in known and known[n]["exit_code"] == 0]
        asked = [n for n in asked if n not in passed or known[n]["checked_at"] != commit]
    for name in asked:
        print(f"== {name}", flush=True)
        known[name] = run(parts[name])
        record.write("full_test", {**totals(known, list(parts)), "machine": machine()})
    found = totals(known, list(parts))
    if found["not_checked"]:
        print(f"not checked yet: {', '.join(found['not_checked'])}")
    return 1 if found["not_checked"] else int(found["exit_code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
