"""`sero demo`, `sero eval` and `sero train` from end to end, on the smallest policy that runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.trainer.cli.conftest import Sero
from trainer.demo.recipe import COMPARISON, QUICK, Arm, DemoRecipe, on_real_games
from trainer.evaluation.compare import paired_difference
from trainer.learning.optim import learning_rate

SMALLEST = [
    "--hidden-size", "32", "--layers", "1", "--train-games", "12", "--held-out", "4",
    "--demonstrations", "4", "--warm-steps", "2", "--iterations", "2", "--tasks", "2",
    "--rollouts", "2", "--max-steps", "10",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _generated_games(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERO_ALFWORLD_DATA", "ALFWORLD_DATA"):
        monkeypatch.delenv(name, raising=False)


def test_demo_then_eval(sero: Sero, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    outcome = sero("demo", "--out", out, *SMALLEST, "--json")
    assert outcome.code == 0
    for label in ("warm_start", "GRPO_+_SERO"):
        assert {split: n for split, (_, n) in outcome.figures[label].items()} == {
            "valid_seen": 2,
            "valid_unseen": 2,
        }
    assert any(line.startswith("it wins in") for line in outcome.lines)
    assert any("the first environment is unchanged" in line for line in outcome.lines)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "A tiny policy on household tasks, before and after training" in page
    assert page.count("<svg") >= 3

    # Again: nothing is trained twice.
    before = (out / "metrics.jsonl").read_bytes()
    again = sero("demo", "--out", out, *SMALLEST, "--json")
    assert again.code == 0
    assert again.figures["GRPO_+_SERO"] == outcome.figures["GRPO_+_SERO"]
    assert (out / "metrics.jsonl").read_bytes() == before

    # With another recipe the folder is refused, not mixed.
    other = sero("demo", "--out", out, *SMALLEST, "--lr", "0.5", "--iterations", "3")
    assert other.code == 2
    assert (out / "metrics.jsonl").read_bytes() == before

    result = sero("eval", out, "--batch-size", "1", "--json")
    assert result.code == 0
    for split, (wins, n) in outcome.figures["GRPO_+_SERO"].items():
        assert (result.figures[split]["wins"], result.figures[split]["n"]) == (wins, n)

    # What is asked for later does not mix with what training measured.
    names = ["000000_valid_seen", "000000_valid_unseen", "000002_valid_seen", "000002_valid_unseen"]
    assert sorted(path.stem for path in (out / "eval").glob("*.json")) == names
    assert (out / "eval/later/000002_valid_unseen.json").exists()
    for words in (["--batch-size", "0"], ["--tasks", "-1"], ["--temperature", "-1"]):
        assert sero("eval", out, *words).code == 2

    # O35: a result on other tasks does not compare, unless forced.
    earlier = out / "eval" / "000002_valid_seen.json"
    words = ["eval", out, "--split", "valid_seen", "--tasks", "1", "--against", earlier]
    assert sero(*words).code == 2
    assert sero(*words, "--force").code == 0
    other = sero("eval", out, "--split", "valid_unseen", "--against", earlier)
    assert other.code == 2
    assert "nothing to compare" in other.errors


def test_comparison_pairs_the_arms_and_continues(sero: Sero, tmp_path: Path) -> None:
    out = tmp_path / "comparison"
    words = ["demo", "--seeds", "2", "--out", out, *SMALLEST, "--json"]
    outcome = sero(*words)
    assert outcome.code == 0
    figures = outcome.figures
    assert set(figures["arms"]) == {"warm_start", "grpo", "grpo_sero", "format_only", "grpo_format"}
    for runs in figures["arms"].values():
        assert [run["seed"] for run in runs] == [0, 1]
        assert all(run["n"] == 4 for run in runs)
    for row in figures["differences"]:
        left, right = (
            [run[row["on"]] for run in figures["arms"][row[k]]] for k in ("left", "right")
        )
        assert row["mean"] == paired_difference(left, right).mean
    # One warm start a seed, shared by its arms; another for another seed.
    starts = {
        (seed, arm): (out / f"seed-{seed}" / arm / "initial" / "model.safetensors").read_bytes()
        for seed in (0, 1)
        for arm in figures["arms"]
    }
    assert len({starts[0, arm] for arm in figures["arms"]}) == 1
    assert starts[0, "grpo"] != starts[1, "grpo"]

    # Broken off: one arm lost its evaluation, one all of its files. Only these are made again.
    def stamp(arm: str, seed: int) -> int:
        return (out / f"seed-{seed}" / arm / "metrics.jsonl").stat().st_mtime_ns

    kept = {(arm, 1): stamp(arm, 1) for arm in ("grpo", "grpo_sero", "format_only", "grpo_format")}
    for file in (out / "seed-0" / "grpo" / "eval").glob("*.json"):
        file.unlink()
    shutil.rmtree(out / "seed-0" / "format_only")
    again = sero(*words)
    assert again.code == 0
    assert again.figures["arms"] == figures["arms"]
    assert {key: stamp(*key) for key in kept} == kept
    written = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert written["arms"] == figures["arms"]

    changed = sero(*words[:-1], "--lr", "0.5")
    assert changed.code == 2
    assert "another recipe" in changed.errors


def test_train_writes_a_report_and_resumes(sero: Sero, tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(
        "env: {generated: {train: 12, valid_seen: 2, valid_unseen: 2}, max_steps: 4}\n"
        "model: {hidden_size: 32, intermediate_size: 64, layers: 1}\n"
        "rollout: {tasks: 2, rollouts: 2}\n"
        "warmstart: {demonstrations: 4, steps: 2}\n"
        "auxiliary: {sero: {}}\n",
        encoding="utf-8",
    )
    out = tmp_path / "run"
    words = ["train", config, "--out", out, "--json"]
    # Nobody reads skills out of four tokens: SEED has nothing to learn, and that is said.
    more = ["--auxiliary.seed", "{analyser: {max_new_tokens: 4}}"]
    outcome = sero(*words, *more, "--run.iterations", "1")
    assert outcome.code == 0
    assert outcome.figures["iterations"] == 1
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    told = [line for line in outcome.lines if "trained nothing" in line]
    assert any(line.startswith("seed trained nothing in 1 iteration: ") for line in told)
    assert all(line in page for line in told)
    assert "1 iteration of grpo + sero + seed from" in page
    lines = outcome.errors.splitlines()
    assert [line.split()[1:3] for line in lines if " iteration " in line] == [["iteration", "1/1,"]]
    assert any(" warm start 2/2, loss " in line for line in lines)
    assert sero(*words, "--run.iterations", "2").code == 2  # holds a run already
    resumed = sero(*words, *more, "--resume", "--run.iterations", "2")
    assert resumed.code == 0
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [0, 1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "none.yaml"], "none.yaml"),
        (["train", "examples/tiny_sero.yaml", "--optim.lrr", "1"], "lr"),
        (["train", "examples/tiny_sero.yaml", "--run.device", "moon"], "'moon'"),
        (["train", "examples/tiny_sero.yaml", "--env.generated.task_types", "cook"], "cook"),
        (["eval", "no-such-run"], "no-such-run"),
    ],
)
def test_what_cannot_run_is_said(
    sero: Sero, tmp_path: Path, words: list[str], message: str
) -> None:
    out = ["--out", tmp_path / "run"] if words[0] == "train" else []
    outcome = sero(*words, *out)
    assert outcome.code == 2
    assert message in outcome.errors


def test_a_comparison_over_no_seeds_is_refused(sero: Sero, tmp_path: Path) -> None:
    outcome = sero("demo", "--seeds", "0", "--out", tmp_path / "none")
    assert outcome.code == 2
    assert "--seeds 0" in outcome.errors
    assert not (tmp_path / "none").exists()


def test_a_demo_removes_nothing_that_is_not_its_own(sero: Sero, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    (out / "papers").mkdir(parents=True)
    (out / "papers" / "thesis.txt").write_text("years of work")
    recipe = [*SMALLEST, "--iterations", "1", "--text-steps", "1"]
    for words in ((), ("--fresh",)):
        outcome = sero("demo", "--out", out, *recipe, *words, "--json")
        assert outcome.code == 0, outcome.errors
        assert (out / "papers" / "thesis.txt").read_text() == "years of work"
    assert (out / "report.html").exists()

    # Killed before its first checkpoint: the same command begins again.
    shutil.rmtree(out / "checkpoints")
    shutil.rmtree(out / "eval")
    assert sero("demo", "--out", out, *recipe).code == 0
    assert (out / "checkpoints" / "000001").is_dir()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tasks", "0"], "rollout.tasks=0"),
        (["--hidden-size", "100"], "Change either"),
        (["--lr", "-1"], "optim.lr=-1"),
        (["--iterations", "-1"], "run.iterations=-1"),
        (["--held-out", "1"], "--held-out 1: expected 2 or more"),
        (["--seeds", "1", "--workers", "0"], "--workers 0: expected"),
    ],
)
def test_a_recipe_that_makes_no_run_is_refused(
    sero: Sero, tmp_path: Path, words: list[str], told: str
) -> None:
    outcome = sero("demo", "--out", tmp_path / "demo", *SMALLEST, *words)
    assert outcome.code == 2
    assert told in outcome.errors
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("recipe", [QUICK, COMPARISON, on_real_games(QUICK)])
def test_the_recipes_are_runs_whose_learning_rate_is_whole_at_times(recipe: DemoRecipe) -> None:
    for arm in Arm:
        optim = recipe.config(arm, 0).optim
        steps = range(recipe.iterations * recipe.updates)
        rates = [
            learning_rate(optim.lr, optim.warmup_steps, optim.decay_steps, step) for step in steps
        ]
        assert max(rates) > 0.8 * recipe.lr
