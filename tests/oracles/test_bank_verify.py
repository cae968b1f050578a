"""Verification of a bank: what was changed is found and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracles.bank import (
    BankError,
    read_bank,
    verify_bank,
    write_bank,
)
from oracles.bank_digest import row_digest
from oracles.bank_format import RawBank, Row, read_file, write_file
from tests.oracles.bank_rows import env_of, header, rows, written
from tests.oracles.rooms import make

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("bank") / "rows.parquet")


def rewritten(bank: Path, tmp_path: Path, change: Callable[[list[Row]], Any], fresh: bool) -> Path:
    """The bank after `change`; with digests made anew if `fresh`."""
    raw = read_file(bank)
    changed = json_copy(raw)
    change(changed)
    for one in changed:
        if fresh:
            one["digest"] = row_digest(one)
    path = tmp_path / "changed.parquet"
    write_file(path, raw.header, changed)
    return path


def json_copy(raw: RawBank) -> list[Row]:
    text = json.dumps(raw.rows, default=bytes.hex)
    copied: list[Row] = json.loads(text)
    for one in copied:
        one["root"] = bytes.fromhex(one["root"])
    return copied


# ------------------------------------------------------------------ verification


def test_a_good_bank_is_verified(bank: Path) -> None:
    result = verify_bank(bank, env_of())
    assert result.mismatches == ()
    assert result.ok
    # 20 of the oracle, and of the policy 9 times 3, once 1 and once 2
    assert (result.branches, result.steps) == (11, 50)


def test_nothing_compared_is_no_success(tmp_path: Path) -> None:
    write_bank(tmp_path / "empty", header(), [])
    assert read_bank(tmp_path / "empty").rows == ()
    assert not verify_bank(tmp_path / "empty", env_of()).ok


def test_a_changed_text_is_named_by_its_branch(bank: Path, tmp_path: Path) -> None:
    def change(changed: list[Row]) -> None:
        changed[1]["history"][0]["action"] = "go to cabinet 2"

    path = rewritten(bank, tmp_path, change, fresh=False)
    with pytest.raises(BankError, match="Branch 1 of the bank"):
        read_bank(path)
    (difference,) = verify_bank(path, env_of()).mismatches
    assert (difference.branch, difference.what) == (1, "digest")
    assert "branch 1, train/" in str(difference)


def test_a_missing_or_moved_branch_is_seen(bank: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, path = pq.read_table(bank), tmp_path / "other"
    moved = pa.concat_tables([table.slice(1, 1), table.slice(0, 1), table.slice(2)])
    for changed, named in ((table.slice(1), ["digest", "counts"]), (moved, ["digest"])):
        pq.write_table(changed, path)
        with pytest.raises(BankError, match="which branches it has"):
            read_bank(path)
        result = verify_bank(path, env_of())
        assert [(d.branch, d.what) for d in result.mismatches] == [(None, n) for n in named]
        assert str(result.mismatches[0]).startswith("the bank: digest")


STEP: list[tuple[str, Any]] = [
    ("observation", "You are elsewhere."),
    ("admissible", ["look"]),
    ("action_templates", ["search[<query>]"]),
    ("action", "go to cabinet 1"),
    ("reward", 0.5),
    ("command_valid", False),
    ("terminated", True),
    ("truncated", True),
    ("next_observation", "Nothing happens."),
]


@pytest.mark.parametrize(("name", "value"), STEP)
def test_each_field_of_a_step_is_compared(
    bank: Path, tmp_path: Path, name: str, value: Any
) -> None:
    def change(changed: list[Row]) -> None:
        changed[0]["steps"][2 if name != "action" else 0][name] = value

    path = rewritten(bank, tmp_path, change, fresh=True)
    read_bank(path)  # the digests are those of the changed rows
    result = verify_bank(path, env_of())
    assert not result.ok
    assert {difference.branch for difference in result.mismatches} == {0}
    named = {difference.what for difference in result.mismatches}
    if name == "action":  # what was run is what is recorded; its answers are not
        assert "steps[0].next_observation" in named
    else:
        assert f"steps[2].{name}" in named


COLUMN: list[tuple[str, Any]] = [
    ("root_step", 3),
    ("steps_left", 19),
    ("goal", "put some mug on shelf."),
    ("expected_observation", "another room"),
    ("expected_admissible", ["look"]),
    ("status", "horizon"),
    ("valid", False),
    ("reasons", ["refused"]),
    ("next_admissible", ["look"]),
    ("success", False),
    ("score", 0.5),
    ("total_reward", 2.0),
    ("policy_actions", ["look", "inventory"]),
    ("policy_rewards", [0.0, 0.0, 1.0]),
    ("policy_success", True),
    ("policy_score", 1.0),
    ("root", b"no snapshot"),
    ("task_id", "train/another"),
    ("status", "fine"),
    ("steps", []),
    ("horizon", 4),
]


@pytest.mark.parametrize(("name", "value"), COLUMN)
def test_each_column_is_compared(bank: Path, tmp_path: Path, name: str, value: Any) -> None:
    def change(changed: list[Row]) -> None:
        changed[0][name] = value

    path = rewritten(bank, tmp_path, change, fresh=True)
    result = verify_bank(path, env_of())
    branches = {difference.branch for difference in result.mismatches}
    if name == "root_step":  # a number of the student's; only its digest speaks for it
        assert result.ok
    else:
        assert branches == {0}, result.mismatches


def test_a_changed_way_out_of_an_invalid_branch_is_seen(bank: Path, tmp_path: Path) -> None:
    def change(changed: list[Row]) -> None:
        changed[5]["reasons"] = []
        changed[5]["valid"] = True
        changed[5]["status"] = "ok"

    result = verify_bank(rewritten(bank, tmp_path, change, fresh=True), env_of())
    assert {d.branch for d in result.mismatches} == {5}
    assert {d.what for d in result.mismatches} == {"reasons", "valid", "status"}


def test_other_data_cannot_verify_a_bank(bank: Path, tmp_path: Path) -> None:
    from tests.oracles.rooms import house

    with pytest.raises(BankError, match=r"made on data of revision .*--data"):
        verify_bank(bank, lambda: make(house()))
    with pytest.raises(BankError, match="its environment cannot be made"):
        verify_bank(bank)  # the toy house is no path
    odd = tmp_path / "odd"
    for env_id, words in (("NoSuch-v0", "cannot be made"), ("os:NoSuch-v0", "names a module")):
        write_bank(odd, header(env_id=env_id), rows()[:1])
        with pytest.raises(BankError, match=words):
            verify_bank(odd)
    # other limits are another world: no root fits
    result = verify_bank(bank, env_of(max_steps=30))
    assert {d.branch for d in result.mismatches} == set(range(11))
    assert "'restore_error'" in next(d.found for d in result.mismatches if d.what == "reasons")


def test_a_hostile_row_ends_nothing(bank: Path, tmp_path: Path) -> None:
    def change(changed: list[Row]) -> None:
        changed[0]["steps"][0]["action"] = None
        changed[1]["steps"][0]["admissible"] = None
        changed[2]["history"] = [{"observation": None, "action": None, "command_valid": None}]
        changed[3]["policy_actions"] = [None]
        changed[4]["policy_actions"] = ["look"] * 500

    result = verify_bank(rewritten(bank, tmp_path, change, fresh=True), env_of())
    assert {d.branch for d in result.mismatches} >= {0, 1, 3, 4}
    assert result.branches == 11


def test_the_rows_here_end_in_every_way() -> None:
    ended = [(one.branch.status.value, one.branch.reasons) for one in rows()]
    assert ended == [
        *[("ok", ())] * 3,
        *[("horizon", ())] * 2,
        ("stopped", ("oracle_unsolvable",)),
        ("stopped", ("inadmissible",)),
        ("stopped", ("no_action",)),
        ("stopped", ("oracle_error",)),
        ("ok", ()),
        ("not_started", ("restore_mismatch",)),
    ]
