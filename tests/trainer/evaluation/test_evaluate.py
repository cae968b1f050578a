from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agent_envs
from tests.support import run_python
from tests.trainer import small
from trainer.evaluation.agreement import version_differences
from trainer.evaluation.evaluate import (
    Incomparable,
    check_comparable,
    compare_outcomes,
    evaluate,
    prompt_of,
)
from trainer.evaluation.outcomes import Outcome, figures
from trainer.generation.base import Generation, GenerationRequest
from trainer.generation.hf import HFSampler
from trainer.metrics import wilson
from trainer.models.tiny import save_policy
from trainer.worlds.tasks import make_env, split_tasks


def _tasks(n: int) -> tuple[str, ...]:
    return split_tasks(small.small_config().env, small.games(), "valid_seen")[:n]


def _run(tasks: Any, batch: int, sampler: Any = None, **options: Any) -> dict[str, Any]:
    config = small.small_config()
    envs = [make_env(config.env, small.games(), "valid_seen") for _ in range(batch)]
    sampler = sampler or HFSampler(small.model(), [small.tokenizer().eos_token_id])
    options = {"split": "valid_seen", "max_new_tokens": 8, **options}
    return evaluate(tasks, envs, small.student(), sampler, **options)


def _steps(result: dict[str, Any]) -> list[Any]:
    return [(t["task_id"], t["success"], t["steps"], t["stop_reason"]) for t in result["tasks"]]


class _Noting(HFSampler):
    """Notes what it was asked and what it said: outcomes alone are those of a policy that fails."""

    def __init__(self) -> None:
        super().__init__(small.model(), [small.tokenizer().eos_token_id])
        self.asked: dict[int, GenerationRequest] = {}
        self.said: list[tuple[Any, ...]] = []

    def submit(self, key: int, request: GenerationRequest) -> None:
        self.asked[key] = request
        super().submit(key, request)

    def collect(self) -> list[tuple[int, Generation]]:
        found = super().collect()
        self.said += [(tuple(self.asked[key].prompt_ids), reply.ids) for key, reply in found]
        return found


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_o35_outcomes_do_not_depend_on_the_batch(temperature: float) -> None:
    tasks = _tasks(10)
    assert len(tasks) == 10
    samplers = [_Noting() for _ in range(5)]
    results = [
        _run(tasks, batch, sampler, temperature=temperature)
        for batch, sampler in zip((1, 3, 10, 16), samplers, strict=False)
    ]
    for result, sampler in zip(results, samplers, strict=False):
        assert [t["task_id"] for t in result["tasks"]] == list(tasks)
        assert result == results[0]
        assert sorted(sampler.said) == sorted(samplers[0].said)
    replies = [ids for _, ids in samplers[0].said]
    assert len(replies) == sum(t["steps"] for t in results[0]["tasks"])
    assert len(set(replies)) > 10
    alone = _run(tasks[4:5], 1, samplers[4], temperature=temperature)
    assert _steps(alone) == _steps(results[0])[4:5]
    assert set(samplers[4].said) <= set(samplers[0].said)


def test_o35_the_result_says_what_it_was_measured_on() -> None:
    config = small.small_config()
    result = json.loads(json.dumps(_run(_tasks(4), 2)))
    assert (result["split"], result["n"], result["max_steps"]) == ("valid_seen", 4, 6)
    assert result["manifest_hash"] == small.games().manifest_hash
    assert result["prompt_hash"] == small.student().template.hash
    assert result["history_length"] == config.prompt.history_length == 2
    longer = small.student(small.small_config(prompt__history_length=5))
    assert prompt_of(longer)["history_length"] == 5
    assert result["context"] == "window"
    assert result["decoding"] == {
        "greedy": True, "temperature": None, "top_p": None, "max_new_tokens": 8, "seeds": None,
    }  # fmt: skip
    sampled = _run(_tasks(2), 2, temperature=0.7, top_p=0.9, seeds=(4, 6), model={"kind": "test"})
    assert sampled["decoding"] == {
        "greedy": False, "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 8, "seeds": [4, 6],
    }  # fmt: skip
    assert sampled["model"] == {"kind": "test"}
    assert (result["method"], result["trials"]) == ("plain", 1)
    assert result["engine"] == {
        "engine": result["provenance"]["engine"],
        "engine_version": result["provenance"]["engine_version"],
    }
    assert result["provenance"]["engine_version"]
    versions = result["versions"]
    assert {"python", "sero-rl", "torch", "transformers", "tokenizers", "numpy"} <= versions.keys()
    assert all(versions[name] for name in ("python", "torch", "transformers", "gymnasium"))
    assert result["env_id"] == "SeroALFWorld-v0"


