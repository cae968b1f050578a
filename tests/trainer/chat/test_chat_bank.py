"""Replays of an oracle bank with conversations: what the policy said before a root comes again."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from oracles.alfworld_planner import ALFWorldPlanner
from oracles.bank import Bank, BankError, BankRow, header_of, read_bank, write_bank
from oracles.bench.figures import Probe
from oracles.branches import BranchRunner
from oracles.walks import collect
from tests.support import full_count
from tests.trainer import small
from tests.trainer.chat import templates, world
from trainer.banks.policy import TrainedPolicy, load_policy_of
from trainer.banks.replay import open_replay, replay_all
from trainer.banks.replay_settings import ReplaySettings
from trainer.banks.rows import grown_roots
from trainer.banks.talks import Before, turns_before
from trainer.branches.branching import grow
from trainer.branches.records import RootChoice
from trainer.config import ConfigError, SeroConfig
from trainer.loop import train
from trainer.models.packing import chains
from trainer.oracle_bench.model import model_figures
from trainer.rollouts.rollout import Trajectory
from trainer.rollouts.tokens import decode
from trainer.runs.folder import make_student
from trainer.worlds.tasks import make_env

FAST: dict[str, Any] = {"eval_tasks": 0, "roots": 3, "iterations": 2, "weight": 1.0}
BRANCHES = 8
TEMPLATES = [templates.CHATML, templates.DROPS_THOUGHTS]


@pytest.fixture(
    scope="module",
    params=TEMPLATES[: full_count(1, 2)],
    ids=["appends", "drops"][: full_count(1, 2)],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat-bank")
    c = world.config(
        world.policy(folder / "policy", request.param),
        run__iterations=2,
        run__checkpoint_every=1,
        env__max_steps=14,
        rollout__rollouts=2,
        eval__tasks=1,
    )
    train(c, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def policy(run: Path) -> TrainedPolicy:
    return load_policy_of(run, None)


@pytest.fixture(scope="module")
def bank(policy: TrainedPolicy, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    with BranchRunner(ALFWorldPlanner, policy.recipe) as runner:
        rows, _ = collect(
            policy.walks(0), runner, BRANCHES, oracle="planner", policy=policy.name, seed=0
        )
    return _kept(tmp_path_factory.mktemp("bank") / "bank", policy, rows, policy.digest)


def _kept(path: Path, policy: TrainedPolicy, rows: list[BankRow], checkpoint: str) -> Bank:
    recipe = policy.recipe
    told = {"checkpoint": checkpoint}
    header = header_of(
        recipe(), recipe, oracle="planner", policy=policy.name, seed=0, provenance=told
    )
    write_bank(path, header, rows)
    return read_bank(path)


@pytest.fixture(scope="module")
def played(policy: TrainedPolicy, bank: Bank) -> dict[int, Trajectory]:
    """The rollouts that the roots were drawn from, by their numbers."""
    numbers = [row.rollout for row in bank.rows]
    return dict(zip(numbers, policy.play(0, numbers), strict=True))


@pytest.fixture(scope="module")
def before(policy: TrainedPolicy, bank: Bank) -> Before:
    return turns_before(policy, bank.rows)


@pytest.mark.parametrize("mode", ["empty", "none"])
def test_rows_are_those_of_branches_that_a_run_grows(
    policy: TrainedPolicy,
    bank: Bank,
    played: dict[int, Trajectory],
    before: Before,
    mode: str,
) -> None:
    c = policy.config
    student = make_student(c, policy.model, policy.tokenizer)
    section = SeroConfig(think_mode=mode)
    env = make_env(c.env, policy.tasks, policy.split)
    found = grown_roots(bank.rows, student, section, c.rollout.max_new_tokens, before)
    assert sum(root.gate > 0 for root in found) >= 2
    assert any(row.branch.root_step > 1 for row in bank.rows)
    for row, root in zip(bank.rows, found, strict=True):
        own = grow(
            RootChoice(0, row.branch.root_step), played[row.rollout], env,
            ALFWorldPlanner(), student, section, c.rollout.max_new_tokens,
        )  # fmt: skip
        assert (root.valid, root.gate, root.rows, root.z_rows) == (
            own.valid, own.gate, own.rows, own.z_rows,
        )  # fmt: skip
        turns = played[row.rollout].turns[: row.branch.root_step]
        if turns and root.rows and student.format is not None and student.format.append_only:
            said = (*turns[-1].prompt_ids, *turns[-1].response_ids)
            if mode == "empty":
                assert root.rows[0].ids[: len(said)] == said
            assert len(chains([segment.ids for segment in root.rows])) == 1


def test_a_replay_trains_every_rule_and_comes_again(bank: Bank, run: Path, tmp_path: Path) -> None:
    settings = ReplaySettings(rules=("sero", "root"), **FAST)
    reports = [
        replay_all(open_replay(bank, run, settings), bank, tmp_path / name) for name in ("a", "b")
    ]
    assert reports[0] == reports[1]
    assert reports[0]["checkpoint"]["collected_the_bank"]
    assert reports[0]["rows"] > 0
    ends = {found["parameters_sha256"] for found in reports[0]["rules"].values()}
    assert len(ends) == 2


def test_stored_z_and_rl_beside_it(bank: Bank, run: Path, tmp_path: Path) -> None:
    settings = ReplaySettings(rules=("sero",), z="stored", mode="aux+rl", **FAST)
    replay = open_replay(bank, run, settings)
    assert any(root.logz for root in replay.roots)
    report = replay_all(replay, bank, tmp_path / "out")
    assert report["rules"]["sero"]["optimizer_steps"] > 0


def test_another_policy_never_said_what_stands_before_the_roots(
    bank: Bank, run: Path, policy: TrainedPolicy, tmp_path: Path
) -> None:
    other = _kept(tmp_path / "bank", policy, list(bank.rows), "0" * 64)
    with pytest.raises(BankError, match=r"never did there.*--policy RUN"):
        open_replay(other, run, ReplaySettings(**FAST))
    with pytest.raises(BankError, match="--checkpoint"):
        open_replay(bank, run, ReplaySettings(checkpoint=1, **FAST))


def test_a_rollout_that_comes_out_otherwise_is_an_error(bank: Bank, policy: TrainedPolicy) -> None:
    place = next(i for i, row in enumerate(bank.rows) if row.branch.root_step > 1)
    row = bank.rows[place]
    item = replace(row.branch.history[1], action="dance")
    history = (row.branch.history[0], item, *row.branch.history[2:])
    changed = replace(row, branch=replace(row.branch, history=history))
    with pytest.raises(BankError, match=rf"Rollout {row.rollout} of the bank .* from step 1 on"):
        turns_before(policy, [changed])


def test_the_benchmark_of_an_oracle_has_the_conversations_before_its_roots(
    policy: TrainedPolicy, bank: Bank
) -> None:
    walks = {walk.rollout: walk for walk in islice(policy.walks(0), 32)}
    probes = [
        Probe(walks[row.rollout], row.branch.root_step, row.branch, row.own)
        for row in bank.rows
        if row.rollout in walks
    ]
    assert any(probe.t > 0 and probe.branch.valid for probe in probes)
    found = model_figures(policy, probes, drift_steps=1, drift_episodes=1, agreement_states=4)
    assert found.reach is not None
    assert found.reach["branches"] > 0


def test_words_of_the_bank_that_were_not_seen_reach_no_row(
    bank: Bank, policy: TrainedPolicy, before: Before
) -> None:
    c = policy.config
    student = make_student(c, policy.model, policy.tokenizer)
    secret = [replace(row, branch=replace(row.branch, detail="zzz")) for row in bank.rows]
    plain, told = (
        grown_roots(rows, student, SeroConfig(), c.rollout.max_new_tokens, before)
        for rows in (bank.rows, secret)
    )
    assert [root.rows for root in told] == [root.rows for root in plain]
    rows = [row for root in plain for row in root.rows]
    assert rows
    assert all("zzz" not in decode(policy.tokenizer, row.ids) for row in rows)


def test_what_a_bank_cannot_give_is_refused(
    bank: Bank, policy: TrainedPolicy, before: Before
) -> None:
    student = make_student(policy.config, policy.model, policy.tokenizer)
    with pytest.raises(ConfigError, match="commands without replies"):
        grown_roots(bank.rows, student, SeroConfig(), 64)
    with pytest.raises(ConfigError, match="no thoughts of a policy"):
        grown_roots(bank.rows, student, SeroConfig(think_mode="sampled"), 64, before)
    assert small.student().context == "window"
