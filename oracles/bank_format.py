"""The file of an oracle bank: columns, metadata, digests, and damage that is noticed.

One Parquet file, one row a branch; docs/bank.md describes the columns. Every row has a digest over
its other columns, the metadata one over itself and all of these. Nothing here runs a branch.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agent_envs import Snapshot
from agent_envs.errors import DataError, SnapshotFormatError
from oracles.bank_damage import damage
from oracles.bank_digest import row_digest, sha256
from oracles.base import HistoryItem
from oracles.branch import Branch, BranchStatus, BranchStep, RootRecord

BANK_FORMAT = 1
_FORMAT_KEY = b"sero.bank"
_HEADER_KEY = b"sero.bank.header"
Row = dict[str, Any]
"""A row as the file has it: numbers, texts, bytes, lists and dicts of these."""


class BankError(DataError, ValueError):
    """A bank cannot be written, read or verified; names the file, the cause and the way out."""


class MissingBank(BankError, FileNotFoundError):
    """There is no bank at this path."""


@dataclass(frozen=True, slots=True)
class PolicyEnd:
    """What the policy itself did from the root to the end of its episode."""

    actions: tuple[str, ...]
    rewards: tuple[float, ...]
    """The env's raw ones, one for each action; no penalty for the form of a reply."""
    success: bool
    score: float


@dataclass(frozen=True, slots=True)
class BankRow:
    """A branch and where it comes from."""

    branch: Branch
    expected: RootRecord
    """What the student saw at the root."""
    own: PolicyEnd
    oracle: str
    policy: str
    seed: int
    """Keys all draws of the bank."""
    rollout: int
    """Number of the rollout that the root was taken from; with `seed` it names its draws."""
    horizon: int | None = None
    """Commands that the caller allowed the branch; None: as many as were left at the root."""

    def returns(self, target: str = "success") -> tuple[float, float]:
        """(the policy's, the oracle's) undiscounted return from the root, over the same steps:
        `target` is `success`, `score` (the graded one) or `reward` (the env's raw ones)."""
        branch, own = self.branch, self.own
        # A branch that was cut short is compared with as many steps of the policy.
        cut = len(branch.steps) if branch.status is BranchStatus.HORIZON else None
        return {
            "success": (float(own.success), float(branch.success)),
            "score": (own.score, branch.score),
            "reward": (float(sum(own.rewards[:cut])), branch.total_reward),
        }[target]


@dataclass(frozen=True, slots=True)
class BankHeader:
    """What all rows of a bank have in common."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    """For ``gymnasium.make``; JSON values."""
    data_revision: str
    manifest_hash: str
    """Of the tasks; equal only for the same contents."""
    oracle: str
    policy: str
    seed: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions and whatever else is known of the origin; JSON values."""


@dataclass(frozen=True, slots=True)
class RawBank:
    """A file whose form is right; neither digests nor branches have been checked."""

    path: Path
    header: BankHeader
    counts: Mapping[str, int]
    digest: str
    rows: tuple[Row, ...]


def bank_digest(header: BankHeader, counts: Mapping[str, int], rows: Sequence[Row]) -> str:
    """SHA-256 (hex) over the metadata and the digests of all rows, in their order."""
    parts = [_header_values(header), dict(counts), [row["digest"] for row in rows]]
    return sha256([BANK_FORMAT, *parts])


def count(rows: Sequence[Row]) -> dict[str, int]:
    """The counts in the metadata."""
    return {
        "branches": len(rows),
        "valid": sum(row["valid"] for row in rows),
        "success": sum(row["success"] for row in rows),
        "steps": sum(len(row["steps"]) for row in rows),
    }


def to_row(item: BankRow) -> Row:
    """The columns of a row, its digest included.

    Raises:
        SnapshotFormatError: the root cannot be encoded.
    """
    branch, own = item.branch, item.own
    row: Row = {
        "task_id": branch.root.task_id,
        "oracle": item.oracle,
        "policy": item.policy,
        "seed": item.seed,
        "rollout": item.rollout,
        "horizon": item.horizon,
        "root": branch.root.to_bytes(),
        "root_step": branch.root_step,
        "steps_left": branch.steps_left,
        "goal": branch.goal,
        "history": [_values(exchange) for exchange in branch.history],
        "expected_observation": item.expected.observation,
        "expected_admissible": list(item.expected.admissible),
        "status": branch.status.value,
        "valid": branch.valid,
        "reasons": list(branch.reasons),
        "detail": branch.detail,
        "steps": [_values(step) for step in branch.steps],
        "next_admissible": list(branch.next_admissible),
        "success": branch.success,
        "score": float(branch.score),
        "total_reward": float(branch.total_reward),
        "policy_actions": list(own.actions),
        "policy_rewards": [float(reward) for reward in own.rewards],
        "policy_success": own.success,
        "policy_score": float(own.score),
    }
    row["digest"] = row_digest(row)
    return row


