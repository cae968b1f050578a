"""What a run costs: `plan` before it starts (tokens, bytes, advice), `performance` during it."""

from __future__ import annotations
