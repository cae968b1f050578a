"""Speed of training: writes benchmarks/results/train.json and benchmarks/trl_config.json.

    python benchmarks/train_speed.py --peer path/to/python    # an interpreter that has TRL

The measuring is `sero bench train` (trainer/bench/train.py); this script keeps its figures, and
the configuration that TRL ran with. It fails where the command fails.
"""

from __future__ import annotations

import json
import sys

import record

if __name__ == "__main__":
    code, figures = record.run_sero(["bench", "train", *sys.argv[1:]])
    if figures is not None:
        config = figures.pop("trl_config")
        if config is not None:
            kept = {"setting": figures["trl_setting"], **figures["trl"]["versions"]}
            path = record.HERE / "trl_config.json"
            text = json.dumps({**kept, "GRPOConfig": config}, indent=2)
            path.write_text(text + "\n", encoding="utf-8")
        record.write("train", figures)
    sys.exit(code)
