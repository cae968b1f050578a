"""A large run's iteration on a GPU: writes benchmarks/results/large_run.json.

    python benchmarks/large_run.py

Without a CUDA device nothing is run: the file then holds the plan's estimate for `--estimate-for`
and says that nothing was measured. With one it fails where the update's utilisation is too small.
The measuring is trainer/bench/large.py.
"""

from __future__ import annotations

import argparse
import sys

import record
import torch

from trainer.bench.large import AT_LEAST_MFU, LargeRun, estimate, measure
from trainer.planning.accounting import peak_flops
from trainer.planning.plan import GB, Device


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--estimate-for", default="NVIDIA H100", help="GPU of the estimate")
    parser.add_argument("--memory-gb", type=float, default=80.0, help="its memory, 10^9 bytes")
    arguments = parser.parse_args()
    sizes = LargeRun()
    if not torch.cuda.is_available():
        name = arguments.estimate_for
        device = Device(name, int(arguments.memory_gb * GB), peak_flops(name))
        record.write("large_run", {**estimate(sizes, device), "memory_checked_by": TESTS})
        return 0
    found = measure(sizes, lambda text: print(text, flush=True))
    record.write("large_run", found)
    print(f"update {found['update_mfu']} of the peak, at least {AT_LEAST_MFU} is wanted")
    return 0 if (found["update_mfu"] or 0.0) >= AT_LEAST_MFU else 1


TESTS = "tests/trainer/planning/test_accounting.py: bytes that autograd keeps, as counted"

if __name__ == "__main__":
    sys.exit(main())
