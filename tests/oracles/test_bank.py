"""The oracle bank: what is written comes back, and what changed is noticed and named."""

from __future__ import annotations

import math
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oracles.bank import (
    Bank,
    BankError,
    BankHeader,
    BankRow,
    MissingBank,
    PolicyEnd,
    read_bank,
    verify_bank,
    write_bank,
)
from oracles.bank_format import read_file
from oracles.branch import Branch
from tests.oracles.bank_rows import header, row, rows, written
from tests.oracles.rooms import SOLUTION

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("bank") / "rows.parquet")


# ------------------------------------------------------------------ write and read


def test_what_is_written_comes_back(bank: Path) -> None:
    assert read_bank(bank) == Bank(header(), tuple(rows()), read_file(bank).digest)
    first = read_bank(bank).rows[0]
    assert [step.action for step in first.branch.steps] == list(SOLUTION)
    assert first.branch.restore_s == 0.0  # timings are not kept
    assert read_file(bank).counts == {"branches": 11, "valid": 6, "success": 3, "steps": 20}


def test_the_same_branches_make_the_same_file(bank: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.parquet"
    digest = write_bank(again, header(), rows())
    assert again.read_bytes() == bank.read_bytes()
    assert digest == read_bank(bank).digest
    other = tmp_path / "other.parquet"
    assert write_bank(other, header(), rows()[::-1]) != digest  # the order counts
    assert write_bank(other, header(seed=8), rows()) != digest


def test_floats_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = (0.1 + 0.2, -0.0, math.inf, math.nan, 5e-324)
    one = row()
    odd = replace(one, own=PolicyEnd(("look",) * 5, values, False, 1 / 3))
    write_bank(tmp_path / "a", header(), [odd])
    found = read_bank(tmp_path / "a").rows[0].own
    assert [value.hex() for value in found.rewards] == [value.hex() for value in values]
    assert found.score.hex() == (1 / 3).hex()


def test_both_returns_are_those_of_the_env() -> None:
    won, lost = row(*SOLUTION[:4], own=SOLUTION[4:]), row()
    for target in ("success", "score", "reward"):
        assert won.returns(target) == (1.0, 1.0)
        assert lost.returns(target) == (0.0, 1.0)
    graded = replace(lost, own=PolicyEnd(("a", "b"), (0.25, 0.5), False, 0.625))
    assert [graded.returns(t)[0] for t in ("success", "score", "reward")] == [0.0, 0.625, 0.75]


def test_a_failed_write_leaves_the_former_file(bank: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bank.parquet"
    write_bank(path, header(), rows()[:1])
    before = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    one = row()
    lost = replace(one.branch, reasons=("worker_error",), valid=False)
    bad: list[tuple[BankHeader, BankRow]] = [
        (header(), replace(one, policy="\ud800")),
        (header(), replace(one, seed=2**70)),
        (header(), replace(one, branch=lost)),
        (header(), replace(one, branch=replace(one.branch, root=_forged(one.branch)))),
        (header(env_kwargs={"data": object()}), one),
        (header(env_kwargs={"task_types": ("look",)}), one),
        (header(provenance={"lr": math.nan}), one),
    ]
    for head, item in bad:
        with pytest.raises(BankError, match="Cannot write the bank"):
            write_bank(path, head, [item])
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["bank.parquet"]
    with pytest.raises(BankError, match="Cannot write"):
        write_bank(path / "below a file", header(), [one])


def _forged(branch: Branch) -> Any:
    return replace(branch.root, state=(object(),))


# ------------------------------------------------------------------ damage


def test_a_file_that_is_no_bank_is_refused(bank: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    with pytest.raises(MissingBank, match="sero bank build"):
        read_bank(tmp_path / "none")
    whole = bank.read_bytes()
    damaged = tmp_path / "damaged"
    for content in (b"", b"no parquet", whole[:-1], whole[: len(whole) // 2], whole[1:]):
        damaged.write_bytes(content)
        for reader in (read_bank, verify_bank):
            with pytest.raises(BankError, match=r"damaged or cut short.*again"):
                reader(damaged)
    table = pq.read_table(bank)
    pq.write_table(table.replace_schema_metadata(None), damaged)
    with pytest.raises(BankError, match="no bank"):
        read_bank(damaged)
    pq.write_table(
        table.replace_schema_metadata({**table.schema.metadata, b"sero.bank": b"99"}), damaged
    )
    with pytest.raises(BankError, match="format 99, this version reads 1"):
        read_bank(damaged)
    pq.write_table(table.drop_columns(["goal"]), damaged)
    with pytest.raises(BankError, match=r"missing \['goal'\]"):
        read_bank(damaged)
    told = {**table.schema.metadata, b"sero.bank.header": b"{}"}
    pq.write_table(table.replace_schema_metadata(told), damaged)
    with pytest.raises(BankError, match="damaged"):
        read_bank(damaged)


def test_no_changed_byte_goes_unnoticed(bank: Path, tmp_path: Path) -> None:
    whole, good = bank.read_bytes(), read_bank(bank)
    path = tmp_path / "flipped"
    noticed = 0
    places = range(0, len(whole), max(len(whole) // 150, 1))
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(bytes(changed))
        try:
            # a byte of the container that says nothing of the branches may change
            assert read_bank(path) == good, place
        except BankError:
            noticed += 1
    assert noticed > 0.6 * len(places)


def test_a_changed_byte_is_placed(bank: Path, tmp_path: Path) -> None:
    whole, rows = bank.read_bytes(), read_bank(bank).rows
    path = tmp_path / "flipped"
    tasks = {f"branch {i} (task {row.branch.root.task_id!r})" for i, row in enumerate(rows)}
    said = set()
    for place in range(4, len(whole), max(len(whole) // 120, 1)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            read_bank(path)
        except BankError as error:
            words = str(error)
            said.add("branch" if any(t in words for t in tasks) else "column")
            if "checksum" in words:
                assert "What changed is in" in words
    assert said == {"branch", "column"}


def test_both_copies_of_the_header_have_to_agree(bank: Path, tmp_path: Path) -> None:
    whole = bank.read_bytes()
    path = tmp_path / "changed"
    digest = read_bank(bank).digest.encode()
    places = [place for place in range(len(whole)) if whole.startswith(digest, place)]
    assert places  # the plain copy, which other readers of Parquet see; ours reads another
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BankError, match="damaged"):
            read_bank(path)
