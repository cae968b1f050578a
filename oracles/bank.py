"""The frozen oracle bank: branches on disk, and proof that they can still be carried out.

A bank lets several ways of training see the same branches in the same order. Its file says where
they come from (`oracles.bank_format`, docs/bank.md); `verify_bank` runs them all again.

Promises (tests/oracles/test_bank*.py):

1. `read_bank` gives what `write_bank` got, floats bit for bit, but for the timings; the same
   branches make the same file.
2. A byte that changed is noticed, and the branch is named.
3. Verification restores every root in an environment of its own, runs the recorded commands of the
   oracle and of the policy, and compares every field that the environment decides. It asks no
   oracle and needs none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import gymnasium

import agent_envs
from agent_envs.errors import SeroError, SnapshotFormatError
from oracles.bank_digest import row_digest
from oracles.bank_format import (
    BANK_FORMAT,
    BankError,
    BankHeader,
    BankRow,
    MissingBank,
    PolicyEnd,
    RawBank,
    Row,
    bank_digest,
    check_digests,
    count,
    decoded,
    from_row,
    read_file,
    to_row,
    write_file,
)
from oracles.base import Decision, History, PlanStatus
from oracles.branch import FAILURES, Branch, BranchStatus, Reason, run
from oracles.branches import WORKER_ERROR, Env, EnvRecipe, EnvSource

__all__ = [
    "BANK_FORMAT",
    "Bank",
    "BankError",
    "BankHeader",
    "BankRow",
    "Mismatch",
    "MissingBank",
    "PolicyEnd",
    "Recorded",
    "Verification",
    "header_of",
    "read_bank",
    "verify_bank",
    "write_bank",
]

_NOT_COMPARED = ("detail", "digest")
"""Words for people, which only the oracle could repeat; and the digest, compared apart."""
_VERSIONS = ("engine", "engine_version", "reward_version")
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Bank:
    """A bank that was read: its digests hold."""

    header: BankHeader
    rows: tuple[BankRow, ...]
    digest: str
    """Names the bank: over all rows and the header."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that is not as recorded."""

    branch: int | None
    """Number of the row, from 0; None: the file as a whole."""
    task_id: str
    what: str
    """The column, such as `steps[2].reward`."""
    expected: str
    """As recorded."""
    found: str

    def __str__(self) -> str:
        where = "the bank" if self.branch is None else f"branch {self.branch}, {self.task_id}"
        return f"{where}: {self.what}\n  recorded {self.expected}\n  found    {self.found}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of running a bank again."""

    branches: int
    steps: int
    """Commands run: of the oracle and of the policy."""
    mismatches: tuple[Mismatch, ...]

    @property
    def ok(self) -> bool:
        """Whether there was something to compare and all of it is as recorded."""
        return self.branches > 0 and not self.mismatches


def header_of(
    env: Env,
    recipe: EnvRecipe,
    *,
    oracle: str,
    policy: str,
    seed: int,
    provenance: dict[str, Any] | None = None,
) -> BankHeader:
    """The header of a bank whose branches ran in environments of `recipe`, such as `env`.

    `env` is reset.
    """
    told = env.reset(seed=0)[1]["provenance"]
    revision, manifest = _identity(env, told)
    versions = {name: told[name] for name in _VERSIONS if name in told}
    return BankHeader(
        env_id=recipe.env_id,
        env_kwargs=recipe.kwargs,
        data_revision=revision,
        manifest_hash=manifest,
        oracle=oracle,
        policy=policy,
        seed=seed,
        provenance={**versions, **(provenance or {})},
    )


def write_bank(path: str | Path, header: BankHeader, rows: Sequence[BankRow]) -> str:
    """Write a bank and return its digest; readers see the former file or the whole new one.

    Raises:
        BankError: something that would not come back as it is.
    """
    target = Path(path)
    made = []
    for number, row in enumerate(rows):
        if WORKER_ERROR in row.branch.reasons:
            raise BankError(
                f"Cannot write the bank {target}: branch {number} failed for its worker "
                f"({row.branch.detail}), which says nothing of the branch. Run it again."
            )
        try:
            made.append(to_row(row))
        except SnapshotFormatError as error:
            raise BankError(
                f"Cannot write the bank {target}: the root of branch {number}: {error}"
            ) from error
    return write_file(target, header, made)


