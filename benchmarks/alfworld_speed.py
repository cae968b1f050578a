"""Speed of the ALFWorld engine beside the original: writes benchmarks/results/alfworld.json.

    make bench                                    # generated households
    make bench ARGS="--games path/to/json_2.1.1"  # real games

The measuring is `sero bench alfworld` (trainer/bench/alfworld.py); this script keeps its figures.
It fails where the command fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

import record

if __name__ == "__main__":
    code, figures = record.run_sero(["bench", "alfworld", *sys.argv[1:]])
    if figures is not None:
        # Where the games lay says nothing to others; the manifest hash says which they were.
        figures["source"] = Path(figures["source"]).name
        record.write("alfworld", figures)
    sys.exit(code)
