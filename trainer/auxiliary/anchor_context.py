"""Feedback from everything that was tried in the same state.

Rows of one task whose raw observation is the same form an *anchor*. A row's context then tells,
for each distinct action tried there, how often it was tried and how it ended, with what the
environment answered or what came later.

Everything here is text. All wording is this project's own.

Source: `specs/aux_objectives.md`, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from trainer.auxiliary.action_spans import norm_action
from trainer.auxiliary.feedback_context import (
    MODES,
    TITLES,
    ContextTurn,
    Rendering,
    Section,
    Trajectories,
    serl_sections,
)
from trainer.objectives.anchors import similar_clusters

ANCHOR_TITLES: Mapping[str, str] = {
    "tried": "What was tried in this situation, and how those attempts ended:",
    "feedback": "What the environment answered to actions in this situation:",
    "next_obs": "What actions in this situation led to:",
    "future": "How attempts went on after actions in this situation:",
}


@dataclass(frozen=True, slots=True)
class ActionStats:
    """One distinct action at one anchor.

    Attributes:
        action: normalised, see `norm_action`.
        count: rows that took it.
        successes: of those, rows of successful trajectories.
        mean_return: of their trajectories.
        best, worst: the rows that ended best and worst: by success, then by return; the earliest
            in (step, batch order) among equals.
        success, failure: the best successful and the worst failed row, or None.
    """

    action: str
    count: int
    successes: int
    mean_return: float
    best: ContextTurn
    worst: ContextTurn
    success: ContextTurn | None
    failure: ContextTurn | None


def anchor_groups(
    uids: Sequence[Hashable],
    steps: Sequence[int],
    anchors: Sequence[str | None],
    similarity: float | None = None,
) -> list[int]:
    """Cluster of each row: same group and same observation.

    Groups are taken in order of appearance and their rows by (step, batch order). A row joins the
    first cluster of its group whose *first member* it resembles, else it opens the next one.

    Args:
        uids: task group of each row.
        steps: step of each row.
        anchors: raw observation of each row. None: unknown, a cluster of its own.
        similarity: None asks for equal text; a number for a `difflib.SequenceMatcher` ratio of at
            least that much (0.95 in public code).

    Returns:
        Cluster numbers from 0, dense, unique over the batch.

    Raises:
        ValueError: lengths differ, or similarity outside (0, 1].
    """
    lengths = {"uids": len(uids), "steps": len(steps), "anchors": len(anchors)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"Expected sequences of equal length, found {lengths}.")
    if similarity is not None and not 0.0 < similarity <= 1.0:
        raise ValueError(f"similarity must be in (0, 1] (or None), found {similarity}.")
    rows_of: dict[Hashable, list[int]] = {}
    for row, uid in enumerate(uids):
        rows_of.setdefault(uid, []).append(row)
    cluster = [0] * len(uids)
    count = 0
    for rows in rows_of.values():
        rows.sort(key=lambda row: steps[row])
        keys: dict[str, Hashable] = {}
        if similarity is not None:
            texts = [text for row in rows if (text := anchors[row]) is not None]
            keys.update(zip(texts, similar_clusters(texts, similarity), strict=True))
        numbers: dict[Hashable, int] = {}
        for row in rows:
            anchor = anchors[row]
            # Tuples never equal a text, nor a cluster.
            key = (row,) if anchor is None else keys.get(anchor, anchor)
            if key not in numbers:
                numbers[key] = count
                count += 1
            cluster[row] = numbers[key]
    return cluster


def action_stats(turns: Sequence[ContextTurn]) -> list[ActionStats]:
    """Statistics of each distinct action among the rows of one anchor.

    Args:
        turns: the rows, in batch order.

    Returns:
        One entry an action, in order of first appearance by (step, batch order).
    """
    rows_of: dict[str, list[ContextTurn]] = {}
    for turn in sorted(turns, key=lambda turn: turn.t):
        rows_of.setdefault(norm_action(turn.response), []).append(turn)
    found = []
    for action, rows in rows_of.items():
        won = [row for row in rows if row.success]
        lost = [row for row in rows if not row.success]
        found.append(
            ActionStats(
                action=action,
                count=len(rows),
                successes=len(won),
                mean_return=sum(row.episode_return for row in rows) / len(rows),
                best=max(rows, key=_outcome),
                worst=min(rows, key=_outcome),
                success=max(won, key=_outcome, default=None),
                failure=min(lost, key=_outcome, default=None),
            )
        )
    return found


def anchor_contexts(
    turns: Sequence[ContextTurn],
    mode: str,
    *,
    similarity: float | None = None,
    anchor_min_size: int = 1,
    anchor_first_only: bool = False,
    rendering: Rendering = "response",
    max_steps: int | None = None,
) -> list[tuple[Section, ...]]:
    """Privileged sections of every row, from its anchor.

    The modes are those of single steps, with these differences. "immediate_feedback" lists lines
    "action: answer" and no statistics. A successful trajectory is shown if there is one, but
    never required. The other sources are: a row whose anchor has none of it gets no context.

    Args:
        turns: the rows of the batch, in batch order.
        mode: one of `feedback_context.MODES`.
        similarity: see `anchor_groups`.
        anchor_min_size: rows an anchor needs. 1 takes every row, as public code does; with 2 a
            state has to be met twice.
        anchor_first_only: only a trajectory's first visit of the anchor gets the context, so that
            walking in circles is not a change of state.
        rendering, max_steps: see `render_trajectory`.

    Returns:
        Sections of each row; empty where a rule leaves it out.

    Raises:
        ValueError: unknown mode or rendering, similarity or anchor_min_size out of range, or two
            rows of one step.
    """
    serl_sections(mode, ())
    if anchor_min_size < 1:
        raise ValueError(f"anchor_min_size must be at least 1, found {anchor_min_size}.")
    told = Trajectories(turns, rendering, max_steps)
    cluster = anchor_groups(
        [turn.uid for turn in turns],
        [turn.t for turn in turns],
        [turn.anchor for turn in turns],
        similarity,
    )
    members: dict[int, list[ContextTurn]] = {}
    first_visit: dict[tuple[int, Hashable], int] = {}
    for number, turn in zip(cluster, turns, strict=True):
        members.setdefault(number, []).append(turn)
        key = (number, turn.tid)
        first_visit[key] = min(first_visit.get(key, turn.t), turn.t)

    shared = {
        number: _anchor_texts(rows, mode, told.future)
        for number, rows in members.items()
        if len(rows) >= anchor_min_size
    }
    contexts: list[tuple[Section, ...]] = []
    for number, turn in zip(cluster, turns, strict=True):
        texts = shared.get(number)
        if texts is None or (anchor_first_only and turn.t > first_visit[number, turn.tid]):
            contexts.append(())
            continue
        success = told.success(turn) if "success" in MODES[mode] else ""
        contexts.append(_sections(mode, success, texts))
    return contexts


def _sections(mode: str, success: str, texts: Mapping[str, str]) -> tuple[Section, ...]:
    shown = [Section(TITLES["success"], success)] if success else []
    if mode == "success_or_feedback" and success:
        return tuple(shown)
    sources = [name for name in MODES[mode] if name != "success"]
    if not all(texts[name] for name in sources):
        return ()
    if texts["tried"]:
        shown.append(Section(ANCHOR_TITLES["tried"], texts["tried"]))
    shown += [Section(ANCHOR_TITLES[name], texts[name]) for name in sources]
    return tuple(shown)


def _anchor_texts(
    rows: Sequence[ContextTurn], mode: str, future: Callable[[ContextTurn], str]
) -> dict[str, str]:
    """Text of the statistics ("tried") and of each source that the mode names."""
    if mode == "immediate_feedback":
        lines = dict.fromkeys(
            f"{norm_action(row.response)}: {row.feedback.strip()}"
            for row in sorted(rows, key=lambda row: row.t)
            if row.feedback and row.feedback.strip()
        )
        return {"tried": "", "feedback": "\n".join(lines)}
    stats = action_stats(rows)
    texts = {"tried": "\n".join(map(_statistics_line, stats))}
    for name in MODES[mode]:
        if name == "feedback":
            texts[name] = _best_and_worst(stats, lambda row: row.feedback or "")
        elif name == "next_obs":
            texts[name] = _best_and_worst(stats, lambda row: row.next_observation or "")
        elif name == "future":
            texts[name] = _futures(stats, future)
    return texts


def _statistics_line(entry: ActionStats) -> str:
    return (
        f"{entry.action}: tried {entry.count} time(s), {entry.successes} of them in successful "
        f"attempts, mean return {entry.mean_return:.4g}; best outcome {_named(entry.best)}, "
        f"worst outcome {_named(entry.worst)}."
    )


def _named(row: ContextTurn) -> str:
    return f"{'success' if row.success else 'failure'} with return {row.episode_return:.4g}"


def _best_and_worst(stats: Sequence[ActionStats], text: Callable[[ContextTurn], str]) -> str:
    parts = []
    for entry in stats:
        best, worst = text(entry.best).strip(), text(entry.worst).strip()
        if best:
            parts.append(f"{entry.action} (best outcome):\n{best}")
        if worst and worst != best:
            parts.append(f"{entry.action} (worst outcome):\n{worst}")
    return "\n\n".join(parts)


def _futures(stats: Sequence[ActionStats], future: Callable[[ContextTurn], str]) -> str:
    parts = []
    for entry in stats:
        for row, ending in ((entry.success, "success"), (entry.failure, "failure")):
            text = "" if row is None else future(row)
            if text:
                parts.append(f"{entry.action}, up to a {ending}:\n{text}")
    return "\n\n".join(parts)


def _outcome(row: ContextTurn) -> tuple[bool, float]:
    return row.success, row.episode_return