def read_bank(path: str | Path) -> Bank:
    """Read a bank and check its digests; nothing is run.

    Raises:
        MissingBank: no such file.
        BankError: damaged, changed (names the branch), no bank, or of another format version.
    """
    raw = read_file(Path(path))
    check_digests(raw)
    rows = tuple(decoded(raw, number) for number in range(len(raw.rows)))
    return Bank(raw.header, rows, raw.digest)


def verify_bank(
    path: str | Path,
    env: EnvSource | None = None,
) -> Verification:
    """Run all branches of a bank again, from their roots, with the recorded commands.

    Args:
        path: the file.
        env: makes the environment; None: as the header says.

    Raises:
        MissingBank, BankError: the file cannot be read, or the environment is not the one that
            the bank was made with, so that nothing can be compared.
    """
    raw = read_file(Path(path))
    differences: list[Mismatch] = []
    ran = 0
    if bank_digest(raw.header, raw.counts, raw.rows) != raw.digest:
        found = bank_digest(raw.header, raw.counts, raw.rows)
        differences.append(Mismatch(None, "", "digest", raw.digest, found))
    if count(raw.rows) != raw.counts:
        differences.append(_difference(None, "", "counts", raw.counts, count(raw.rows)))
    world = _open(raw, env)
    try:
        for number, row in enumerate(raw.rows):
            ran += len(row["steps"]) + len(row["policy_actions"])
            differences.extend(_verify_row(world, number, row))
    finally:
        world.close()
    return Verification(len(raw.rows), ran, tuple(differences))


# ------------------------------------------------------------------ one branch


class Recorded:
    """An oracle that says what the oracle of a branch said, and stops for the same reason."""

    privileged = False

    def __init__(self, branch: Branch) -> None:
        self._steps = branch.steps
        self._reasons = branch.reasons

    def start(self, view: None, history: History) -> int:
        return 0

    def act(self, state: int, view: None, observation: str) -> tuple[Decision, int]:
        if state < len(self._steps):
            step = self._steps[state]
            return Decision(PlanStatus.FOUND, step.action, thought=step.thought), state + 1
        for status in PlanStatus:
            if Reason.of_status(status) in self._reasons:
                return Decision(status, None), state
        if Reason.NO_ACTION in self._reasons:
            return Decision(PlanStatus.FOUND, None), state
        if Reason.INADMISSIBLE in self._reasons:
            return Decision(PlanStatus.FOUND, "\0"), state
        raise RuntimeError("nothing is recorded of what comes here")


def _verify_row(env: Env, number: int, row: Row) -> Iterator[Mismatch]:
    task_id = row["task_id"]
    if row_digest(row) != row["digest"]:
        yield Mismatch(number, task_id, "digest", row["digest"], row_digest(row))
    try:
        recorded = from_row(row)
    except (SeroError, ValueError, TypeError) as error:
        yield Mismatch(number, task_id, "row", "a branch", str(error))
        return
    branch = run(
        env,
        recorded.branch.root,
        Recorded(recorded.branch),
        recorded.horizon,
        history=recorded.branch.history,
        expected=recorded.expected,
        root_step=recorded.branch.root_step,
    )
    if Reason.ENV_ERROR in recorded.branch.reasons:
        # No row has the command, or the view, that the environment failed at, so that cannot be
        # had again: what counts is that everything before it came again.
        codes = {Reason.ORACLE_ERROR: Reason.ENV_ERROR}
        branch = replace(branch, reasons=tuple(codes.get(r, r) for r in branch.reasons))
    own = recorded.own
    if branch.status is not BranchStatus.NOT_STARTED:
        own = _play_again(env, recorded)
    again = to_row(
        BankRow(
            branch,
            recorded.expected,
            own,
            recorded.oracle,
            recorded.policy,
            recorded.seed,
            recorded.rollout,
            recorded.horizon,
        )
    )
    for column, value in row.items():
        if column == "steps":
            yield from _first_step(number, task_id, value, again[column])
        elif column not in _NOT_COMPARED and _text(value) != _text(again[column]):
            what = column
            hint = branch.detail if column in ("status", "valid", "reasons") else ""
            yield _difference(number, task_id, what, value, again[column], hint)


