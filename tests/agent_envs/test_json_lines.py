"""Files of JSON lines are read whole, and damaged ones refused by file and line."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from agent_envs.errors import CorruptData, MissingData
from agent_envs.json_lines import DEEPEST, json_lines


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_values_with_the_numbers_of_their_lines(tmp_path: Path, name: str) -> None:
    data = b'\n{"a": "\xc3\xa9"}\r\n \n3\n' + nested(DEEPEST) + b"\n[]"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = list(json_lines(tmp_path / name, "things"))
    assert [number for number, _ in found] == [2, 4, 5, 6]
    assert (found[0][1], found[1][1], found[3][1]) == ({"a": "é"}, 3, [])


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'"\xff"',
        b"9" * 5000,
        nested(DEEPEST + 1),
        nested(100_000),
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=["cut", "bytes", "digits", "deep", "very deep", "objects"],
)
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_bad_line_is_named(tmp_path: Path, name: str, line: bytes) -> None:
    path, data = tmp_path / name, b"[1]\n\n" + line + b"\n[2]\n"
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    lines = json_lines(path, "things")
    assert next(lines) == (1, [1])
    with pytest.raises(CorruptData, match=f"things {re.escape(str(path))}: line 3: "):
        next(lines)


def test_a_bad_gzip_file_is_named(tmp_path: Path) -> None:
    path, whole = tmp_path / "t.jsonl.gz", gzip.compress(b"[1]\n[2]\n[3]\n")
    broken = whole[:10] + b"\xff" * 4 + whole[14:]  # no deflate block begins so
    for data in (b"no gzip", broken, whole[:-6], whole[:-8] + b"\0" * 8):
        path.write_bytes(data)
        with pytest.raises(CorruptData, match=f"{re.escape(str(path))}: line [1-4]: "):
            list(json_lines(path, "things"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="no file of things"):
        next(json_lines(tmp_path / "none", "things"))