def test_success_by_type_and_interval() -> None:
    config = small.small_config(env__max_steps=15)
    tasks = split_tasks(config.env, small.games(), "train")
    kinds = {task: small.games().meta(task).task_type for task in tasks}
    table = small.walkthroughs()

    class Goals(small.CommandSampler):
        """Solves `pick` tasks and looks around in the others."""

    sampler = Goals(lambda request, prompt: table[prompt] if "put " in prompt else "look")
    envs = [make_env(config.env, small.games(), "train") for _ in range(4)]
    result = evaluate(tasks, envs, small.student(config), sampler, split="train", max_new_tokens=64)
    picks = sum(kind == "pick_and_place_simple" for kind in kinds.values())
    assert 0 < picks < len(tasks)
    assert (result["wins"], result["n"]) == (picks, len(tasks))
    assert result["by_task_type"]["pick_and_place_simple"]["success"] == 1.0
    assert result["by_task_type"]["look_at_obj_in_light"]["success"] == 0.0
    assert result["macro_success"] == 0.5
    assert result["interval_95"] == list(wilson(picks, len(tasks)))
    assert result["stop_reasons"] == {"step_limit": len(tasks) - picks, "success": picks}


def test_wilson_interval_by_hand() -> None:
    # p = 0.5, n = 100: centre 0.5, half = 1.96/(1 + 3.8415/100) * sqrt(.0025 + 3.8415/40000)
    low, high = wilson(50, 100)
    assert (low, high) == pytest.approx((0.40383, 0.59617), abs=1e-5)
    # p = 0: upper bound z^2 / (n + z^2)
    assert wilson(0, 10) == pytest.approx((0.0, 3.841459 / 13.841459), abs=1e-6)
    assert wilson(10, 10) == pytest.approx((10 / 13.841459, 1.0), abs=1e-6)
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="successes=3"):
        wilson(3, 2)


def test_o35_different_tasks_or_prompts_do_not_compare() -> None:
    result = _run(_tasks(4), 2)
    check_comparable(result, {**result, "wins": 4})
    for key in (
        "manifest_hash", "prompt_hash", "tasks_hash", "max_steps", "max_prompt_tokens", "split",
        "decoding", "context", "trials",
    ):  # fmt: skip
        with pytest.raises(Incomparable, match="tasks: 4 each" if key == "tasks_hash" else key):
            check_comparable(result, {**result, key: "other"})
    with pytest.raises(Incomparable, match="tasks: 4 against 3 tasks"):
        check_comparable(result, _run(_tasks(3), 2))


def test_results_from_before_there_were_options_still_compare() -> None:
    result = _run(_tasks(4), 2)
    assert result["env_options"] == {}
    old = {key: value for key, value in result.items() if key != "env_options"}
    check_comparable(old, result)
    check_comparable(result, old)
    with pytest.raises(Incomparable, match="env_options"):
        check_comparable(old, {**result, "env_options": {"show_attributes": True}})


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_results_of_the_first_format_still_compare(temperature: float) -> None:
    result = _run(_tasks(4), 2, temperature=temperature)
    new = {"context", "method", "trials", "model", "engine", "over_seeds", "per_seed"}
    old = {key: value for key, value in result.items() if key not in new}
    seed = None if temperature == 0 else 0
    old["decoding"] = {
        "greedy": temperature == 0, "temperature": temperature or None, "max_new_tokens": 8,
        "seed": seed,
    }  # fmt: skip
    check_comparable(old, result)
    check_comparable(result, old)
    assert compare_outcomes(old, result)["difference"] == 0
    with pytest.raises(Incomparable, match="decoding"):
        check_comparable({**old, "decoding": {**old["decoding"], "max_new_tokens": 9}}, result)
    if seed is not None:
        with pytest.raises(Incomparable, match="decoding"):
            check_comparable({**old, "decoding": {**old["decoding"], "seed": 5}}, result)
    with pytest.raises(Incomparable, match=r"trials: 1 and 3.*several attempts"):
        check_comparable(old, {**result, "trials": 3})


