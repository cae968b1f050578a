"""GRPO with SERO beside GRPO and two controls, five seeds: benchmarks/results/comparison.json.

    python benchmarks/comparison.py                                  # hours on two cores
    python benchmarks/comparison.py --out runs/comparison            # goes on with that folder

The comparing is `sero demo --seeds 5` (trainer/demo/runs.py); this script keeps its figures.
"""

from __future__ import annotations

import sys

import record

from trainer.cli.common import machine

if __name__ == "__main__":
    code, figures = record.run_sero(["demo", "--seeds", "5", *sys.argv[1:]])
    if figures is not None:
        record.write("comparison", {**figures, "machine": machine()})
    sys.exit(code)
