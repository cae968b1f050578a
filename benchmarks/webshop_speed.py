"""Speed of WebShop beside the original: writes benchmarks/results/webshop.json.

    python benchmarks/webshop_speed.py                                   # a generated shop
    python benchmarks/webshop_speed.py --data path/to/raw/files --original path/to/WebShop

The measuring is `sero bench webshop` (trainer/bench/webshop.py), with search at every size; this
script keeps its figures. It fails where the command fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

import record

if __name__ == "__main__":
    code, figures = record.run_sero(["bench", "webshop", "--scale", *sys.argv[1:]])
    if figures is not None:
        # Where the catalogue lay says nothing to others; the revision says which it was.
        figures["source"] = Path(figures["source"]).name
        record.write("webshop", figures)
    sys.exit(code)
