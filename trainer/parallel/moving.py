"""Trajectories that another rank played than the one that learns from them.

Where sampling keeps some groups and drops others, ranks are left with different numbers of them and
in another order than one process. Groups are dealt out anew, whole, as neighbouring parts of the
list of one process; only those that change hands travel, as JSON.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from agent_envs import Snapshot
from agent_envs.prompting.history import Exchange, History
from trainer.parallel.context import Group
from trainer.parallel.shard import part_of
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Episode, Trajectory

__all__ = ["deal_out", "from_json", "to_json"]


def deal_out(
    trajectories: Sequence[Trajectory], order: Sequence[str], group: Group
) -> list[Trajectory]:
    """This rank's part of the groups in `order`, wherever they were played.

    Args:
        trajectories: that this rank has; whole groups, which no other rank has.
        order: ids of the groups to deal out, the same on every rank; others are dropped.
    """
    owner = {
        order[i]: rank
        for rank in range(group.world)
        for i in part_of(len(order), rank, group.world)
    }
    mine: dict[str, list[Trajectory]] = {}
    leaving: list[dict[str, Any]] = []
    for trajectory in trajectories:
        uid = trajectory.episode.uid
        if owner.get(uid) == group.rank:
            mine.setdefault(uid, []).append(trajectory)
        elif uid in owner:
            leaving.append(to_json(trajectory))
    for row in (row for part in group.gather(leaving) for row in part):
        uid = row["episode"]["uid"]
        if owner[uid] == group.rank:
            mine.setdefault(uid, []).append(from_json(row))
    return [trajectory for uid in order for trajectory in mine.get(uid, ())]


def to_json(trajectory: Trajectory) -> dict[str, Any]:
    """A trajectory as plain data; `from_json` gives an equal one.

    Raises:
        TypeError: what an environment says about itself is no JSON.
    """
    found = {f.name: getattr(trajectory, f.name) for f in fields(Trajectory)}
    return {
        **found,
        "episode": asdict(trajectory.episode),
        "turns": [_turn(turn) for turn in trajectory.turns],
        "snapshots": [_text(snapshot.to_bytes()) for snapshot in trajectory.snapshots],
        "history": [tuple(item) for item in trajectory.history.items],
        "score": float(trajectory.score),
        "provenance": dict(trajectory.provenance),
    }


def from_json(row: Mapping[str, Any]) -> Trajectory:
    """Inverse of `to_json`, also after `json.dumps` and `json.loads`."""
    found = {
        **row,
        "episode": Episode(**row["episode"]),
        "turns": tuple(Turn(**_restored(turn)) for turn in row["turns"]),
        "snapshots": tuple(Snapshot.from_bytes(b64decode(text)) for text in row["snapshots"]),
        "history": History(tuple(Exchange(*item) for item in row["history"])),
    }
    return Trajectory(**found)


def _turn(turn: Turn) -> dict[str, Any]:
    row = {f.name: getattr(turn, f.name) for f in fields(Turn)}
    row["provenance"] = dict(turn.provenance)
    row["snapshot"] = None if turn.snapshot is None else _text(turn.snapshot)
    row["reward"], row["task_score"] = float(turn.reward), float(turn.task_score)
    return row


def _restored(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
    found["history"] = tuple(tuple(item) for item in row["history"])
    found["snapshot"] = None if row["snapshot"] is None else b64decode(row["snapshot"])
    return found


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")
