"""The oracle bank: what is written comes back, and what changed is noticed and named."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agent_envs
from oracles import Decision, History, PlanStatus
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.bank import (
    Bank,
    BankError,
    BankHeader,
    BankRow,
    MissingBank,
    PolicyEnd,
    header_of,
    read_bank,
    verify_bank,
    write_bank,
)
from oracles.bank_digest import row_digest
from oracles.bank_format import RawBank, Row, read_file, write_file
from oracles.branch import Branch, RootRecord, run
from oracles.branches import EnvRecipe
from tests.oracles.rooms import SOLUTION, Scripted, make, open_house, rolled_out

pytest.importorskip("pyarrow")

WASTE = ("look", "inventory", "look")


def row(
    *commands: str,
    oracle: Any = None,
    max_steps: int | None = 20,
    horizon: int | None = None,
    own: tuple[str, ...] = WASTE,
    expected: RootRecord | None = None,
) -> BankRow:
    """A branch from after `commands`, where the policy goes on with `own`."""
    env, history, record = rolled_out(*commands, max_steps=max_steps)
    snapshot = agent_envs.snapshot(env)
    record = expected or record
    branch = run(
        make(open_house(), max_steps=max_steps),
        snapshot,
        oracle or ALFWorldPlanner(),
        horizon,
        history=history,
        expected=record,
    )
    rewards, info = [], {"success": False, "score": 0.0}
    for command in own:
        _, reward, _, _, info = env.step(command)
        rewards.append(float(reward))
    end = PolicyEnd(own, tuple(rewards), bool(info["success"]), float(info["score"]))
    return BankRow(branch, record, end, "planner", "waster", 7, len(commands), horizon)


class Thinking:
    privileged = False

    def start(self, view: Any, history: History) -> int:
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Decision, int]:
        return Decision(PlanStatus.FOUND, "look", thought="ich schaue, „überall“ 🕯"), state


NO_WAY = Decision(PlanStatus.UNSOLVABLE, None, "there is no mug")


def rows() -> list[BankRow]:
    """Branches of every kind that an env can repeat."""
    return [
        row(),
        row("go to cabinet 1", "nonsense"),
        row(*SOLUTION[:4], own=SOLUTION[4:]),  # the policy won
        row(oracle=Thinking(), horizon=2),
        row("look", horizon=3),
        row(oracle=Scripted(("look", NO_WAY))),
        row(oracle=Scripted(("fly",))),
        row(oracle=Scripted((Decision(PlanStatus.FOUND, None),))),
        row(oracle=Scripted(("look", RuntimeError("lost")))),
        row(*["look"] * 18, own=("look", "look"), oracle=Thinking()),
        row(expected=RootRecord("another room", ())),
    ]


def env_of(max_steps: int | None = 20) -> Callable[[], Any]:
    return lambda: make(open_house(), max_steps=max_steps)


def header(**changes: Any) -> BankHeader:
    recipe = EnvRecipe("SeroALFWorld-v0", {"data": "the toy house", "max_steps": 20})
    found = header_of(env_of()(), recipe, oracle="planner", policy="waster", seed=7)
    return replace(found, **changes)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bank") / "rows.parquet"
    write_bank(path, header(), rows())
    return path


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