def test_versions_that_differ_are_told_but_not_refused() -> None:
    result = _run(_tasks(2), 2)
    assert version_differences(result, result) == {}
    other = {**result, "versions": {**result["versions"], "torch": "1.0"}}
    other["engine"] = {**result["engine"], "engine_version": "9"}
    check_comparable(result, other)
    found = version_differences(other, result)
    assert found["torch"] == ("1.0", result["versions"]["torch"])
    assert found["engine_version"] == ("9", result["engine"]["engine_version"])


def test_a_task_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        _run([*_tasks(2), _tasks(1)[0]], 2)
    with pytest.raises(ValueError, match="different numbers"):
        _run(_tasks(2), 2, temperature=1.0, seeds=(1, 1))
    with pytest.raises(ValueError, match="Greedy"):
        _run(_tasks(2), 2, seeds=(1, 2))


def test_o35_every_seed_plays_every_task_once_whatever_the_batch() -> None:
    """Half of the turns follow the plan, by draws of their own: seeds differ, batches do not."""
    config = small.small_config(env__max_steps=12)
    tasks = split_tasks(config.env, small.games(), "train")

    def play_with(batch: int, seeds: tuple[int, ...]) -> dict[str, Any]:
        envs = [make_env(config.env, small.games(), "train") for _ in range(batch)]
        return evaluate(
            tasks, envs, small.student(config), small.half_expert(0.8), split="train",
            max_new_tokens=64, temperature=1.0, seeds=seeds,
        )  # fmt: skip

    results = [play_with(batch, (0, 1, 5)) for batch in (1, 3, 24)]
    assert results[1] == results[0] == results[2]
    result = results[0]
    n = len(tasks)
    assert (result["n"], result["plays"]) == (n, 3 * n)
    shares = []
    for seed in (0, 1, 5):
        own = result["per_seed"][str(seed)]
        assert [t["task_id"] for t in own["tasks"]] == list(tasks)
        alone = play_with(5, (seed,))
        assert own["tasks"] == alone["tasks"]
        assert own["success"] == alone["success"]
        assert alone["over_seeds"] is alone["per_seed"] is None
        shares.append(own["success"])
    assert len(set(shares)) > 1, "the seeds must differ"
    spread = result["over_seeds"]["success"]
    mean = sum(shares) / 3
    assert spread["mean"] == pytest.approx(mean)
    assert result["success"] == pytest.approx(mean)
    assert spread["sd"] == pytest.approx((sum((s - mean) ** 2 for s in shares) / 2) ** 0.5)
    assert spread["by_seed"] == dict(zip("015", shares, strict=True))
    for row in result["tasks"]:
        plays = [
            next(t for t in own["tasks"] if t["task_id"] == row["task_id"])
            for own in result["per_seed"].values()
        ]
        assert row["success"] == pytest.approx(sum(p["success"] for p in plays) / 3)
    low, high = result["interval_95"]
    assert low < mean < high
    assert compare_outcomes(result, result)["difference"] == 0.0


def test_a_sure_thing_over_seeds_keeps_an_interval() -> None:
    result = _run(_tasks(10), 4, temperature=1.0, seeds=(0, 1))
    assert result["success"] == 0.0
    assert result["interval_95"] == list(wilson(0, 10))


def test_scores_have_an_interval_of_their_own() -> None:
    def outcomes(scores: list[float]) -> list[Outcome]:
        return [
            Outcome(f"t{i}", "a" if i % 2 else "b", s == 1.0, s, 3, "done", 1)
            for i, s in enumerate(scores)
        ]

    binary = figures(outcomes([1.0, 0.0, 1.0, 1.0]))
    assert binary["score_interval_95"] == binary["interval_95"] == list(wilson(3, 4))
    graded = figures(outcomes([1.0, 0.5, 0.25, 0.25] * 25))
    assert graded["score"] == 0.5
    assert (graded["macro_success"], graded["macro_score"]) == (0.25, 0.5)
    assert graded["by_task_type"]["a"]["score"] == 0.375
    low, high = graded["score_interval_95"]
    # Normal approximation: 1.96 * sd / 10, sd = 0.3062.
    assert (low, high) == pytest.approx((0.44, 0.56), abs=0.01)
    assert graded["admissible_share"] == pytest.approx(2 / 3)
    empty = figures([])
    assert (empty["n"], empty["success"], empty["score_interval_95"]) == (0, None, [0.0, 1.0])


