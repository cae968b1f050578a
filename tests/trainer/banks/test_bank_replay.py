"""Replays of an oracle bank, in Python."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agent_envs
from agent_envs.errors import SeroError
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.bank import (
    Bank,
    BankError,
    BankRow,
    PolicyEnd,
    header_of,
    read_bank,
    verify_bank,
    write_bank,
)
from oracles.base import HistoryItem
from oracles.branch import RootRecord
from oracles.branches import BranchRequest, BranchRunner, EnvRecipe
from oracles.walks import collect
from tests.trainer import small
from tests.trainer.test_webshop_training import shop_config
from trainer.banks.fit import check_fit
from trainer.banks.policy import load_policy_of
from trainer.banks.replay import open_replay, places, replay_all
from trainer.banks.replay_figures import parameters_digest, spread_of
from trainer.banks.replay_settings import RULES, ReplaySettings, section_of
from trainer.banks.rows import grown_roots
from trainer.branches.branching import Brancher, grow, score, select_roots
from trainer.branches.records import GrownRoot
from trainer.config import Config, ConfigError, SeroConfig
from trainer.iteration import Trainer
from trainer.loop import train
from trainer.methods.protocol import PassLimits
from trainer.models.tiny import load_policy
from trainer.runs.folder import make_student
from trainer.worlds.tasks import make_env, open_tasks

FAST: dict[str, Any] = {"eval_tasks": 0, "roots": 4, "iterations": 3, "weight": 1.0}
"""What most tests need: three iterations of four branches and no evaluation."""


def _config(**overrides: Any) -> Config:
    return small.small_config(
        run__iterations=1,
        run__checkpoint_every=1,
        env__max_steps=12,
        **overrides,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    train(_config(), folder)
    return folder


@pytest.fixture(scope="module")
def bank(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """Twelve branches from failed episodes of the run's own policy."""
    trained = load_policy_of(run, None)
    with BranchRunner(ALFWorldPlanner, trained.recipe) as runner:
        rows, _ = collect(trained.walks(0), runner, 12, oracle="planner", policy="run@1", seed=0)
    return _kept(tmp_path_factory.mktemp("bank") / "bank", trained.recipe, rows, trained.digest)


def _kept(path: Path, recipe: EnvRecipe, rows: Sequence[BankRow], checkpoint: str = "") -> Bank:
    header = header_of(
        recipe(),
        recipe,
        oracle="planner",
        policy="p",
        seed=0,
        provenance={"checkpoint": checkpoint},
    )
    write_bank(path, header, rows)
    return read_bank(path)


@pytest.fixture(scope="module")
def short(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """Branches of one step: the policy gave up before the last command of a walkthrough."""
    recipe = load_policy_of(run, None).recipe
    env: Any = recipe()
    rows = []
    for number, task in enumerate(env.unwrapped.games.task_ids("train")):
        seen, info = env.reset(seed=0, options={"task_id": task})
        plan = list(env.unwrapped.games.walkthrough(task))
        history = []
        for command in plan[:-1]:
            before = seen
            seen, _, _, _, info = env.step(command)
            history.append(HistoryItem(before, command, True))
        here = RootRecord(seen, info["admissible_actions"])
        request = BranchRequest(agent_envs.snapshot(env), tuple(history), here)
        with BranchRunner(ALFWorldPlanner, recipe) as runner:
            (branch,) = runner.run([request])
        own = PolicyEnd(("look",), (0.0,), success=False, score=0.0)
        rows.append(BankRow(branch, here, own, "planner", "p", 0, number))
    assert {len(row.branch.steps) for row in rows} == {1}
    return _kept(tmp_path_factory.mktemp("short") / "bank", recipe, rows)


def _ends(bank: Bank, run: Path, folder: Path, **settings: Any) -> dict[str, str]:
    """The digest of the parameters that every rule ends with."""
    report = _report(bank, run, folder, **settings)
    return {name: found["parameters_sha256"] for name, found in report["rules"].items()}


def _report(bank: Bank, run: Path, folder: Path, **settings: Any) -> dict[str, Any]:
    replay = open_replay(bank, run, ReplaySettings(**{**FAST, **settings}))
    return replay_all(replay, bank, folder)


def _metrics(folder: Path, rule: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / rule / "metrics.jsonl").read_text().splitlines()]


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
    kept = _kept(tmp_path / "bank", recipe, rows)
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
    config, student = _of_run(run)
    secret = [replace(row, branch=replace(row.branch, detail="zzz")) for row in bank.rows]
    plain = grown_roots(bank.rows, student, SeroConfig(), config.rollout.max_new_tokens)
    told = grown_roots(secret, student, SeroConfig(), config.rollout.max_new_tokens)
    assert [root.rows for root in told] == [root.rows for root in plain]
    assert any(root.rows for root in plain)


