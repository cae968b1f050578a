"""Pages and actions before, which stand in front of an observation if they are asked for."""

from __future__ import annotations

from typing import NamedTuple

from agent_envs.errors import SnapshotMismatch
from agent_envs.webshop.actions import ACTION_LIMIT
from agent_envs.webshop.text_pages import SEPARATOR

Texts = tuple[str, ...]


class Keeps(NamedTuple):
    """How many pages and actions before are shown."""

    pages: int
    actions: int


NO_HISTORY = Keeps(0, 0)


def add(keeps: Keeps, seen: Texts, said: Texts, action: str, page: str) -> tuple[str, Texts, Texts]:
    """The observation after `action` led to `page`, and what is to be remembered of it.

    The oldest stands first, a page before the action that was taken on it. A very long action is
    shown by its first `ACTION_LIMIT` characters.

    Args:
        keeps: how much is shown.
        seen: pages before, the oldest first.
        said: actions before, the oldest first.
        action: the last action.
        page: the text of the page itself.
    """
    said = (*said, action[:ACTION_LIMIT])
    parts = [page]
    for back in range(1, 1 + max(keeps)):
        if back <= min(keeps.actions, len(said)):
            parts.append(said[-back])
        if back <= min(keeps.pages, len(seen)):
            parts.append(seen[-back])
    seen = (*seen, page)[-keeps.pages :] if keeps.pages else ()
    said = said[-keeps.actions :] if keeps.actions else ()
    return SEPARATOR.join(reversed(parts)), seen, said


def check_history(keeps: Keeps, seen: object, said: object, page_limit: int) -> None:
    """Check what a snapshot remembers.

    Raises:
        SnapshotMismatch: it cannot be.
    """
    if seen == () == said:
        return
    limits = (page_limit, ACTION_LIMIT)
    for texts, count, limit in zip((seen, said), keeps, limits, strict=True):
        if type(texts) is not tuple or len(texts) > count:
            raise _impossible(f"{count} texts at most")
        if not all(type(text) is str and len(text) <= limit for text in texts):
            raise _impossible(f"texts of {limit:,} characters at most")


def _impossible(expected: str) -> SnapshotMismatch:
    return SnapshotMismatch(
        f"The pages and actions that the snapshot remembers cannot be: expected {expected}. The "
        "running episode is unchanged."
    )
