"""Digests of what a bank holds."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["row_digest", "sha256"]


def row_digest(row: dict[str, Any]) -> str:
    """SHA-256 (hex) over all columns but the digest itself; floats bit for bit."""
    return sha256({name: value for name, value in row.items() if name != "digest"})


def sha256(value: Any) -> str:
    """SHA-256 (hex) of plain values as JSON with sorted keys; bytes in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=bytes.hex)
    return hashlib.sha256(text.encode()).hexdigest()
