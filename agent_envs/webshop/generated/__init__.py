"""Generated shops: products, attributes and instructions from a seed, in the original's form."""

from agent_envs.webshop.generated.generator import generate, generated_files
from agent_envs.webshop.generated.source import read_source, source_text
from agent_envs.webshop.generated.spec import PRESETS, InvalidSpec, ShopSpec

__all__ = [
    "PRESETS",
    "InvalidSpec",
    "ShopSpec",
    "generate",
    "generated_files",
    "read_source",
    "source_text",
]