def test_evaluation_needs_neither_snapshots_nor_privileged_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*_: Any) -> Any:
        raise AssertionError("evaluation took a snapshot")

    expected = _run(_tasks(3), 2)
    monkeypatch.setattr(agent_envs, "snapshot", forbidden)
    monkeypatch.setattr(agent_envs, "restore", forbidden)
    monkeypatch.setattr("agent_envs.alfworld.env.ALFWorldEnv.privileged", forbidden)
    assert _run(_tasks(3), 2) == expected


_WITHOUT_ORACLES = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "oracles" or name.startswith("trainer.auxiliary"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from trainer.config import load_config
from trainer.evaluation.evaluate import evaluate
from trainer.generation.hf import HFSampler
from trainer.models.tiny import load_policy
from trainer.runs.folder import make_student
from trainer.worlds.tasks import make_env, open_tasks, split_tasks
import json

config = load_config(json.loads(sys.argv[1]))
model, tokenizer = load_policy(sys.argv[2])
student = make_student(config, model, tokenizer)
games = open_tasks(config.env)
tasks = split_tasks(config.env, games, "valid_seen")[:3]
envs = [make_env(config.env, games, "valid_seen") for _ in range(2)]
result = evaluate(tasks, envs, student, HFSampler(model, student.stop_ids),
                  split="valid_seen", max_new_tokens=8)
assert not any(name.split(".")[0] == "oracles" for name in sys.modules)
print(json.dumps(result))
"""


def test_evaluation_runs_where_oracles_cannot_be_imported(tmp_path: Path) -> None:
    from trainer.config import resolve

    save_policy(tmp_path / "policy", small.model(), small.tokenizer())
    text = run_python(
        _WITHOUT_ORACLES, json.dumps(resolve(small.small_config())), str(tmp_path / "policy")
    )
    result = json.loads(text.strip().splitlines()[-1])
    assert _steps(result) == _steps(_run(_tasks(3), 2))


def _outcomes(pattern: str, **more: Any) -> dict[str, Any]:
    tasks = [{"task_id": f"t{i}", "success": c == "1"} for i, c in enumerate(pattern) if c != "."]
    return {"tasks": tasks, **more}


def test_results_are_compared_task_by_task() -> None:
    """By hand: differences 1, 1, 0, -1; mean 1/4, s = 0.9574, t(0.975, 3) = 3.1824."""
    compared = compare_outcomes(_outcomes("0011"), _outcomes("1110"))
    assert (compared["tasks"], compared["wins_before"], compared["wins"]) == (4, 2, 3)
    assert (compared["gained"], compared["lost"]) == (2, 1)
    assert compared["difference"] == 0.25
    half = 3.182446 * 0.957427 / 2
    assert compared["low"] == pytest.approx(0.25 - half, abs=1e-4)
    assert compared["high"] == pytest.approx(0.25 + half, abs=1e-4)
    back = compare_outcomes(_outcomes("1110"), _outcomes("0011"))
    assert (back["difference"], back["low"]) == (-0.25, -compared["high"])
    # The order of the tasks is no matter, nor are those that only one of them played.
    turned = {"tasks": _outcomes("..11")["tasks"][::-1] + _outcomes("00")["tasks"]}
    assert compare_outcomes(turned, _outcomes("1110")) == compared
    assert compare_outcomes(_outcomes("00111"), _outcomes("1110.")) == compared


def test_a_comparison_without_information_claims_no_interval() -> None:
    same = compare_outcomes(_outcomes("0101"), _outcomes("0101"))
    assert (same["difference"], same["low"], same["high"]) == (0.0, None, None)
    one = compare_outcomes(_outcomes("0"), _outcomes("1"))
    assert (one["difference"], one["low"]) == (1.0, None)
    with pytest.raises(Incomparable, match="no task in common"):
        compare_outcomes(_outcomes("1."), _outcomes(".1"))
    with pytest.raises(Incomparable, match="no outcome of every task"):
        compare_outcomes({"tasks": [{"task_id": "a"}]}, _outcomes("1"))
