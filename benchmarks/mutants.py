"""Plants bugs in the objectives and counts how many the tests catch.

    make mutants
    make mutants ARGS="--count 50 --seed 1"

A uniform sample of mutants (`mutant_sample.py`: Cosmic Ray's operators) over trainer/objectives and
trainer/auxiliary. Each is put into a copy of the tree, never the checkout, and the tests of these
packages and of the numeric vectors run: first the files that import the mutated module, then the
others. A mutant is caught if a test fails. One that takes more than ten times the time of the
clean run is caught too, and counted apart.

`mutants_equivalent.json` lists at most ten mutants that no test can catch, each with the reason.
They are set aside. Exit code 0: at least 95 % of the others are caught.

A run that was stopped goes on where it was. A mutant that was caught is not run again while its
module and the test file that caught it are the same; any other, while all sources and tests are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path

import mutant_sample
import record
from mutant_sample import Mutant

from trainer.cli.common import machine

ROOT = record.HERE.parent
EQUIVALENT = record.HERE / "mutants_equivalent.json"
SET_ASIDE = 10
"""At most so many mutants may be called equivalent."""
WANTED = 0.95
PATIENCE = 10.0
"""Times the clean run."""
NO_TESTS = 5
"""Exit code of pytest."""

TESTS = (
    "tests/trainer/objectives",
    "tests/trainer/auxiliary",
    "tests/trainer/vectors/test_verify_vectors.py",
)
SHARED = ("trainer/vectors", "trainer/vectors/verify.py", "tests/vectors", "tests/conftest.py",
          "tests/support.py", "tests/trainer/conftest.py")  # fmt: skip
COPIED = ("agent_envs", "oracles", "trainer", "tests", "benchmarks", "docs", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`outcome` is caught, timeout or survived; `by` the test file that failed."""

    outcome: str
    by: str = ""
    seconds: float = 0.0


