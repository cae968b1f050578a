"""`Snapshot`: one point of one episode as an immutable value, and its safe binary form.

Layout of the bytes: ``sero-snapshot <format>\\n``, the SHA-256 of the rest in hex, ``\\n``, then
canonical JSON in UTF-8, lone surrogates included. Nothing is ever unpickled or evaluated. The
digest guards against damage, not against forgery: an env therefore checks every value again before
it restores anything.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeAlias

from agent_envs.errors import SnapshotFormatError

FORMAT = 2
"""Version of the layout of `Snapshot`, bumped with every change of it."""

MAX_BYTES = 4 << 20
MAX_DEPTH = 32
MAX_INT_BITS = 4096

# int | str | bool | None | float | tuple of these; mypy cannot check a recursive tuple alias
# against the tuples that engines build, so `Plain` stays open and `_frozen` checks instead.
Plain: TypeAlias = Any

_MAGIC = b"sero-snapshot "
_INT_DIGITS = len(str(1 << MAX_INT_BITS)) + 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything needed to resume one episode in another process.

    Holds no live handle; hashable and comparable. Covers the whole wrapper stack: the step
    budget and the random generator are part of the state. Taking one costs no encoding.
    """

    format: int
    """Layout version, `FORMAT`."""
    env_id: str
    """Such as ``"SeroALFWorld-v0"``."""
    task_id: str
    state: tuple[Plain, ...]
    """The env's own value: engine state, last observation, counters, place in the schedule."""
    steps_left: int | None
    """Steps left in the env's own budget; None: no limit. Limits of wrappers are in `wrappers`."""
    rng_state: tuple[Plain, ...]
    """Generator name and its numbers."""
    wrappers: tuple[tuple[str, tuple[Plain, ...]], ...]
    """(type of the wrapper, its state), outermost first."""
    data_revision: str
    """Revision of the data that the task comes from."""

    def to_bytes(self) -> bytes:
        """Encode with a digest.

        Raises:
            SnapshotFormatError: if a value is not made of int, str, bool, None, finite float and
                tuples of these, or the result would exceed `MAX_BYTES`.
        """
        payload = {f.name: _frozen(getattr(self, f.name)) for f in fields(self)}
        try:
            # Not ASCII: escaped, two surrogates side by side are read as one character.
            text = json.dumps(
                payload, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
            )
            body = text.encode("utf-8", "surrogatepass")
        except ValueError as error:
            raise SnapshotFormatError(f"Cannot encode the snapshot: {error}.") from error
        if len(body) > MAX_BYTES:
            raise SnapshotFormatError(
                f"The snapshot takes {len(body)} bytes, the limit is {MAX_BYTES}."
            )
        digest = hashlib.sha256(body).hexdigest().encode("ascii")
        return b"%s%d\n%s\n%s" % (_MAGIC, self.format, digest, body)

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """Decode what `to_bytes` gave. Safe on hostile input.

        Raises:
            SnapshotFormatError: on anything but the exact bytes of a well-formed snapshot.
        """
        if not isinstance(data, bytes):
            raise SnapshotFormatError(f"Expected bytes, got {type(data).__name__}.")
        if len(data) > MAX_BYTES + 256:
            raise SnapshotFormatError(f"{len(data)} bytes exceed the limit of {MAX_BYTES}.")
        head, _, rest = data.partition(b"\n")
        digest, _, body = rest.partition(b"\n")
        if not head.startswith(_MAGIC):
            raise SnapshotFormatError("These bytes do not start as a snapshot does.")
        if head != b"%s%d" % (_MAGIC, FORMAT):
            raise SnapshotFormatError(
                f"Snapshot format {head[len(_MAGIC) :][:20]!r} is not {FORMAT}, the one this "
                "version reads. Take the snapshot again."
            )
        if not hmac.compare_digest(digest, hashlib.sha256(body).hexdigest().encode("ascii")):
            raise SnapshotFormatError("The digest does not match: the bytes are damaged.")
        try:
            payload = json.loads(
                body.decode("utf-8", "surrogatepass"),
                parse_int=_bounded_int,
                parse_constant=_refuse_constant,
            )
        except (ValueError, RecursionError) as error:
            raise SnapshotFormatError(f"The snapshot is not valid JSON: {error}.") from error
        snap = cls._checked(payload)
        # One value has one encoding: this rejects repeated keys, spaces, `1e0` for `1.0`, ...
        if snap.to_bytes() != data:
            raise SnapshotFormatError("The snapshot is not in canonical form.")
        return snap

    @classmethod
    def _checked(cls, payload: object) -> Snapshot:
        names = {f.name for f in fields(cls)}
        if not isinstance(payload, dict) or payload.keys() != names:
            found = sorted(payload) if isinstance(payload, dict) else type(payload).__name__
            raise SnapshotFormatError(f"Expected the fields {sorted(names)}, found {found}.")
        values = {name: _frozen(value, lists=True) for name, value in payload.items()}
        for name in ("env_id", "task_id", "data_revision"):
            _expect(type(values[name]) is str, name, "a string")
        _expect(values["format"] == FORMAT and type(values["format"]) is int, "format", str(FORMAT))
        left = values["steps_left"]
        _expect(left is None or (type(left) is int and left >= 0), "steps_left", "null or an int")
        for name in ("state", "rng_state", "wrappers"):
            _expect(type(values[name]) is tuple, name, "a list")
        for entry in values["wrappers"]:
            good = type(entry) is tuple and len(entry) == 2
            good = good and type(entry[0]) is str and type(entry[1]) is tuple
            _expect(good, "wrappers", "a list of [type, state] pairs")
        return cls(**values)


def _expect(condition: bool, name: str, expected: str) -> None:
    if not condition:
        raise SnapshotFormatError(f"Field {name!r} of the snapshot is not {expected}.")


def _frozen(value: Any, *, lists: bool = False, depth: int = 0) -> Plain:
    """`value` with its sequences as plain tuples, if it is made of allowed types only."""
    kind = type(value)
    if kind is str or kind is bool or value is None or kind is float:
        return value
    if kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise SnapshotFormatError(f"An integer of {value.bit_length()} bits is too large.")
        return value
    if isinstance(value, tuple) or (lists and kind is list):
        if depth >= MAX_DEPTH:
            raise SnapshotFormatError(f"Nested deeper than {MAX_DEPTH} levels.")
        return tuple([_frozen(item, lists=lists, depth=depth + 1) for item in value])
    raise SnapshotFormatError(
        f"A snapshot holds int, str, bool, None, float and tuples; found {kind.__name__}."
    )


def _bounded_int(digits: str) -> int:
    if len(digits) > _INT_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits is too large")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")
