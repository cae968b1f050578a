"""What a rollout records: turns, their training segments, and turns on disk.

A `Turn` is one model call, a `Segment` one training sequence. Ids are stored as sampled and
never encoded again from text. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agent_envs.errors import DataError
from agent_envs.resuming import STEP_LIMIT

CONTEXT_OVERFLOW = "context_overflow"
WRAPPER_LIMIT = "wrapper_limit"
CUT_OFF = frozenset((STEP_LIMIT, CONTEXT_OVERFLOW, WRAPPER_LIMIT))
"""Stop reasons of trajectories that the environment did not end itself."""

TURN_FORMAT = 2
_FORMAT_KEY = b"sero.turns"

History = tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call and what the env answered.

    Attributes:
        uid: the group, all rollouts of one task in one iteration.
        tid: the trajectory.
        t: turn number in the trajectory, from 0.
        task_id, task_type, goal: as the env's `info` gave them.
        observation: what the student saw before this turn.
        next_observation: what the env answered, the terminal observation included.
        anchor: key of the state before the turn, for step-level groups.
        admissible: commands the env would have accepted.
        command: the executed command, as projected from the reply.
        reply: the reply's text, without the end token.
        format_valid: the reply had the required form.
        command_valid: the env accepted the command.
        parse_reason: why the form was wrong; None if it was right.
        reward: the env's own reward of this step, no training bonus or penalty.
        task_score: the env's score after this step.
        success: the task was solved by this step, so true on a last turn only.
        done: last turn of its trajectory.
        stop_reason: why the trajectory ended; None on earlier turns.
        prompt_ids, response_ids: as the sampler saw and drew them.
        logprobs: behaviour log-prob of each response id at `temperature`.
        temperature: of the sampling.
        policy_version: optimiser steps the behaviour policy had seen.
        steps_left: steps the env would still allow before this turn; None: no limit.
        snapshot: the state before the turn as bytes; None if none was taken.
        history: (observation, command, command_valid) of the earlier steps that the student
            may see.
        action_templates: commands that the env would accept and that cannot be listed.
        next_admissible: `admissible` after the turn; on a last turn only, the next one has it.
        finish_reason: `stop` or `length`, from the sampler.
        provenance: engine, data and prompt versions; JSON values only.
    """

    uid: str
    tid: str
    t: int
    task_id: str
    task_type: str
    goal: str
    observation: str
    next_observation: str
    anchor: str
    admissible: tuple[str, ...]
    command: str
    reply: str
    format_valid: bool
    command_valid: bool
    parse_reason: str | None
    reward: float
    task_score: float
    success: bool
    done: bool
    stop_reason: str | None
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float
    policy_version: int
    steps_left: int | None
    snapshot: bytes | None = None
    history: History = ()
    action_templates: tuple[str, ...] = ()
    next_admissible: tuple[str, ...] = ()
    finish_reason: str = "stop"
    provenance: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.response_ids) != len(self.logprobs):
            raise ValueError(
                f"turn {self.t} of {self.tid!r}: {len(self.response_ids)} response ids but "
                f"{len(self.logprobs)} log-probs; expected one for each id"
            )


@dataclass(frozen=True, slots=True)
class Segment:
    """One training sequence of T tokens.

    Attributes:
        ids: prompt and response tokens, (T,).
        loss_mask: true exactly on trained tokens, (T,). The first token has no prediction
            and may not be trained.
        token_turn: index of each trained token's turn in the list the segments were made
            from, -1 elsewhere, (T,). Advantages are per turn and reach tokens through it.
        logprobs: behaviour log-prob of trained tokens, 0 elsewhere, (T,).
        temperature: of the sampling.
    """

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    token_turn: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float = 1.0

    def __post_init__(self) -> None:
        lengths = {
            "ids": len(self.ids),
            "loss_mask": len(self.loss_mask),
            "token_turn": len(self.token_turn),
            "logprobs": len(self.logprobs),
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"segment fields differ in length: {lengths}")
        if not self.ids:
            raise ValueError("segment without tokens")
        if self.loss_mask[0]:
            raise ValueError("the first token of a segment has no prediction; its mask must be 0")

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(self.loss_mask)


def make_segment(
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    *,
    mask: Sequence[bool] | None = None,
    logprobs: Sequence[float] | None = None,
    turn: int = -1,
    temperature: float = 1.0,
) -> Segment:
    """A segment of one prompt and one response.

    Args:
        prompt_ids: context, never trained.
        response_ids: R tokens.
        mask: which response tokens are trained, (R,); None: all.
        logprobs: behaviour log-probs, (R,); None: zeros, for targets nobody sampled.
        turn: index written into `token_turn`.
        temperature: divides the logits of this segment.

    Raises:
        ValueError: lengths differ, or the first token of all would be trained.
    """
    size = len(response_ids)
    keep = (True,) * size if mask is None else tuple(bool(m) for m in mask)
    old = (0.0,) * size if logprobs is None else tuple(logprobs)
    if len(keep) != size or len(old) != size:
        raise ValueError(
            f"response of {size} ids with a mask of {len(keep)} and {len(old)} log-probs"
        )
    prompt = len(prompt_ids)
    return Segment(
        ids=(*prompt_ids, *response_ids),
        loss_mask=(False,) * prompt + keep,
        token_turn=(-1,) * prompt + tuple(turn if m else -1 for m in keep),
        logprobs=(0.0,) * prompt + tuple(x if m else 0.0 for x, m in zip(old, keep, strict=True)),
        temperature=temperature,
    )


