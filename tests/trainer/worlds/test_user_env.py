"""`env.id: module:name`: somebody's own environment and oracle, trained without registering."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import InvalidOption, MissingData
from tests.agent_envs.lamp_env import LampEnv
from tests.support import run_python
from tests.trainer import small
from tests.trainer.lamp_world import OpenLampEnv, Walker
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from trainer.config import Config, ConfigError, from_dict
from trainer.evaluation.run import evaluate_run
from trainer.loop import train
from trainer.metrics import read_metrics
from trainer.runs.folder import RunFolder
from trainer.worlds.named import NamedError
from trainer.worlds.tasks import WorldRecipe, make_env, open_tasks, split_tasks

HERE = __name__


class SplitLamp(OpenLampEnv):
    """Takes its split as an argument."""

    def __init__(self, max_steps: int | None = 50, split: str = "train") -> None:
        if split not in ("train", "dark"):
            raise InvalidOption(f"split {split!r}: train or dark")
        super().__init__(max_steps=max_steps)
        self._split = split

    def _task_ids(self) -> Sequence[str]:
        return self._ids[:8] if self._split == "train" else self._ids[8:]

    def _info_static(self) -> Any:
        return {**super()._info_static(), "split": self._split}


class MarkedLamp(OpenLampEnv):
    """Says in `info` which split a task is of."""

    def _info_static(self) -> Any:
        number = int(str(self._task_id).partition("/")[0].removeprefix("house"))
        return {**super()._info_static(), "split": "dark" if number >= 8 else "train"}


def walker() -> Walker:
    return Walker(None)


def broken() -> LampEnv:
    raise RuntimeError("no display")


def no_env() -> str:
    return "lamp"


class Twice(OpenLampEnv):
    """Lists a task twice, which an evaluation would play twice."""

    def _task_ids(self) -> Sequence[str]:
        return (*self._ids[:4], self._ids[0])


class TwiceInTheDark(SplitLamp):
    """Lists a task twice in the split that is evaluated."""

    def _task_ids(self) -> Sequence[str]:
        ids = tuple(super()._task_ids())
        return ids if self._split == "train" else (*ids, ids[0])


SEVEN = 7


def _config(tmp_path: Path, env_id: str, **overrides: Any) -> Config:
    settings = {
        "env": {"id": env_id, "max_steps": overrides.pop("max_steps", 8)},
        "rollout": {"tasks": 2, "rollouts": 3, "max_new_tokens": 24},
        "model": {"path": run_config(tmp_path).model.path},
        "optim": {"lr": 1e-2, "warmup_steps": 0},
        "eval": {"initial": False, "tasks": 4},
        "run": {"iterations": 2, "save_turns": True},
        "auxiliary": {"sero": {"oracle": f"{HERE}:walker"}},
    }
    return from_dict(settings).replace(**overrides)


@pytest.mark.parametrize("name", ["SplitLamp", "MarkedLamp"])
def test_an_own_environment_trains_resumes_and_is_evaluated(tmp_path: Path, name: str) -> None:
    env_id = f"{HERE}:{name}"
    config = _config(tmp_path, env_id, **{"eval.splits": ["dark"], "run.checkpoint_every": 1})
    straight = train(config, tmp_path / "whole")
    assert sum(m["sero/rows"] for m in straight.metrics) > 0, "no gate was open"
    assert {task for task, *_ in sampled(tmp_path / "whole")} <= set(LampEnv()._ids[:8])
    train(config, tmp_path / "parts", until=1)
    resumed = train(config, tmp_path / "parts", resume=True)
    assert untimed(read_metrics(tmp_path / "parts/metrics.jsonl")) == untimed(straight.metrics)
    assert small.same(trained(tmp_path / "whole"), trained(tmp_path / "parts"))
    assert resumed.evaluations == straight.evaluations
    tasks = [task["task_id"] for task in straight.evaluations["dark"]["tasks"]]
    assert tasks == list(LampEnv()._ids[8:])
    again = evaluate_run(tmp_path / "whole")
    assert again["dark"]["wins"] == straight.evaluations["dark"]["wins"]
    found, info = RunFolder(tmp_path / "whole").read_info()
    assert found == config
    assert info["config"]["env"]["id"] == env_id
    assert info["provenance"]["engine"] == "lamp"


def test_the_example_of_the_documentation_trains(tmp_path: Path) -> None:
    module = "examples.third_party_env"
    config = _config(
        tmp_path,
        f"{module}:JugsEnv",
        max_steps=5,
        **{
            "auxiliary.sero.oracle": f"{module}:Oracle",
            "eval.splits": ["train"],
            "run.iterations": 1,
            "run.save_turns": False,
        },
    )
    result = train(config, tmp_path / "run")
    assert result.metrics[0]["sero/roots"] > 0
    assert result.evaluations["train"]["n"] == 4


def test_tasks_are_those_of_the_environment() -> None:
    def tasks(name: str, **fields: Any) -> Any:
        config = from_dict({"env": {"id": f"{HERE}:{name}", "max_steps": 8, **fields}}).env
        return config, open_tasks(config)

    everything = LampEnv()._ids
    for name in ("SplitLamp", "MarkedLamp"):
        config, found = tasks(name)
        assert tuple(split_tasks(config, found, "train")) == everything[:8]
        assert tuple(split_tasks(config, found, "dark")) == everything[8:]
        assert found.splits == ("dark", "train")
        assert (found.meta("house9/lamp3").split, found.meta("house9/lamp3").task_type) == (
            "dark",
            "lamp",
        )
        assert found.task_ids() == everything
        with pytest.raises(MissingData, match="none in split 'dawn'"):
            split_tasks(config, found, "dawn")
        assert found.task_ids("train", ("lamp",)) == everything[:8]
        assert found.task_ids("train", ("torch",)) == ()
        assert make_env(config, found, "dark").unwrapped.max_steps == 8  # type: ignore[attr-defined]
    assert tasks("MarkedLamp")[1].manifest_hash == tasks("MarkedLamp")[1].manifest_hash
    assert tasks("MarkedLamp")[1].manifest_hash != tasks("SplitLamp")[1].manifest_hash
    # An id that the module registers.
    by_id = {"id": "tests.agent_envs.lamp_env:TestLamp-v0", "max_steps": 8}
    assert open_tasks(from_dict({"env": by_id}).env).task_ids("train") == everything


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        ({"id": "no_such_module:make"}, NamedError, "env.id=no_such_module:make: the module no_"),
        ({"id": f"{HERE}:missing"}, NamedError, "has no 'missing', and registers no such id"),
        ({"id": f"{HERE}:SEVEN"}, NamedError, "'SEVEN' of type int"),
        ({"id": f"{HERE}:no_env"}, NamedError, "gives a str: expected an agent_envs.TextEnv"),
        ({"id": f"{HERE}:broken"}, NamedError, "fails: RuntimeError: no display"),
        ({"id": f"{HERE}:"}, NamedError, "expected the form module:name"),
        (
            {"id": f"{HERE}:SplitLamp", "data": "shop"},
            ConfigError,
            "env.data is set, but .*SplitLamp takes no `data`",
        ),
        (
            {"id": "examples.third_party_env:make"},
            ConfigError,
            "takes no `max_steps` and its episodes have 14 steps. Set env.max_steps=14",
        ),
    ],
)
def test_what_is_no_environment_is_said(
    env: dict[str, Any], error: type[Exception], message: str
) -> None:
    config = from_dict({"env": {"max_steps": 15, **env}}).env
    with pytest.raises(error, match=message):
        open_tasks(config)


@pytest.mark.parametrize("name", ["Twice", "TwiceInTheDark"])
def test_a_task_that_is_listed_twice_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    config = _config(tmp_path, f"{HERE}:{name}", **{"eval.splits": ["dark"]})
    with pytest.raises(NamedError, match=r"lists the task 'house[08]/lamp[02]' more than once"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_other_sections_of_env_are_refused_for_an_own_environment() -> None:
    with pytest.raises(ConfigError, match=r"env\.generated is set"):
        from_dict({"env": {"id": f"{HERE}:SplitLamp", "max_steps": 8, "generated": {"train": 3}}})
    own = {"id": f"{HERE}:A", "max_steps": 8}
    with pytest.raises(ConfigError, match=r"auxiliary\.sero\.oracle='goal' must be"):
        from_dict({"env": own, "auxiliary": {"sero": {"oracle": "goal"}}})


def test_a_run_whose_module_is_gone_names_it(tmp_path: Path) -> None:
    config = _config(tmp_path, f"{HERE}:SplitLamp", **{"run.iterations": 1, "auxiliary": {}})
    train(config, tmp_path / "run")
    info = tmp_path / "run/run.json"
    data = json.loads(info.read_text())
    data["config"]["env"]["id"] = "gone.away:make"
    info.write_text(json.dumps(data))
    with pytest.raises(NamedError, match=r"env\.id=gone\.away:make: the module gone\.away cannot"):
        evaluate_run(tmp_path / "run", ["train"])
    missing = config.replace(**{"env.id": "gone.away:make", "run.iterations": 2})
    with pytest.raises(NamedError, match=r"gone\.away"):
        train(missing, tmp_path / "run", resume=True)


def test_branches_of_an_own_environment_run_in_workers(tmp_path: Path) -> None:
    """Environment and oracle are made again in the worker from their names."""
    config = _config(tmp_path, f"{HERE}:SplitLamp", **{"run.iterations": 1})
    here = train(config, tmp_path / "here")
    there = train(config.replace(**{"auxiliary.sero.workers": 1}), tmp_path / "there")
    assert untimed(here.metrics) == untimed(there.metrics)
    assert here.metrics[0]["sero/rows"] > 0
    assert small.same(trained(tmp_path / "here"), trained(tmp_path / "there"))
    roots = [(tmp_path / name / "roots.jsonl").read_text() for name in ("here", "there")]
    assert roots[0] == roots[1]


def test_an_own_environment_is_opened_without_oracles() -> None:
    code = """
import sys
sys.modules["oracles"] = None
from trainer.config.env import EnvConfig
from trainer.worlds.tasks import WorldRecipe
env = WorldRecipe(EnvConfig(id="tests.agent_envs.lamp_env:LampEnv", max_steps=8), "train")()
print(len(env.unwrapped.task_ids), "torch" in sys.modules)
"""
    assert run_python(code).split() == ["12", "False"]
    config = from_dict({"env": {"id": f"{HERE}:SplitLamp", "max_steps": 8}}).env
    assert isinstance(WorldRecipe(config, "train")().unwrapped, SplitLamp)


def test_no_default_of_households_takes_the_place_of_ones_own_step_limit() -> None:
    with pytest.raises(ConfigError, match=r"env\.max_steps is not given"):
        from_dict({"env": {"id": f"{HERE}:SplitLamp"}})
