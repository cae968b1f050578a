"""What can go wrong with a browser."""

from __future__ import annotations

from agent_envs.errors import SeroError


class BrowserError(SeroError, RuntimeError):
    """The browser died, gave no answer in time, or showed something else than the shop.

    The browser is gone then. The env is where it was before the action: the next `step`, or a
    `restore` or `reset`, starts a new browser there.
    """
