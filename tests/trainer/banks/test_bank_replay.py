"""Replays of an oracle bank, in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import SeroError
from oracles.bank import (
    Bank,
    BankError,
    BankRow,
    PolicyEnd,
    header_of,
    verify_bank,
)
from oracles.branch import RootRecord
from oracles.branches import EnvRecipe
from tests.trainer import small
from tests.trainer.banks.replay_support import (
    FAST,
    kept_bank,
    of_run,
    replay_config,
    report_of,
)
from tests.trainer.test_webshop_training import shop_config
from trainer.banks.fit import check_fit
from trainer.banks.replay import open_replay
from trainer.banks.replay_figures import parameters_digest
from trainer.banks.replay_settings import RULES, ReplaySettings
from trainer.banks.rows import grown_roots
from trainer.branches.branching import Brancher, grow, select_roots
from trainer.branches.records import GrownRoot
from trainer.config import ConfigError, SeroConfig
from trainer.loop import train
from trainer.models.tiny import load_policy
from trainer.worlds.tasks import make_env, open_tasks


def _ends(bank: Bank, run: Path, folder: Path, **settings: Any) -> dict[str, str]:
    """The digest of the parameters that every rule ends with."""
    report = report_of(bank, run, folder, **settings)
    return {name: found["parameters_sha256"] for name, found in report["rules"].items()}


# ------------------------------------------------------------------ rows of a bank


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"target": "reward", "gamma": 0.5, "return_scale": 0.25},
        {"target": "score", "think_mode": "template", "loss_tokens": "all"},
        {"think_mode": "none", "z_tokens": "after_think"},
    ],
)
def test_a_branch_of_a_run_comes_back_with_its_gate_and_its_rows(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    config = small.small_config(
        auxiliary__sero=settings,
        env__max_steps=10,
        rollout__tasks=6,
        rollout__rollouts=2,
        rollout__max_new_tokens=48,
    )
    section = config.auxiliary.sero
    assert section is not None
    env, student = make_env(config.env, small.games(), "train"), small.student(config)
    brancher = Brancher(config, section, env, student)
    trajectories = small.rollouts(config, small.half_expert(0.7))
    found, rows = [], []
    for choice in select_roots(trajectories, section, 0, 0):
        trajectory = trajectories[choice.index]
        limit = config.rollout.max_new_tokens
        found.append(grow(choice, trajectory, env, brancher.oracle, student, section, limit))
        rest = trajectory.turns[choice.t :]
        own = PolicyEnd(
            tuple(turn.command for turn in rest),
            tuple(turn.reward for turn in rest),
            trajectory.success,
            trajectory.score,
        )
        seen = RootRecord(rest[0].observation, rest[0].admissible)
        rows.append(BankRow(found[-1].branch, seen, own, "planner", "p", 0, choice.index))
    options = {"data": small.games().source, "split": "train", "max_steps": 10}
    recipe = EnvRecipe("SeroALFWorld-v0", options)
    kept = kept_bank(tmp_path / "bank", recipe, rows)
    assert verify_bank(tmp_path / "bank").ok
    again = grown_roots(kept.rows, student, section, config.rollout.max_new_tokens)
    assert sum(root.gate > 0 for root in found) >= 2
    for number, (before, now) in enumerate(zip(found, again, strict=True)):
        assert (now.choice.index, now.choice.t) == (number, before.choice.t)
        assert _facts(now) == _facts(before)


def _facts(root: GrownRoot) -> tuple[Any, ...]:
    return (
        (root.valid, root.reasons, root.G_pi, root.G_O, root.gate, root.gate_reason),
        (root.rows, root.z_rows, root.logz),
    )


def test_rows_hold_nothing_that_the_student_did_not_see(run: Path, bank: Bank) -> None:
    config, student = of_run(run)
    secret = [replace(row, branch=replace(row.branch, detail="zzz")) for row in bank.rows]
    plain = grown_roots(bank.rows, student, SeroConfig(), config.rollout.max_new_tokens)
    told = grown_roots(secret, student, SeroConfig(), config.rollout.max_new_tokens)
    assert [root.rows for root in told] == [root.rows for root in plain]
    assert any(root.rows for root in plain)


def test_too_long_targets_close_the_gate_and_thoughts_are_not_in_a_bank(
    run: Path, bank: Bank
) -> None:
    _, student = of_run(run)
    for root in grown_roots(bank.rows, student, SeroConfig(), 3):
        assert root.gate == 0.0
        assert not root.rows
        assert "target_too_long" in root.reasons or not root.branch.valid
    with pytest.raises(ConfigError, match="no thoughts of a policy"):
        grown_roots(bank.rows, student, SeroConfig(think_mode="sampled"), 64)


def test_two_replays_end_with_the_same_parameters(
    bank: Bank, run: Path, all_rules: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, report = all_rules
    assert tuple(report["rules"]) == tuple(RULES)
    again = report_of(bank, run, tmp_path / "again")
    assert again == report
    for name in ("replay.json", "sero/metrics.jsonl", "flat/metrics.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_a_rule_ends_alike_alone_and_in_any_order(
    bank: Bank, run: Path, all_rules: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    ends = {name: found["parameters_sha256"] for name, found in all_rules[1]["rules"].items()}
    assert _ends(bank, run, tmp_path / "alone", rules=("sero",)) == {"sero": ends["sero"]}
    turned = _ends(bank, run, tmp_path / "turned", rules=("depth-matched", "root", "flat"))
    assert turned == {name: ends[name] for name in turned}
    assert len({ends[name] for name in ("flat", "root", "depth", "sero")}) == 4
    other = _ends(bank, run, tmp_path / "other", rules=("sero",), seed=1)
    assert other["sero"] != ends["sero"]


def test_branches_of_one_step_end_alike_under_every_rule(
    short: Bank, run: Path, tmp_path: Path
) -> None:
    ends = _ends(short, run, tmp_path / "a", iterations=2)
    assert len(ends) == len(RULES)
    assert len(set(ends.values())) == 1
    start = load_policy(run / "checkpoints" / "000001")[0]
    assert parameters_digest(start) not in ends.values()


def test_decay_0_is_the_root_alone_and_decay_1_is_flat(
    bank: Bank, run: Path, all_rules: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    found = all_rules[1]["rules"]
    for delta, rule in ((0.0, "root"), (1.0, "flat")):
        ends = _ends(bank, run, tmp_path / rule, rules=("depth",), delta=delta)
        assert ends["depth"] == found[rule]["parameters_sha256"]


def test_the_saved_model_is_the_one_of_the_digest(bank: Bank, run: Path, tmp_path: Path) -> None:
    report_of(bank, run, tmp_path / "a", rules=("flat",), save=True)
    report_of(bank, run, tmp_path / "b", rules=("flat",), save=True)
    one, two = (load_policy(tmp_path / x / "flat" / "model")[0] for x in "ab")
    assert small.same(small.weights(one), small.weights(two))
    start = load_policy(run / "checkpoints" / "000001")[0]
    assert not small.same(small.weights(one), small.weights(start))


# ------------------------------------------------------------------ what is refused


Change = Callable[[Bank], Bank]


def _header(**changes: Any) -> Change:
    return lambda bank: replace(bank, header=replace(bank.header, **changes))


def _kwargs(**changes: Any) -> Change:
    return lambda bank: replace(
        bank, header=replace(bank.header, env_kwargs={**bank.header.env_kwargs, **changes})
    )


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (_header(env_id="SeroWebShop-v0"), {}, "is of SeroWebShop-v0.*trained on SeroALFWorld-v0"),
        (_header(manifest_hash="abc"), {}, "tasks 'abc'"),
        (_header(data_revision="r9"), {}, "revision 'r9'"),
        (_kwargs(split="valid_seen"), {"eval_tasks": 2}, "not be held out"),
        (lambda bank: replace(bank, rows=()), {}, "None of the 0 branches"),
    ],
)
def test_a_bank_of_another_world_is_refused(
    change: Change, settings: dict[str, Any], message: str, bank: Bank, run: Path
) -> None:
    open_replay(bank, run, ReplaySettings(**{**FAST, **settings}))
    with pytest.raises(BankError, match=message):
        open_replay(change(bank), run, ReplaySettings(**{**FAST, **settings}))


def test_a_bank_that_shows_other_pages_is_refused() -> None:
    config = shop_config(**{"env.webshop.observation_mode": "text_rich"})
    goals = open_tasks(config.env)
    env = make_env(config.env, goals, "train")
    same = {"observation_mode": "text_rich"}  # what it leaves out has its default
    header = header_of(env, EnvRecipe(config.env.id, same), oracle="o", policy="p", seed=0)
    check_fit(Bank(header, (), ""), config, goals, evaluated=True)
    other = replace(header, env_kwargs={})
    with pytest.raises(BankError, match=r"observation_mode='text', .*observation_mode='text_rich'"):
        check_fit(Bank(other, (), ""), config, goals, evaluated=True)


def test_a_bank_whose_gates_are_shut_is_refused(bank: Bank, run: Path) -> None:
    won = [replace(row, own=replace(row.own, success=True)) for row in bank.rows]
    with pytest.raises(BankError, match="oracle_not_better"):
        open_replay(replace(bank, rows=tuple(won)), run, ReplaySettings(**FAST))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rules": ("sero", "best")}, "best"),
        ({"rules": ()}, "rules"),
        ({"rules": ("sero", "sero")}, "twice"),
        ({"rules": ("sero",), "delta": 0.5}, "not among the rules"),
        ({"delta": -0.1}, "delta"),
        ({"iterations": 0}, "iterations=0"),
        ({"roots": 0}, "roots=0"),
        ({"eval_tasks": -1}, "eval_tasks=-1"),
        ({"weight": 0.0}, "trains nothing"),
        ({"weight": -1.0}, "weight"),
        ({"lr": -1.0}, "optim.lr"),
        ({"checkpoint": 7}, "000007"),
    ],
)
def test_settings_that_make_no_replay_are_refused(
    settings: dict[str, Any], message: str, bank: Bank, run: Path
) -> None:
    with pytest.raises(SeroError, match=message):
        open_replay(bank, run, ReplaySettings(**{**FAST, **settings}))


def test_the_base_objective_must_be_there(bank: Bank, run: Path, tmp_path: Path) -> None:
    alone = replay_config(objective__name="none", auxiliary__sero={"think_mode": "sampled"})
    train(alone.replace(**{"run.iterations": 1}), tmp_path / "run")
    with pytest.raises(ConfigError, match="Use mode=aux_only"):
        open_replay(bank, tmp_path / "run", ReplaySettings(**{**FAST, "mode": "aux+rl"}))
    with pytest.raises(ConfigError, match="no thoughts of a policy"):
        open_replay(bank, tmp_path / "run", ReplaySettings(**FAST))