def from_row(row: Row) -> BankRow:
    """The inverse of `to_row`; the digest is not looked at.

    Raises:
        ValueError: a column holds what no branch has, for example bytes that are no snapshot.
    """
    lists = ("admissible", "action_templates")
    branch = Branch(
        status=BranchStatus(row["status"]),
        valid=row["valid"],
        reasons=tuple(row["reasons"]),
        detail=row["detail"],
        steps=tuple(
            BranchStep(**{**step, **{name: tuple(step[name]) for name in lists}})
            for step in row["steps"]
        ),
        success=row["success"],
        score=row["score"],
        total_reward=row["total_reward"],
        root=Snapshot.from_bytes(row["root"]),
        steps_left=row["steps_left"],
        goal=row["goal"],
        history=tuple(HistoryItem(**exchange) for exchange in row["history"]),
        root_step=row["root_step"],
        next_admissible=tuple(row["next_admissible"]),
    )
    if branch.root.task_id != row["task_id"]:
        raise ValueError(f"its root is of task {branch.root.task_id!r}")
    own = PolicyEnd(
        tuple(row["policy_actions"]),
        tuple(row["policy_rewards"]),
        row["policy_success"],
        row["policy_score"],
    )
    expected = RootRecord(row["expected_observation"], tuple(row["expected_admissible"]))
    names = ("oracle", "policy", "seed", "rollout", "horizon")
    return BankRow(branch, expected, own, **{name: row[name] for name in names})


def check_header(path: Path, header: BankHeader) -> dict[str, Any]:
    """The values of a header that can be written.

    Raises:
        BankError: something that would not come back as it is.
    """
    try:
        values = _header_values(header)
        if json.loads(json.dumps(values, allow_nan=False)) != values:
            raise ValueError("a tuple, or a key that is no text")
    except (TypeError, ValueError, RecursionError) as error:
        raise BankError(
            f"Cannot write the bank {path}: its header is not plain JSON ({error}). Use strings, "
            "numbers, true, false, null, lists and objects; name data by a path or a text such as "
            "'generated:small?seed=1'."
        ) from error
    return values


def write_file(path: Path, header: BankHeader, rows: Sequence[Row]) -> str:
    """Write a bank and return its digest; readers see the former file or the whole new one.

    Raises:
        BankError: something that would not come back as it is.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts = count(rows)
    values = check_header(path, header)
    digest = bank_digest(header, counts, rows)
    told = json.dumps({**values, "counts": counts, "digest": digest}, sort_keys=True)
    schema = _schema().with_metadata({_FORMAT_KEY: b"%d" % BANK_FORMAT, _HEADER_KEY: told.encode()})
    try:
        table = pa.Table.from_pylist(list(rows), schema=schema)
    except (pa.ArrowException, UnicodeError, OverflowError, TypeError) as error:
        raise BankError(f"Cannot write the bank {path}: {error}.") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise BankError(f"Cannot write the bank {path}: {error}.") from error
    try:
        with os.fdopen(handle, "wb") as file:
            pq.write_table(
                table,
                file,
                compression="zstd",
                write_page_checksum=True,
                write_statistics=False,  # nobody filters; what is not there cannot be damaged
            )
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise BankError(f"Cannot write the bank {path}: {error}.") from error
        raise
    return digest


def read_file(path: Path) -> RawBank:
    """Read what `write_file` wrote, as far as its form goes.

    Raises:
        MissingBank: no such file.
        BankError: damaged, cut short, no bank, or of another format version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise MissingBank(f"There is no bank {path}. `sero bank build --out {path}` makes one.")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            _check_format(path, metadata.get(_FORMAT_KEY), file.schema_arrow)
            plain = file.metadata.metadata or {}  # the copy that other readers of Parquet see
            for key in (_FORMAT_KEY, _HEADER_KEY):
                if plain.get(key) != metadata[key]:
                    raise ValueError(f"The two copies of {key.decode()!r} in its metadata differ.")
            rows = file.read().to_pylist()
        told = json.loads(metadata[_HEADER_KEY])
        header = BankHeader(**{f.name: told[f.name] for f in fields(BankHeader)})
        return RawBank(path, header, told["counts"], told["digest"], tuple(rows))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, BankError):
            raise
        raise BankError(
            f"The bank {path} is damaged or cut short, or no bank at all: "
            f"{' '.join(str(error).split())}{damage(path)} Copy it again, or build it again with "
            "`sero bank build`."
        ) from error


