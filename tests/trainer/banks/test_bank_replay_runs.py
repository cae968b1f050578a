"""Replays of a bank: their order, z, weights, modes and folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import SeroError
from oracles.bank import (
    Bank,
)
from tests.trainer.banks.replay_support import (
    FAST,
    of_run,
    replay_config,
    report_of,
)
from trainer.banks.replay import open_replay, places, replay_all
from trainer.banks.replay_figures import spread_of
from trainer.banks.replay_settings import RULES, ReplaySettings, section_of
from trainer.banks.rows import grown_roots
from trainer.branches.branching import score
from trainer.branches.records import GrownRoot
from trainer.config import ConfigError, SeroConfig
from trainer.iteration import Trainer
from trainer.loop import train
from trainer.methods.protocol import PassLimits
from trainer.models.tiny import load_policy


def _metrics(folder: Path, rule: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / rule / "metrics.jsonl").read_text().splitlines()]


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
    stored = report_of(bank, run, tmp_path / "stored", z="stored", **words)
    moving = report_of(bank, run, tmp_path / "moving", z="rescore", **words)
    first, last = (line["sero/z"] for line in _metrics(tmp_path / "stored", "sero"))
    assert first == pytest.approx(last, rel=1e-6)
    begin, end = (line["sero/z"] for line in _metrics(tmp_path / "moving", "sero"))
    assert begin == pytest.approx(first, rel=1e-6)
    assert abs(end - begin) > 0.01 * begin
    assert stored["checkpoint"]["collected_the_bank"]
    assert stored["settings"]["z"] == "stored"
    assert moving["rules"]["sero"]["z"] == {"first": begin, "last": end}

    replay = open_replay(bank, run, ReplaySettings(**{**FAST, "z": "stored"}))
    config, student = of_run(run)
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
    report = report_of(bank, run, tmp_path / "a", rules=("sero",))
    line = _metrics(tmp_path / "a", "sero")[0]
    assert line["loss/policy"] is None
    assert line["loss/sero"] > 0
    assert line["replay/n_root"] == 4
    assert report["rules"]["sero"]["optimizer_steps"] > 0
    with pytest.raises(AssertionError, match="played"):
        report_of(bank, run, tmp_path / "b", rules=("sero",), mode="aux+rl")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_with_the_base_objective_rollouts_are_trained_as_well(bank: Bank, tmp_path: Path) -> None:
    # The entropy has a gradient even where no rollout succeeds; the KL needs the run's reference.
    train(replay_config(objective__entropy_coef=0.01, objective__kl_coef=0.01), tmp_path / "run")
    words: dict[str, Any] = {"rules": ("sero",), "iterations": 2}
    both = report_of(bank, tmp_path / "run", tmp_path / "a", mode="aux+rl", **words)
    again = report_of(bank, tmp_path / "run", tmp_path / "b", mode="aux+rl", **words)
    alone = report_of(bank, tmp_path / "run", tmp_path / "c", **words)
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
    report = report_of(
        bank, run, tmp_path / "a", rules=("sero", "flat"), eval_tasks=3, iterations=1
    )
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
