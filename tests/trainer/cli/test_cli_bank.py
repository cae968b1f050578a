"""`sero bank build` and `sero bank verify`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oracles.bank import read_bank
from oracles.bank_digest import row_digest
from oracles.bank_format import Row, read_file, write_file
from oracles.branch import Branch
from oracles.branches import BranchRequest, EnvRecipe, not_started
from oracles.walks import PLAYERS, BankBuildError, Walk, collect, gate_shares, walks
from tests.support import full_count
from tests.trainer import small
from tests.trainer.cli.conftest import Sero
from tests.trainer.cli.test_cli_without_torch import REFERENCE, TRAIN, _run
from trainer.loop import train

ROOMS = ("--data", "generated:small?seed=1&train=40")
SHOP = ("--env", "webshop", "--data", "generated:small?seed=1")


@pytest.mark.parametrize(
    ("words", "env_id", "oracle"),
    [
        (ROOMS, "SeroALFWorld-v0", "planner"),
        (SHOP, "SeroWebShop-v0", "goal"),
    ],
)
def test_a_bank_is_built_and_verified(
    sero: Sero, tmp_path: Path, words: tuple[str, ...], env_id: str, oracle: str
) -> None:
    number = full_count(12, 2000)
    out = tmp_path / "bank.parquet"
    built = sero("bank", "build", *words, "--branches", number, "--out", out, "--json")
    assert built.code == 0, built.errors
    bank = read_bank(out)
    figures = built.figures
    branches = [row.branch for row in bank.rows]
    assert figures["branches"] == len(branches) == number
    assert figures["episodes"] == number + figures["episodes_won"]
    assert (figures["env"], figures["oracle"]) == (env_id, oracle)
    assert figures["digest"] == bank.digest
    assert figures["success"] == sum(b.success for b in branches) > number / 2
    opened = sum(b.valid and b.success for b in branches)  # the policy failed everywhere
    assert figures["gate_open"]["success"] == opened / number
    assert not any(row.own.success for row in bank.rows)
    assert (bank.header.env_id, bank.header.oracle) == (env_id, oracle)
    assert bank.header.env_kwargs == {"data": words[-1], "split": "train"}
    assert bank.header.provenance["engine"] == "sero-native"
    assert len({row.rollout for row in bank.rows}) == number
    assert len({branch.root.task_id for branch in branches}) > min(number, 40) / 3

    verified = sero("bank", "verify", out, "--json")
    steps = sum(len(b.steps) for b in branches) + sum(len(r.own.actions) for r in bank.rows)
    assert verified.code == 0
    assert verified.figures == {
        "branches": number,
        "steps": steps,
        "mismatches": 0,
        "bad_branches": [],
    }
    assert verified.lines[0] == f"{number} branches, {steps} steps, 0 differences"


def test_equal_arguments_make_equal_files(sero: Sero, tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abcd"]
    for file, seed, workers in zip(files, (5, 5, 5, 6), (0, 0, 1, 0), strict=True):
        words = ["--branches", "4", "--seed", seed, "--workers", workers, "--out", file]
        assert sero("bank", "build", *ROOMS, *words).code == 0
    first, again, elsewhere, other = (file.read_bytes() for file in files)
    assert first == again == elsewhere != other


def test_options_reach_the_branches(sero: Sero, tmp_path: Path) -> None:
    out = tmp_path / "bank"
    words = ["--policy", "first", "--split", "valid_seen", "--max-steps", "9", "--max-depth", "2"]
    built = sero("bank", "build", "--data", "generated:small?seed=1", *words, "--out", out,
                 "--branches", "5", "--env", "alfworld")  # fmt: skip
    assert built.code == 0, built.errors
    bank = read_bank(out)
    assert bank.header.policy == "first"
    assert {len(row.branch.steps) for row in bank.rows if row.branch.valid} <= {1, 2}
    for row in bank.rows:
        assert row.branch.root.task_id.startswith("valid_seen/")
        assert row.branch.root_step + len(row.own.actions) == 9
        assert (row.horizon, row.policy) == (2, "first")
    assert sero("bank", "verify", out).code == 0


def test_a_changed_branch_is_named(sero: Sero, tmp_path: Path) -> None:
    out, changed = tmp_path / "bank", tmp_path / "changed"
    sero("bank", "build", *ROOMS, "--branches", "3", "--out", out)
    raw = read_file(out)
    rows: list[Row] = [dict(row) for row in raw.rows]
    rows[2]["policy_score"] = 0.25
    rows[2]["digest"] = row_digest(rows[2])
    write_file(changed, raw.header, rows)
    outcome = sero("bank", "verify", changed, "--json")
    assert outcome.code == 1
    assert outcome.figures["bad_branches"] == [2]
    assert outcome.lines[0] == f"branch 2, {rows[2]['task_id']}: policy_score"
    assert outcome.lines[1:3] == ["  recorded 0.25", "  found    0.0"]


def test_what_cannot_be_done_is_said(sero: Sero, tmp_path: Path) -> None:
    out = tmp_path / "bank"
    assert sero("bank", "build", *ROOMS, "--branches", "2", "--out", out).code == 0
    before = out.read_bytes()
    cases: list[tuple[list[Any], str]] = [
        (["build", "--out", out], "exists"),
        (["build", "--out", tmp_path / "new", "--branches", "0"], "--branches 0"),
        (["build", "--out", tmp_path / "new", "--policy", "lucky"], "neither random nor first"),
        (["build", "--out", tmp_path / "new", "--policy", tmp_path], "no run folder"),
        (["build", "--out", tmp_path / "new", "--env", "alfwrld"], "Did you mean 'alfworld'?"),
        (["build", "--out", tmp_path / "new", "--oracle", "delphi"], "Unknown oracle 'delphi'"),
        (["build", "--out", tmp_path / "new", "--policy", tmp_path, "--data", "x"], "its own"),
        (["verify", tmp_path / "none"], "There is no bank"),
        (["verify", out, "--data", "generated:small?seed=2"], "cannot be verified here"),
    ]
    for words, message in cases:
        outcome = sero("bank", *words)
        assert outcome.code == 2, words
        assert message in outcome.errors, outcome.errors
    assert out.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["bank"]
    out.write_bytes(before[:-9])
    outcome = sero("bank", "verify", out)
    assert outcome.code == 2
    assert "damaged or cut short" in outcome.errors


def test_other_data_are_offered_only_where_they_may_help(sero: Sero, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    module = "examples.third_party_env"
    assert sero("bank", "build", *ROOMS, "--branches", "2", "--out", ours).code == 0
    built = sero("bank", "build", "--env", f"{module}:make", "--oracle", f"{module}:Oracle",
                 "--branches", "2", "--out", theirs)  # fmt: skip
    assert built.code == 0, built.errors
    hint = "`sero bank verify --data` names the data where they lie elsewhere."
    assert hint in sero("bank", "verify", ours, "--data", "generated:small?seed=2").errors
    refused = sero("bank", "verify", theirs)
    assert refused.code == 2
    assert f"`sero bank verify --env {module}:make`" in refused.errors
    assert "--data" not in refused.errors
    assert sero("bank", "verify", theirs, "--env", f"{module}:make").code == 0


def test_a_policy_that_always_wins_has_no_roots() -> None:
    def played() -> Any:
        while True:
            yield Walk(0, (), (), (), (), True, 1.0, "")

    with pytest.raises(BankBuildError, match="Only 0 of 140 episodes failed") as caught:
        collect(played(), None, 2, oracle="", policy="", seed=0)  # type: ignore[arg-type]
    assert str(caught.value).endswith("Name another --policy: this one does not fail.")


class NothingRun:
    """In place of a runner: every branch stays at its root."""

    def run(self, requests: list[BranchRequest], max_depth: int | None) -> list[Branch]:
        self.requests = requests
        return [not_started(request, "restore_error", "") for request in requests]


def test_roots_are_drawn_from_the_failed_walks_alone() -> None:
    env = EnvRecipe("SeroALFWorld-v0", {"data": ROOMS[1], "max_steps": 8})()
    some = [walk for walk, _ in zip(walks(env, PLAYERS["random"], 3), range(60), strict=False)]
    played = [replace(walk, success=i % 3 == 0) for i, walk in enumerate(some)]
    runner: Any = NothingRun()
    rows, taken = collect(iter(played), runner, 40, oracle="o", policy="p", seed=3, max_depth=4)
    assert taken == 60
    assert [row.rollout for row in rows] == [i for i in range(60) if i % 3]
    for row, request in zip(rows, runner.requests, strict=True):
        walk, t = played[row.rollout], row.branch.root_step
        assert request == BranchRequest(walk.snapshots[t], walk.history[:t], walk.seen[t])
        assert row.own.actions == tuple(item.action for item in walk.history[t:])
        assert row.own.rewards == walk.rewards[t:]
        assert (row.seed, row.horizon, row.expected) == (3, 4, walk.seen[t])
    steps = Counter(row.branch.root_step for row in rows)
    assert set(steps) == set(range(8))
    assert max(steps.values()) < 14  # 40 draws among 8: 5 each
    again, _ = collect(iter(played), runner, 40, oracle="o", policy="p", seed=3, max_depth=4)
    assert again == rows


def test_players_choose_among_what_is_offered() -> None:
    rooms = EnvRecipe("SeroALFWorld-v0", {"data": ROOMS[1], "max_steps": 6})
    first = next(walks(rooms(), PLAYERS["first"], 0))
    chosen = [(item.action, seen.admissible) for item, seen in
              zip(first.history, first.seen, strict=True)]  # fmt: skip
    assert len(chosen) == 6
    assert all(action == offered[0] for action, offered in chosen)
    shop = EnvRecipe("SeroWebShop-v0", {"data": SHOP[3]})
    search = next(walks(shop(), PLAYERS["random"], 0)).history[0]
    assert search.action.startswith("search[Find me ")
    assert search.command_valid
    one, two = (next(walks(rooms(), PLAYERS["random"], seed)) for seed in (0, 1))
    assert one == next(walks(rooms(), PLAYERS["random"], 0)) != two
    assert gate_shares([]) == {"success": None, "score": None, "reward": None}


def test_a_trained_policy_plays(sero: Sero, tmp_path: Path) -> None:
    config = small.small_config(run__iterations=1, run__checkpoint_every=1)
    train(config, tmp_path / "run")
    for name in ("a", "b"):
        words = ["--policy", tmp_path / "run", "--branches", "3", "--out", tmp_path / name]
        built = sero("bank", "build", *words, "--json")
        assert built.code == 0, built.errors
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    bank = read_bank(tmp_path / "a")
    assert bank.header.policy == built.figures["policy"] == "run@1"
    assert len(bank.header.provenance["checkpoint"]) == 64
    assert bank.header.env_kwargs["max_steps"] == 6
    assert bank.header.env_kwargs["data"].startswith("generated:small?seed=0&train=8")
    for row in bank.rows:
        assert row.branch.root_step + len(row.own.actions) == 6
    assert sero("bank", "verify", tmp_path / "a").code == 0
    refused = sero("bank", "build", *words[:4], "--env", "webshop", "--out", tmp_path / "c")
    assert refused.code == 2
    assert "was trained on SeroALFWorld-v0" in refused.errors


def test_no_torch_is_needed(tmp_path: Path) -> None:
    hidden = [name for name in TRAIN + REFERENCE if name != "pyarrow"]
    out = tmp_path / "bank"
    lines = _run(hidden, "bank", "build", *ROOMS, "--branches", "2", "--out", out)
    assert lines[-1] == "exit code 0"
    assert _run(hidden, "bank", "verify", out)[-2:] == [
        lines_of(out),
        "exit code 0",
    ]


def lines_of(out: Path) -> str:
    rows = read_bank(out).rows
    steps = sum(len(row.branch.steps) + len(row.own.actions) for row in rows)
    return f"{len(rows)} branches, {steps} steps, 0 differences"