def test_too_long_targets_close_the_gate_and_thoughts_are_not_in_a_bank(
    run: Path, bank: Bank
) -> None:
    _, student = _of_run(run)
    for root in grown_roots(bank.rows, student, SeroConfig(), 3):
        assert root.gate == 0.0
        assert not root.rows
        assert "target_too_long" in root.reasons or not root.branch.valid
    with pytest.raises(ConfigError, match="no thoughts of a policy"):
        grown_roots(bank.rows, student, SeroConfig(think_mode="sampled"), 64)


def _of_run(run: Path) -> tuple[Config, Any]:
    config = _config()
    model, tokenizer = load_policy(run / "checkpoints" / "000001")
    return config, make_student(config, model, tokenizer)


# ------------------------------------------------------------------ equal and different ends


@pytest.fixture(scope="module")
def all_rules(
    bank: Bank, run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("all") / "replay"
    return folder, _report(bank, run, folder)


def test_two_replays_end_with_the_same_parameters(
    bank: Bank, run: Path, all_rules: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, report = all_rules
    assert tuple(report["rules"]) == tuple(RULES)
    again = _report(bank, run, tmp_path / "again")
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
    _report(bank, run, tmp_path / "a", rules=("flat",), save=True)
    _report(bank, run, tmp_path / "b", rules=("flat",), save=True)
    one, two = (load_policy(tmp_path / x / "flat" / "model")[0] for x in "ab")
    assert small.same(small.weights(one), small.weights(two))
    start = load_policy(run / "checkpoints" / "000001")[0]
    assert not small.same(small.weights(one), small.weights(start))


# ------------------------------------------------------------------ order, z, weights


def test_all_rules_see_all_branches_in_one_seeded_order(
    bank: Bank, all_rules: tuple[Path, dict[str, Any]]
) -> None:
    seen = {
        name: [line["replay/branches"] for line in _metrics(all_rules[0], name)] for name in RULES
    }
    assert len({json.dumps(found) for found in seen.values()}) == 1
    order = [number for line in seen["sero"] for number in line]
    assert sorted(order) == list(range(len(bank.rows))) != order


def test_the_schedule_is_one_permutation_after_another() -> None:
    whole = places(5, 0, 15, seed=3)
    assert [sorted(whole[i : i + 5]) for i in (0, 5, 10)] == [list(range(5))] * 3
    assert len({tuple(whole[i : i + 5]) for i in (0, 5, 10)}) > 1
    for first, count in ((0, 1), (4, 2), (3, 9), (14, 1)):
        assert places(5, first, count, seed=3) == whole[first : first + count]
    assert places(5, 0, 15, seed=4) != whole


def test_stored_z_is_that_of_the_checkpoint_and_rescored_z_moves(
    bank: Bank, run: Path, tmp_path: Path
) -> None:
    # Two iterations of all branches: the same ones are weighed twice.
    words: dict[str, Any] = {"rules": ("sero",), "roots": 12, "iterations": 2, "weight": 5.0}
    stored = _report(bank, run, tmp_path / "stored", z="stored", **words)
    moving = _report(bank, run, tmp_path / "moving", z="rescore", **words)
    first, last = (line["sero/z"] for line in _metrics(tmp_path / "stored", "sero"))
    assert first == pytest.approx(last, rel=1e-6)
    begin, end = (line["sero/z"] for line in _metrics(tmp_path / "moving", "sero"))
    assert begin == pytest.approx(first, rel=1e-6)
    assert abs(end - begin) > 0.01 * begin
    assert stored["checkpoint"]["collected_the_bank"]
    assert stored["settings"]["z"] == "stored"
    assert moving["rules"]["sero"]["z"] == {"first": begin, "last": end}

    replay = open_replay(bank, run, ReplaySettings(**{**FAST, "z": "stored"}))
    config, student = _of_run(run)
    model = load_policy(run / "checkpoints" / "000001")[0]
    plain = grown_roots(bank.rows, student, SeroConfig(), config.rollout.max_new_tokens)
    scored = score(plain, model, PassLimits.of(config, student))
    assert [root.logz for root in replay.roots] == [root.logz for root in scored]


def test_the_matched_decay_has_the_mass_of_sero(all_rules: tuple[Path, dict[str, Any]]) -> None:
    lines = {name: _metrics(all_rules[0], name)[0] for name in RULES}  # still the same weights
    mass = {name: line["sero/effective_depth"] for name, line in lines.items()}
    assert mass["root"] == 1.0
    assert mass["depth-matched"] == pytest.approx(mass["sero"])
    assert mass["root"] < mass["sero"] < mass["depth"] < mass["flat"]
    assert lines["depth"]["sero/delta"] == 0.9
    assert 0.0 < lines["depth-matched"]["sero/delta"] < 0.9
    assert mass["flat"] == lines["flat"]["sero/branch_steps"]


def test_the_figures_of_a_rule_by_hand() -> None:
    half = math.log(0.5)
    long, short, shut = (_root(g, n * (half,)) for g, n in ((1.0, 3), (0.5, 1), (0.0, 0)))
    found = spread_of([long, short, shut], SeroConfig(w_min=0.0))
    assert found["replay/weights"] == pytest.approx([1.0, 0.5, 0.25])
    assert found["replay/z"] == [
        {"depth": 0, "n": 2, "mean": pytest.approx(0.5)},
        {"depth": 1, "n": 1, "mean": pytest.approx(0.5)},
        {"depth": 2, "n": 1, "mean": pytest.approx(0.5)},
    ]
    assert found["replay/beyond_root_share"] == pytest.approx(0.75 / 2.25)
    pruned = spread_of([long, short], SeroConfig(w_min=0.3))
    assert pruned["replay/beyond_root_share"] == pytest.approx(0.5 / 2.0)
    mass = spread_of([long, short], SeroConfig(w_min=0.0, branch_norm="mass"))
    assert mass["replay/beyond_root_share"] == pytest.approx((0.75 / 1.75) / 1.5)
    flat = spread_of([long, short], SeroConfig(rule="flat"))
    assert flat["replay/beyond_root_share"] == pytest.approx(2.0 / 3.5)
    assert spread_of([shut], SeroConfig())["replay/beyond_root_share"] is None


def _root(gate: float, logz: tuple[float, ...]) -> GrownRoot:
    nothing: Any = None
    return GrownRoot(nothing, nothing, True, (), 0.0, 1.0, gate, (), (), logz)


def test_rules_differ_in_nothing_but_their_weights() -> None:
    section = SeroConfig(weight=0.3, delta="matched", normaliser="active")
    plain = ReplaySettings()
    made = {name: section_of(name, section, plain) for name in RULES}
    assert (made["depth"].delta, made["depth-matched"].delta) == (0.9, "matched")
    assert section_of("depth", section, ReplaySettings(delta=0.0)).delta == 0.0
    for found in made.values():
        assert replace(found, rule="sero", delta="matched") == section
    with pytest.raises(ConfigError, match="delta"):
        section_of("depth", section, ReplaySettings(delta=1.5))


# ------------------------------------------------------------------ modes


def test_alone_nothing_is_played(
    bank: Bank, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def played(self: Trainer, iteration: int) -> Any:
        raise AssertionError("an episode was played")

    monkeypatch.setattr(Trainer, "collect", played)
    report = _report(bank, run, tmp_path / "a", rules=("sero",))
    line = _metrics(tmp_path / "a", "sero")[0]
    assert line["loss/policy"] is None
    assert line["loss/sero"] > 0
    assert line["replay/n_root"] == 4
    assert report["rules"]["sero"]["optimizer_steps"] > 0
    with pytest.raises(AssertionError, match="played"):
        _report(bank, run, tmp_path / "b", rules=("sero",), mode="aux+rl")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_with_the_base_objective_rollouts_are_trained_as_well(bank: Bank, tmp_path: Path) -> None:
    # The entropy has a gradient even where no rollout succeeds; the KL needs the run's reference.
    train(_config(objective__entropy_coef=0.01, objective__kl_coef=0.01), tmp_path / "run")
    words: dict[str, Any] = {"rules": ("sero",), "iterations": 2}
    both = _report(bank, tmp_path / "run", tmp_path / "a", mode="aux+rl", **words)
    again = _report(bank, tmp_path / "run", tmp_path / "b", mode="aux+rl", **words)
    alone = _report(bank, tmp_path / "run", tmp_path / "c", **words)
    for line in _metrics(tmp_path / "a", "sero"):
        assert line["response_tokens"] > 0
        assert line["grad/base_norm"] > 0
        assert line["grad/aux_norm"] > 0
        assert line["replay/n_root"] == 4
    assert _metrics(tmp_path / "a", "sero")[1]["loss/kl"] > 0
    assert both["settings"]["objective"] == "grpo"
    assert alone["settings"]["objective"] == "none"
    assert both["rules"] == again["rules"]
    assert both["rules"] != alone["rules"]
    branches = [[line["replay/branches"] for line in _metrics(tmp_path / x, "sero")] for x in "ac"]
    assert branches[0] == branches[1]


# ------------------------------------------------------------------ the folder


def test_before_and_after_are_measured_on_the_same_tasks(
    bank: Bank, run: Path, tmp_path: Path
) -> None:
    report = _report(bank, run, tmp_path / "a", rules=("sero", "flat"), eval_tasks=3, iterations=1)
    assert report["before"]["valid_seen"]["n"] == 3
    for rule in ("sero", "flat"):
        after = report["rules"][rule]["after"]["valid_seen"]
        assert after["n"] == after["against_before"]["tasks"] == 3
        low, high = after["interval_95"]
        assert 0.0 <= low <= after["success"] <= high <= 1.0
        file = tmp_path / "a" / rule / "eval" / "000001_valid_seen.json"
        assert json.loads(file.read_text())["wins"] == after["wins"]
    assert json.loads((tmp_path / "a" / "replay.json").read_text()) == report


def test_a_replay_that_is_broken_off_leaves_nothing(bank: Bank, run: Path, tmp_path: Path) -> None:
    def stop(name: str, done: int) -> None:
        if name == "root":
            raise KeyboardInterrupt

    replay = open_replay(bank, run, ReplaySettings(**FAST))
    with pytest.raises(KeyboardInterrupt):
        replay_all(replay, bank, tmp_path / "deep" / "out", stop)
    assert list((tmp_path / "deep").iterdir()) == []
    (tmp_path / "there").mkdir()
    with pytest.raises(SeroError, match="exists"):
        replay_all(replay, bank, tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


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
    alone = _config(objective__name="none", auxiliary__sero={"think_mode": "sampled"})
    train(alone.replace(**{"run.iterations": 1}), tmp_path / "run")
    with pytest.raises(ConfigError, match="Use mode=aux_only"):
        open_replay(bank, tmp_path / "run", ReplaySettings(**{**FAST, "mode": "aux+rl"}))
    with pytest.raises(ConfigError, match="no thoughts of a policy"):
        open_replay(bank, tmp_path / "run", ReplaySettings(**FAST))