def check_digests(bank: RawBank) -> None:
    """Compare all digests and counts.

    Raises:
        BankError: one differs; names the branch.
    """
    advice = "Copy it again; `sero bank verify` says what differs."
    for number, row in enumerate(bank.rows):
        if row_digest(row) != row["digest"]:
            raise BankError(
                f"Branch {number} of the bank {bank.path} (task {row['task_id']!r}) is not as it "
                f"was written: its digest differs. {advice}"
            )
    if bank_digest(bank.header, bank.counts, bank.rows) != bank.digest:
        raise BankError(
            f"The bank {bank.path} is not as it was written: its header, or which branches it has, "
            f"differs from its digest. {advice}"
        )
    if count(bank.rows) != bank.counts:
        raise BankError(
            f"The bank {bank.path} says that it has {bank.counts}, found {count(bank.rows)}."
        )


def decoded(bank: RawBank, number: int) -> BankRow:
    """Row `number`.

    Raises:
        BankError: it holds what no branch has.
    """
    try:
        return from_row(bank.rows[number])
    except (SnapshotFormatError, ValueError, TypeError, KeyError) as error:
        raise BankError(
            f"Branch {number} of the bank {bank.path} cannot be read: {error}. Copy the bank "
            "again, or build it again with `sero bank build`."
        ) from error


def _check_format(path: Path, found: bytes | None, schema: Any) -> None:
    if found is None:
        raise BankError(
            f"{path} is a Parquet file but no bank: its metadata has no {_FORMAT_KEY.decode()!r}. "
            "Give a file that `sero bank build` wrote."
        )
    if found != b"%d" % BANK_FORMAT:
        raise BankError(
            f"The bank {path} has format {found.decode(errors='replace')}, this version reads "
            f"{BANK_FORMAT}. Read it with the version of sero that wrote it, or build it again."
        )
    expected = _schema()
    if not schema.equals(expected):
        missing = sorted(set(expected.names) - set(schema.names))
        extra = sorted(set(schema.names) - set(expected.names))
        raise BankError(
            f"The bank {path} says that it has format {BANK_FORMAT}, but its columns differ: "
            f"missing {missing}, unknown {extra}, or a type changed. Build it again."
        )


def _schema() -> Any:
    import pyarrow as pa

    text, number, real, flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    texts, reals = pa.list_(text), pa.list_(real)
    exchange = pa.struct([("observation", text), ("action", text), ("command_valid", flag)])
    kinds = {"str": text, "tuple[str, ...]": texts, "float": real, "bool": flag}
    step = pa.struct([(f.name, kinds.get(str(f.type), text)) for f in fields(BranchStep)])
    others = {
        **dict.fromkeys(("seed", "rollout", "root_step", "horizon", "steps_left"), number),
        **dict.fromkeys(("valid", "success", "policy_success"), flag),
        **dict.fromkeys(("score", "total_reward", "policy_score"), real),
        **dict.fromkeys(("expected_admissible", "reasons", "next_admissible"), texts),
        "root": pa.binary(),
        "history": pa.list_(exchange),
        "steps": pa.list_(step),
        "policy_actions": texts,
        "policy_rewards": reals,
    }
    optional = {"horizon", "steps_left"}
    return pa.schema(
        pa.field(name, others.get(name, text), nullable=name in optional) for name in COLUMNS
    )


COLUMNS = (
    *("task_id", "oracle", "policy", "seed", "rollout", "horizon", "root", "root_step"),
    *("steps_left", "goal", "history", "expected_observation", "expected_admissible"),
    *("status", "valid", "reasons", "detail", "steps", "next_admissible", "success", "score"),
    *("total_reward", "policy_actions", "policy_rewards", "policy_success", "policy_score"),
    "digest",
)


def _values(record: HistoryItem | BranchStep) -> dict[str, Any]:
    found = {f.name: getattr(record, f.name) for f in fields(record)}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in found.items()}


def _header_values(header: BankHeader) -> dict[str, Any]:
    found = {f.name: getattr(header, f.name) for f in fields(header)}
    return {name: dict(v) if isinstance(v, Mapping) else v for name, v in found.items()}
