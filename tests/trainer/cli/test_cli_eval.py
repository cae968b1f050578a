"""`sero eval` of runs, of chat models and of a server, by each method."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import full_count, run_python
from tests.trainer import small
from tests.trainer.baselines.script import completion, serving
from tests.trainer.cli.conftest import Sero
from trainer.loop import train
from trainer.models.tiny import TinyConfig, build_model, save_policy

CHAT = (
    "{% for m in messages %}{{ m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '> ' }}{% endif %}"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(small.small_config(run__iterations=1), folder)
    return folder


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model with random weights that takes 16,000 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny-chat"
    tokenizer = small.tokenizer()
    model = build_model(
        len(tokenizer), TinyConfig(32, 48, 2, 2, 1, 16_000, 0.3),
        pad_id=tokenizer.pad_token_id, end_id=tokenizer.eos_token_id,
    )  # fmt: skip
    save_policy(folder, model, tokenizer)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": CHAT}))
    return folder


def _read(figures: dict[str, Any]) -> dict[str, Any]:
    result = json.loads(Path(figures["file"]).read_text(encoding="utf-8"))
    assert isinstance(result, dict)
    return result


def _served(url: str, houses: Path, out: Path) -> list[object]:
    return [
        "eval", "--endpoint", url, "--model", "org/scripted", "--data", houses, "--out", out,
        "--split", "valid_seen", "--max-steps", "25", "--json",
    ]  # fmt: skip


# ------------------------------------------------------------------------------ runs


def test_the_best_checkpoint_by_what_training_measured(sero: Sero, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small.small_config(run__iterations=2, run__checkpoint_every=1, eval__every=1), folder)
    for iteration, wins in ((1, 1.0), (2, 0.5)):
        file = folder / "eval" / f"{iteration:06d}_valid_seen.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "success": wins}))
    outcome = sero("eval", folder, "--best", "--tasks", "1", "--split", "valid_seen", "--json")
    assert outcome.code == 0, outcome.errors
    assert _read(outcome.figures["valid_seen"])["iteration"] == 1
    both = sero("eval", folder, "--best", "--iteration", "1")
    assert both.code == 2
    assert "--best and --iteration" in both.errors


def test_iteration_0_is_the_policy_that_training_started_from(sero: Sero, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(small.small_config(run__iterations=1), folder)
    words = ("eval", folder, "--split", "valid_seen", "--json")
    outcome = sero(*words, "--iteration", "0")
    assert outcome.code == 0, outcome.errors
    later = _read(outcome.figures["valid_seen"])
    manifest = (folder / "initial/manifest.json").read_bytes()
    assert later["iteration"] == 0
    assert later["model"]["digest"] == hashlib.sha256(manifest).hexdigest()
    refused = sero(*words, "--iteration", "7")
    assert refused.code == 2
    assert "There are those after 0, 1;" in refused.errors


def test_several_seeds_give_mean_and_deviation(sero: Sero, run: Path) -> None:
    outcome = sero("eval", run, "--temperature", "1", "--seeds", "3", "--tasks", "0", "--json")
    assert outcome.code == 0
    result = _read(outcome.figures["valid_seen"])
    assert (result["n"], result["plays"]) == (10, 30)
    assert result["decoding"]["seeds"] == [0, 1, 2]
    assert list(result["per_seed"]) == ["0", "1", "2"]
    for figures in result["per_seed"].values():
        assert Counter(t["task_id"] for t in figures["tasks"]) == Counter(
            t["task_id"] for t in result["tasks"]
        )
    shares = [figures["invalid_format_share"] for figures in result["per_seed"].values()]
    spread = result["over_seeds"]["invalid_format_share"]
    assert spread["mean"] == pytest.approx(statistics.mean(shares))
    assert spread["sd"] == pytest.approx(statistics.stdev(shares))
    assert spread["by_seed"] == {str(seed): value for seed, value in enumerate(shares)}
    assert any("10 tasks x 3 seeds" in line and "sd over seeds" in line for line in outcome.lines)
    # Each seed is the one that is played alone.
    alone = sero("eval", run, "--temperature", "1", "--tasks", "0", "--batch-size", "3", "--json")
    assert _read(alone.figures["valid_seen"])["tasks"] == result["per_seed"]["0"]["tasks"]
    refused = sero("eval", run, "--seeds", "2")
    assert refused.code == 2
    assert "Greedy" in refused.errors


def test_the_result_of_a_run_names_its_weights(sero: Sero, run: Path) -> None:
    result = _read(sero("eval", run, "--json").figures["valid_seen"])
    assert result["model"]["kind"] == "checkpoint"
    assert len(result["model"]["digest"]) == 64
    assert result["engine"]["engine_version"]
    assert (result["method"], result["trials"], result["context"]) == ("plain", 1, "window")
    text = Path(run / "eval/later/000001_valid_seen.txt").read_text(encoding="utf-8")
    for part in ("all tasks (micro)", "mean of types (macro)", result["prompt_hash"], "ends: "):
        assert part in text
    assert "\x1b" not in text


def test_a_run_under_other_methods_and_what_does_not_fit_it(sero: Sero, run: Path) -> None:
    outcome = sero("eval", run, "--method", "react", "--tasks", "1", "--json")
    assert outcome.code == 0
    result = _read(outcome.figures["valid_seen"])
    # A tiny model takes 1024 tokens, and two examples alone are longer.
    assert result["stop_reasons"] == {"context_overflow": 1}
    longest = result["context_overflow_longest"]
    assert longest > 1000
    (warning,) = (line for line in outcome.lines if "WARNING" in line)
    assert f"prompt.max_prompt_tokens=1000; the longest had {longest} tokens" in warning
    assert "--max-prompt-tokens" in warning
    assert result["max_prompt_tokens"] == 1024 - 24
    name = outcome.figures["valid_seen"]["file"]
    assert name.endswith("later/000001_valid_seen_react_1tasks.json")
    for words, message in (
        (["--template", "field"], "--template"),
        (["--history-length", "0"], "--history-length"),
        (["--trials", "2"], "only with reflexion"),
        (["--list-commands"], "plain lists"),
        (["--suite", "webshop"], "SeroWebShop-v0"),
        (["--suite", "alfworld", "--tasks", "1"], "all tasks"),
        (["--model", "m"], "--endpoint"),
        (["--endpoint", "http://127.0.0.1:1/v1", "--model", "m"], "no folder"),
        (["--max-steps", "0"], "max_steps=0"),
        (["--top-p", "0"], "top_p=0"),
        (["--seeds", "0"], "seeds=0"),
    ):
        refused = sero("eval", run, *words)
        assert (refused.code, message in refused.errors) == (2, True), (words, refused.errors)
    assert sero("eval").code == 2


# ------------------------------------------------------------------------------ models


def test_a_chat_model_folder_is_evaluated(
    sero: Sero, chat_model: Path, houses: Path, tmp_path: Path
) -> None:
    prompting = ["--template", "field", "--history-length", "1"]
    common = [
        "eval", chat_model, "--env", "alfworld", "--data", houses, "--split", "valid_seen",
        "--max-steps", "3", "--max-new-tokens", "6", "--out", tmp_path, "--json",
    ]  # fmt: skip
    words = [*common, *prompting]
    result = _read(sero(*words).figures["valid_seen"])
    assert (result["n"], result["max_steps"], result["history_length"]) == (6, 3, 1)
    assert (result["prompt_template"], result["max_prompt_tokens"]) == ("field", 2048)
    assert result["decoding"] == {
        "greedy": True, "temperature": None, "top_p": None, "max_new_tokens": 6, "seeds": None,
    }  # fmt: skip
    places = json.loads((chat_model / "config.json").read_text())["max_position_embeddings"]
    refused = sero(*words, "--max-prompt-tokens", str(places - 5))
    assert refused.code == 2
    assert f"has places for {places} (max_position_embeddings). Lower either" in refused.errors
    few = sero(*words, "--max-new-tokens", str(places - 1000), "--tasks", "1")
    assert _read(few.figures["valid_seen"])["max_prompt_tokens"] == 1000, "held to the places"
    digest = result["model"]["digest"]
    react = sero(*common, "--method", "react", "--batch-size", "2")
    result = _read(react.figures["valid_seen"])
    assert (result["method"], result["history_length"]) == ("react", None)
    assert result["context"] == "transcript"
    assert result["stop_reasons"] == {"step_limit": 6}
    assert result["model"]["digest"] == digest
    file = chat_model / "config.json"
    before = file.read_text()
    file.write_text(before + "\n")
    assert _read(sero(*words).figures["valid_seen"])["model"]["digest"] != digest
    file.write_text(before)
    refused = sero("eval", chat_model, "--iteration", "1")
    assert "--iteration is for run folders" in refused.errors


# ------------------------------------------------------------------------------ a server


def test_a_server_is_evaluated_by_every_method(sero: Sero, houses: Path, tmp_path: Path) -> None:
    with serving() as server:
        words = _served(server.url, houses, tmp_path)
        plain = sero(*words, "--concurrency", "3")
        react = sero(*words, "--method", "react", "--list-commands")
        reflexion = sero(*words, "--method", "reflexion", "--list-commands", "--trials", "2")
        sampled = sero(*words, "--temperature", "0.4", "--seeds", "2", "--out", tmp_path / "s")
    results = {}
    for name, outcome in (("plain", plain), ("react", react), ("reflexion", reflexion)):
        assert outcome.code == 0, outcome.errors
        result = results[name] = _read(outcome.figures["valid_seen"])
        assert sorted(t["task_id"] for t in result["tasks"]) == sorted(
            {t["task_id"] for t in result["tasks"]}
        )
        assert result["n"] == 6
        assert result["wins"] > 0
        assert result["model"]["token_ids_recorded"] is False
        assert result["model"]["served_model"] == "scripted-1"
        assert any("token ids are not recorded" in line for line in outcome.lines)
    name = Path(plain.figures["valid_seen"]["file"]).name
    assert name.startswith("org-scripted_valid_seen_"), "and a hash over data and max_steps"
    seeds = {body["seed"] for body in server.requests if "seed" in body}
    assert len(seeds) > 10
    assert _read(sampled.figures["valid_seen"])["decoding"]["seeds"] == [0, 1]
    attempts = results["reflexion"]["attempts"]
    assert attempts["allowed"] == 2
    assert attempts["solved_by_trial"][0] == results["react"]["wins"]
    assert attempts["solved_by_trial"][-1] == results["reflexion"]["wins"]
    assert attempts["comparable_with_single_attempts"] is False
    assert any("Not comparable with single attempts" in line for line in reflexion.lines)


def test_o35_several_trials_do_not_compare_with_one(
    sero: Sero, houses: Path, tmp_path: Path
) -> None:
    with serving() as server:
        words = [*_served(server.url, houses, tmp_path), "--list-commands"]
        first = sero(*words, "--method", "react").figures["valid_seen"]["file"]
        words += ["--method", "reflexion", "--trials", "2", "--against", first]
        refused = sero(*words)
        forced = sero(*words, "--force")
    assert refused.code == 2
    assert "trials: 1 and 2" in refused.errors
    assert "several attempts" in refused.errors
    assert forced.code == 0
    assert any("WARNING: NOT MEASURED ON THE SAME THING: trials" in s for s in forced.lines)
    differs = forced.figures["valid_seen"]["against"]["differs_in"]
    assert {"trials", "prompt_hash"} <= set(differs)


def test_a_server_that_fails_is_said(sero: Sero, houses: Path, tmp_path: Path) -> None:
    with serving(lambda n, body: (500, b"no")) as server:
        outcome = sero(*_served(server.url, houses, tmp_path), "--retries", "0")
    assert outcome.code == 2
    assert server.url in outcome.errors
    assert "status 500" in outcome.errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suite", ["alfworld", "webshop"])
def test_o35_a_suite_is_every_published_task_once(
    sero: Sero, real_data: Path, tmp_path: Path, suite: str
) -> None:
    data = {"alfworld": "alfworld_games.tar.xz", "webshop": "webshop_1k"}[suite]
    played: Counter[str] = Counter()

    def plan(_: int, body: dict[str, Any]) -> tuple[int, bytes]:
        played[body["messages"][0]["content"]] += 1
        return 200, completion("<think></think><action>look</action>")

    with serving(plan) as server:
        outcome = sero(
            "eval", "--endpoint", server.url, "--model", "m", "--suite", suite, "--data",
            real_data / data, "--max-steps", "1", "--out", tmp_path, "--json",
        )  # fmt: skip
    assert outcome.code == 0, outcome.errors
    counts = {split: figures["n"] for split, figures in outcome.figures.items()}
    expected = {"alfworld": {"valid_seen": 140, "valid_unseen": 134}, "webshop": {"test": 500}}
    assert counts == expected[suite]
    for figures in outcome.figures.values():
        result = _read(figures)
        assert len({task["task_id"] for task in result["tasks"]}) == result["n"]
        assert result["suite"] == suite
    assert sum(played.values()) == sum(counts.values())


def test_a_suite_is_not_played_on_other_data(sero: Sero, houses: Path, run: Path) -> None:
    outcome = sero("eval", run, "--suite", "alfworld", "--data", houses)
    assert outcome.code == 2
    assert "140 tasks in valid_seen" in outcome.errors
    assert "have 6" in outcome.errors


# ------------------------------------------------------------------------------ deployment

_BLOCKED = """
import json, sys