def _first_step(
    number: int, task_id: str, recorded: Sequence[Row], found: Sequence[Row]
) -> Iterator[Mismatch]:
    """What differs in the first step that does: those after it start elsewhere."""
    for k, (before, now) in enumerate(zip(recorded, found, strict=False)):
        wrong = [name for name in before if _text(before[name]) != _text(now[name])]
        for name in wrong:
            yield _difference(number, task_id, f"steps[{k}].{name}", before[name], now[name])
        if wrong:
            return
    if len(recorded) != len(found):
        yield _difference(number, task_id, "number of steps", len(recorded), len(found))


def _play_again(env: Env, recorded: BankRow) -> PolicyEnd:
    """The policy's own commands from the root; as far as the episode goes."""
    _, info = agent_envs.restore(env, recorded.branch.root)
    rewards: list[float] = []
    over = info.get("stop_reason") is not None
    for action in recorded.own.actions:
        if over:
            break
        try:
            _, reward, terminated, truncated, info = env.step(action)
        except FAILURES:  # it did not when the bank was made: the missing command is what differs
            break
        rewards.append(float(reward))
        over = terminated or truncated
    actions = recorded.own.actions[: len(rewards)]
    return PolicyEnd(actions, tuple(rewards), bool(info["success"]), float(info["score"]))


# ------------------------------------------------------------------ the environment


def _open(raw: RawBank, source: EnvSource | None) -> Env:
    header = raw.header
    if source is None and ":" in header.env_id:
        # Gymnasium would import what a file names.
        _refuse(
            raw,
            f"{header.env_id!r} names a module. If you trust it, say so: `sero bank verify --env "
            f"{header.env_id}`; in Python, give `env`",
            elsewhere=False,
        )
    given = (header.env_id, header.env_kwargs) if source is None else source
    make = EnvRecipe(*given) if isinstance(given, tuple) else given
    try:
        env = make()
        identity = _identity(env, env.reset(seed=0)[1]["provenance"])
    except (gymnasium.error.Error, ImportError, SeroError, TypeError) as error:
        _refuse(raw, f"its environment cannot be made: {error}")
    if identity != (header.data_revision, header.manifest_hash):
        env.close()
        _refuse(
            raw,
            f"it was made on data of revision {header.data_revision!r} (tasks "
            f"{header.manifest_hash!r}), here are {identity[0]!r} (tasks {identity[1]!r})",
        )
    return env


def _refuse(raw: RawBank, why: str, *, elsewhere: bool = True) -> NoReturn:
    """`elsewhere`: whether other data may help; only of an environment that was given some."""
    header = raw.header
    hint = (
        "; `sero bank verify --data` names the data where they lie elsewhere"
        if elsewhere and "data" in header.env_kwargs
        else ""
    )
    raise BankError(
        f"The bank {raw.path} cannot be verified here: {why.rstrip('.')}. It needs "
        f"{header.env_id} with {dict(header.env_kwargs)}{hint}."
    )


def _identity(env: Env, provenance: Any) -> tuple[str, str]:
    unwrapped: Any = env.unwrapped
    revision = str(getattr(unwrapped, "data_revision", provenance.get("data_revision", "")))
    return revision, str(provenance.get("manifest_hash", revision))


def _difference(
    number: int | None, task_id: str, what: str, recorded: Any, found: Any, hint: str = ""
) -> Mismatch:
    before, now = _short(recorded), _short(found)
    return Mismatch(number, task_id, what, before, f"{now} ({hint})" if hint else now)


def _text(value: Any) -> str:
    # equal also for NaN, and different for 0.0 and -0.0
    return json.dumps(value, sort_keys=True, default=bytes.hex)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