class Copy:
    """A copy of the tree in which one mutant at a time lives."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        if folder.exists():
            shutil.rmtree(folder)
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *COPIED],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        self.runner = subprocess.Popen(
            [sys.executable, str(record.HERE / "mutant_runner.py")],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        """End the process that runs the tests."""
        self.runner.communicate("")

    def run(self, tests: Sequence[str], limit: float | None, *, clean: bool = False) -> Verdict:
        """Run test files until one fails."""
        assert self.runner.stdin is not None
        assert self.runner.stdout is not None
        request = {"tests": list(tests), "limit": limit, "keep": clean}
        self.runner.stdin.write(json.dumps(request) + "\n")
        self.runner.stdin.flush()
        answer = json.loads(self.runner.stdout.readline())
        code, output, seconds = answer["code"], answer["output"], answer["seconds"]
        if code is None:
            return Verdict("timeout", seconds=seconds)
        if code == 0:
            return Verdict("survived", seconds=seconds)
        if code == NO_TESTS:
            raise SystemExit(f"No test was collected in {' '.join(tests)}.")
        failed = re.search(r"^(?:FAILED|ERROR) ([^\s:]+)", output, re.MULTILINE)
        if clean:
            print(output)
        return Verdict("caught", failed.group(1) if failed else "", seconds)

    def judge(
        self, mutant: Mutant, near: Sequence[str], far: Sequence[str], limit: float
    ) -> Verdict:
        """Plant the bug, run the tests that are near to it, then the others; put it right again."""
        path = self.root / mutant.place.module
        clean = path.read_text(encoding="utf-8")
        for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            kept.unlink()
        path.write_text(mutant.code, encoding="utf-8")
        try:
            verdict = self.run(near, limit) if near else Verdict("survived")
            return self.run(far, limit) if verdict.outcome == "survived" else verdict
        finally:
            path.write_text(clean, encoding="utf-8")


def ordered_tests(root: Path, module: str) -> tuple[list[str], list[str]]:
    """The test files that import a module, those named after it first; and the others."""
    name, dotted = Path(module).stem, module.removesuffix(".py").replace("/", ".")
    files = [path for test in TESTS for path in (root / test).glob("test_*.py")]
    vectors = [root / test for test in TESTS if test.endswith(".py")]
    near, far = [], list(vectors)
    for path in sorted(files, key=lambda p: (not _named(p, name), p.as_posix())):
        imports = dotted in path.read_text(encoding="utf-8") or _named(path, name)
        (near if imports else far).append(path)
    return (
        [path.relative_to(root).as_posix() for path in near],
        [path.relative_to(root).as_posix() for path in far],
    )


def _named(test: Path, module: str) -> bool:
    return f"_{module}_" in f"{test.stem}_"


def digest(root: Path, names: Sequence[str]) -> str:
    """SHA-256 of files and folders."""
    found = hashlib.sha256()
    for name in names:
        path = root / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and file.suffix in {".py", ".json"}:
                found.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


class Memory:
    """What was judged before, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all = digest(ROOT, (*mutant_sample.PACKAGES, *SHARED, *TESTS))
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.known = {entry["key"]: entry for entry in map(json.loads, lines)}

    def recall(self, mutant: Mutant) -> Verdict | None:
        entry = self.known.get(mutant.place.key)
        if entry is None or entry["module"] != digest(ROOT, (mutant.place.module,)):
            return None
        by = entry["by"]
        if by:
            same = (ROOT / by).is_file() and entry["by_digest"] == digest(ROOT, (by,))
        else:
            same = entry["all"] == self.all
        return Verdict(entry["outcome"], by, entry["seconds"]) if same else None

    def keep(self, mutant: Mutant, verdict: Verdict) -> None:
        entry = {
            "key": mutant.place.key,
            "module": digest(ROOT, (mutant.place.module,)),
            "all": self.all,
            "outcome": verdict.outcome,
            "by": verdict.by,
            "by_digest": digest(ROOT, (verdict.by,)) if verdict.by else "",
            "seconds": round(verdict.seconds, 1),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")


def set_aside(path: Path = EQUIVALENT) -> list[dict[str, str]]:
    """The mutants that are called equivalent. Refuses more than ten, and one without a reason."""
    listed: list[dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    if len(listed) > SET_ASIDE:
        raise SystemExit(f"{path.name} sets {len(listed)} mutants aside, at most {SET_ASIDE}.")
    for entry in listed:
        if set(entry) != {"module", "before", "after", "reason"} or not entry["reason"].strip():
            raise SystemExit(f"{path.name}: expected module, before, after, reason; found {entry}.")
    return listed


def is_set_aside(mutant: Mutant, listed: Sequence[Mapping[str, str]]) -> bool:
    """Whether the bug is among the equivalent ones; lines may have moved."""
    own = (mutant.place.module, mutant.before, mutant.after)
    return any((e["module"], e["before"], e["after"]) == own for e in listed)


def judge_all(
    mutants: Sequence[Mutant], work: Path, processes: int, memory: Memory
) -> tuple[list[Verdict], float | None]:
    """A verdict for each mutant, and how long the clean run took where one was needed."""
    verdicts = {m.place.key: v for m in mutants if (v := memory.recall(m)) is not None}
    left = [m for m in mutants if m.place.key not in verdicts]
    print(f"{len(mutants)} mutants, {len(left)} to judge", flush=True)
    if not left:
        return [verdicts[m.place.key] for m in mutants], None
    copies = [Copy(work / f"tree{i}") for i in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        clean = list(pool.map(lambda copy: copy.run(TESTS, None, clean=True), copies))
        if any(run.outcome != "survived" for run in clean):
            raise SystemExit("The tests fail without a bug planted.")
        seconds = max(run.seconds for run in clean)
        print(f"clean run {seconds:.1f} s", flush=True)
        idle: queue.Queue[Copy] = queue.Queue()
        for copy in copies:
            idle.put(copy)

        def one(mutant: Mutant) -> None:
            copy = idle.get()
            try:
                near, far = ordered_tests(copy.root, mutant.place.module)
                verdict = copy.judge(mutant, near, far, PATIENCE * seconds)
            finally:
                idle.put(copy)
            memory.keep(mutant, verdict)
            verdicts[mutant.place.key] = verdict
            if verdict.outcome != "caught":
                print(f"{verdict.outcome}: {_line(mutant)}", flush=True)

        list(pool.map(one, left))
    for copy in copies:
        copy.close()
    return [verdicts[m.place.key] for m in mutants], seconds


def _line(mutant: Mutant) -> str:
    return f"{mutant.place.module}:{mutant.line}\n  - {mutant.before}\n  + {mutant.after}"


def main() -> int:
    """Draw, judge, record; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--dry", action="store_true", help="print the sample and stop")
    args = parser.parse_args()
    listed = set_aside()
    population = mutant_sample.places(ROOT)
    drawn = mutant_sample.draw(ROOT, population, args.seed)
    seen: list[Mutant | None] = []
    sound = (mutant for mutant in drawn if (seen.append(mutant), mutant is not None)[1])
    mutants = [mutant for mutant in islice(sound, args.count) if mutant is not None]
    if args.dry:
        print("\n".join(map(_line, mutants)))
        return 0
    verdicts, _ = judge_all(mutants, args.work, args.processes, Memory(args.work / "judged.jsonl"))
    pairs = list(zip(mutants, verdicts, strict=True))
    survived = [mutant for mutant, verdict in pairs if verdict.outcome == "survived"]
    aside = [mutant for mutant in survived if is_set_aside(mutant, listed)]
    survivors = [mutant for mutant in survived if not is_set_aside(mutant, listed)]
    counts = Counter(verdict.outcome for verdict in verdicts)
    caught = counts["caught"] + counts["timeout"]
    share = caught / (len(mutants) - len(aside))
    for mutant in survivors:
        print(f"SURVIVED {_line(mutant)}")
    print(f"{caught} of {len(mutants)} caught, {len(aside)} set aside: {share:.1%}")
    record.write(
        "mutants",
        {
            "tool": f"cosmic-ray {metadata.version('cosmic-ray')}, its operators",
            "seed": args.seed,
            "places": len(population),
            "drawn": len(mutants),
            "passed_over": len(seen) - len(mutants),
            "caught": caught,
            "of_them_timeouts": counts["timeout"],
            "survivors": [mutant.describe() for mutant in survivors],
            "set_aside": [mutant.describe() for mutant in aside],
            "share_caught": round(share, 4),
            "wanted": WANTED,
            "drawn_in": dict(sorted(Counter(m.place.module for m in mutants).items())),
            "test_minutes": round(sum(verdict.seconds for verdict in verdicts) / 60, 1),
            "machine": machine(),
        },
    )
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