def segments_from_turns(turns: Sequence[Turn], first: int = 0) -> list[Segment]:
    """`window` context: one segment a turn, in the order of the turns, numbered from `first`.

    Trained are the sampled ids and only those: a stop token counts if it was drawn, and is
    not added if it was not.
    """
    return [
        make_segment(
            turn.prompt_ids,
            turn.response_ids,
            logprobs=turn.logprobs,
            turn=index,
            temperature=turn.temperature,
        )
        for index, turn in enumerate(turns, first)
    ]


class TurnFileError(DataError, ValueError):
    """A file of turns cannot be written or read; names the file, the cause and the way out."""


class MissingTurnFile(TurnFileError, FileNotFoundError):
    """There is no file of turns at this path."""


def write_turns(path: str | Path, turns: Sequence[Turn]) -> None:
    """Write turns to one parquet file; readers see the former file or the whole new one.

    `read_turns` gives equal turns: floats bit for bit, None apart from empty, any Unicode.

    Raises:
        TurnFileError: a turn that would not come back as it is.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = Path(path)
    rows = [_to_row(target, turn) for turn in turns]
    schema = _schema().with_metadata({_FORMAT_KEY: str(TURN_FORMAT).encode()})
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, UnicodeError, OverflowError, TypeError) as error:
        raise TurnFileError(f"cannot write turns to {target}: {error}") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_turns(path: str | Path) -> list[Turn]:
    """Read turns written by `write_turns`, in their order.

    Raises:
        MissingTurnFile: no such file.
        TurnFileError: damaged, not a file of turns, or of another format version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = Path(path)
    if not source.is_file():
        raise MissingTurnFile(
            f"No turns at {source.resolve()}. A run writes them when `run.save_turns` is true."
        )
    try:
        with pq.ParquetFile(source, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            _check_format(source, metadata.get(_FORMAT_KEY), file.schema_arrow)
            rows = file.read().to_pylist()
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise TurnFileError(
            f"{source} is damaged or no parquet file: {error}. Write the turns again."
        ) from error
    return [_from_row(source, row) for row in rows]


def _check_format(source: Path, found: bytes | None, schema: Any) -> None:
    if found is None:
        raise TurnFileError(
            f"{source} is a parquet file but holds no turns: its metadata has no "
            f"{_FORMAT_KEY.decode()!r}. Give a file written by `write_turns`."
        )
    if found != str(TURN_FORMAT).encode():
        raise TurnFileError(
            f"{source} has turn format {found.decode(errors='replace')}, this version reads "
            f"{TURN_FORMAT}. Read it with the version of sero that wrote it."
        )
    expected = _schema()
    if not schema.equals(expected):
        missing = sorted(set(expected.names) - set(schema.names))
        extra = sorted(set(schema.names) - set(expected.names))
        raise TurnFileError(
            f"{source} says turn format {TURN_FORMAT} but its columns differ: missing {missing}, "
            f"unknown {extra}, or a type changed. Write the turns again."
        )


def _schema() -> Any:
    import pyarrow as pa

    text, number, real, flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    exchange = pa.struct([("observation", text), ("action", text), ("command_valid", flag)])
    types = {
        "t": number,
        "admissible": pa.list_(text),
        "action_templates": pa.list_(text),
        "next_admissible": pa.list_(text),
        "format_valid": flag,
        "command_valid": flag,
        "reward": real,
        "task_score": real,
        "success": flag,
        "done": flag,
        "prompt_ids": pa.list_(number),
        "response_ids": pa.list_(number),
        "logprobs": pa.list_(real),
        "temperature": real,
        "policy_version": number,
        "steps_left": number,
        "snapshot": pa.binary(),
        "history": pa.list_(exchange),
    }
    optional = {"parse_reason", "stop_reason", "steps_left", "snapshot"}
    return pa.schema(
        pa.field(f.name, types.get(f.name, text), nullable=f.name in optional) for f in fields(Turn)
    )


def _to_row(target: Path, turn: Turn) -> dict[str, Any]:
    row = {f.name: getattr(turn, f.name) for f in fields(Turn)}
    row["history"] = [
        {"observation": observation, "action": action, "command_valid": valid}
        for observation, action, valid in turn.history
    ]
    provenance = dict(turn.provenance)
    try:
        row["provenance"] = json.dumps(provenance)
        same = json.loads(row["provenance"]) == provenance
    except (TypeError, ValueError):
        same = False
    if not same:
        raise TurnFileError(
            f"cannot write turns to {target}: provenance of turn {turn.t} of {turn.tid!r} is not "
            f"plain JSON: {provenance!r}. Use strings, numbers, true, false, null, lists, objects."
        )
    return row


def _from_row(source: Path, row: dict[str, Any]) -> Turn:
    try:
        row["history"] = tuple(
            (item["observation"], item["action"], item["command_valid"]) for item in row["history"]
        )
        row["provenance"] = json.loads(row["provenance"])
        lists = ("admissible", "action_templates", "next_admissible")
        for name in (*lists, "prompt_ids", "response_ids", "logprobs"):
            row[name] = tuple(row[name])
        return Turn(**row)
    except (TypeError, ValueError, KeyError) as error:
        raise TurnFileError(f"{source} holds a turn that cannot be read: {error}") from error
