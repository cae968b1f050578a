from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agent_envs
from tests.support import run_python
from tests.trainer import small
from trainer.evaluate import Incomparable, check_comparable, compare_outcomes, evaluate
from trainer.generation.hf import HFSampler
from trainer.metrics import wilson
from trainer.models.tiny import save_policy
from trainer.worlds import make_env, split_tasks


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


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_o35_outcomes_do_not_depend_on_the_batch(temperature: float) -> None:
    tasks = _tasks(10)
    assert len(tasks) == 10
    results = [_run(tasks, batch, temperature=temperature) for batch in (1, 3, 10, 16)]
    for result in results:
        assert [t["task_id"] for t in result["tasks"]] == list(tasks)
        assert result == results[0]
    alone = _run(tasks[4:5], 1, temperature=temperature)
    assert _steps(alone) == _steps(results[0])[4:5]


def test_o35_the_result_says_what_it_was_measured_on() -> None:
    config = small.small_config()
    result = json.loads(json.dumps(_run(_tasks(4), 2)))
    assert (result["split"], result["n"], result["max_steps"]) == ("valid_seen", 4, 6)
    assert result["manifest_hash"] == small.games().manifest_hash
    assert result["prompt_hash"] == small.student().template.hash
    assert result["history_length"] == config.prompt.history_length == 2
    assert result["decoding"] == {
        "greedy": True, "temperature": None, "max_new_tokens": 8, "seed": None,
    }  # fmt: skip
    assert result["provenance"]["engine_version"]
    assert result["versions"]["torch"]
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
        "decoding",
    ):  # fmt: skip
        with pytest.raises(Incomparable, match=key):
            check_comparable(result, {**result, key: "other"})
    with pytest.raises(Incomparable, match="tasks_hash"):
        check_comparable(result, _run(_tasks(3), 2))


def test_results_from_before_there_were_options_still_compare() -> None:
    result = _run(_tasks(4), 2)
    assert result["env_options"] == {}
    old = {key: value for key, value in result.items() if key != "env_options"}
    check_comparable(old, result)
    check_comparable(result, old)
    with pytest.raises(Incomparable, match="env_options"):
        check_comparable(old, {**result, "env_options": {"show_attributes": True}})


def test_a_task_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        _run([*_tasks(2), _tasks(1)[0]], 2)


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
from trainer.evaluate import evaluate
from trainer.generation.hf import HFSampler
from trainer.models.tiny import load_policy
from trainer.run_folder import make_student
from trainer.worlds import make_env, open_tasks, split_tasks
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