HIDDEN = json.loads(sys.argv[1])

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HIDDEN or name.startswith("trainer.auxiliary"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import agent_envs
from agent_envs.alfworld.env import ALFWorldEnv
from agent_envs.webshop.env import WebShopEnv

def forbidden(*args, **kwargs):
    raise AssertionError("evaluation reached for what a deployed policy does not have")

agent_envs.snapshot = agent_envs.restore = forbidden
for env in (ALFWorldEnv, WebShopEnv):
    for name in ("privileged", "snapshot", "restore", "_snapshot", "_restore"):
        if hasattr(env, name):
            setattr(env, name, forbidden)
from trainer.cli.main import main

for words in json.loads(sys.argv[2]):
    code = main(words)
    assert code == 0, (code, words)
assert not {name.split(".")[0] for name in sys.modules} & set(HIDDEN)
print("all of them")
"""


def _deployed(hidden: list[str], *commands: list[object]) -> str:
    words = [[str(word) for word in command] for command in commands]
    return run_python(_BLOCKED, json.dumps(hidden), json.dumps(words), timeout=400)


def test_nothing_privileged_is_needed(
    run: Path, chat_model: Path, houses: Path, tmp_path: Path
) -> None:
    limits = ["--data", houses, "--split", "valid_seen", "--max-steps", "2", "--out", tmp_path]
    short = [*limits, "--max-new-tokens", "4"]
    model = ["eval", chat_model, *short, "--tasks", "2"]
    out = _deployed(
        ["oracles"],
        ["eval", run],
        ["eval", run, "--method", "reflexion", "--trials", "2", *limits, "--tasks", "1"],
        model,
        [*model, "--method", "react"],
        [*model, "--method", "reflexion", "--trials", "2"],
        ["eval", chat_model, "--env", "webshop", "--data", "generated", "--tasks", "2",
         "--max-steps", "2", "--max-new-tokens", "4", "--out", tmp_path, "--method", "react"],
    )  # fmt: skip
    assert out.strip().endswith("all of them")


def test_a_server_needs_neither_torch_nor_oracles(houses: Path, tmp_path: Path) -> None:
    hidden = ["oracles", "torch", "transformers", "tokenizers", "safetensors", "pyarrow"]
    with serving() as server:
        words = _served(server.url, houses, tmp_path)
        out = _deployed(
            hidden,
            words,
            [*words, "--method", "react", "--list-commands"],
            [*words, "--method", "reflexion", "--list-commands", "--trials", "2"],
            [*words[:5], "--env", "webshop", "--data", "generated", "--tasks", full_count(2, 50),
             "--max-steps", "3", "--out", tmp_path, "--method", "react"],
        )  # fmt: skip
    assert out.strip().endswith("all of them")
