"""Every check at its full count: writes benchmarks/results/full_test.json.

    make test-full

Runs the test suite with SERO_TEST_FULL=1 in two processes and records how many tests passed,
failed and were skipped (with the reasons), how long it took, and the commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import record

from trainer.cli.common import machine


def main() -> int:
    """Run pytest on everything, record the counts, return its exit code."""
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-n", "2", f"--junitxml={junit}", *sys.argv[1:]]
        code = subprocess.run(
            command, cwd=record.HERE.parent, env={**os.environ, "SERO_TEST_FULL": "1"}, check=False
        ).returncode
        if not junit.is_file():
            return code
        # Our own pytest wrote this file a moment ago.
        cases = list(ET.parse(junit).getroot().iter("testcase"))
    skipped = Counter(
        skip.get("message", "") for case in cases if (skip := case.find("skipped")) is not None
    )
    failed = sum(
        case.find("failure") is not None or case.find("error") is not None for case in cases
    )
    record.write(
        "full_test",
        {
            "tests": len(cases),
            "passed": len(cases) - failed - sum(skipped.values()),
            "failed": failed,
            "skipped": dict(skipped),
            "minutes": round((time.time() - begin) / 60, 1),
            "exit_code": code,
            "machine": machine(),
        },
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
