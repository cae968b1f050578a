"""What every part of the trainer may raise."""

from __future__ import annotations

from agent_envs.errors import SeroError


class ConfigError(SeroError, ValueError):
    """A config that cannot be used: unknown key, wrong type or values that clash."""
