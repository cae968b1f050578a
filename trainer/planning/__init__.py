"""The parts of `trainer.plan`: tokens, bytes, and what to turn where a run does not fit."""

from __future__ import annotations
