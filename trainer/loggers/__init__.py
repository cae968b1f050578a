"""Where a run's numbers go: its own file, and the trackers of `log.to`."""

from __future__ import annotations
