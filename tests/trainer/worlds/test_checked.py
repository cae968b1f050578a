"""What is wrong with somebody's environment is said with its name and the call, anywhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agent_envs
from agent_envs.errors import SnapshotMismatch
from tests.trainer.faulty_env import FAULT
from tests.trainer.lamp_world import OpenLampEnv
from tests.trainer.worlds.test_user_env import _config
from trainer.config import EnvConfig, from_dict
from trainer.loop import train
from trainer.pools.base import reset_envs, step_envs
from trainer.pools.registry import make_envs
from trainer.worlds.checked import check_answer, check_began, checked
from trainer.worlds.named import NamedError
from trainer.worlds.tasks import make_env, open_tasks

PLACES = "tests.trainer.faulty_env"
PLACE = rf"\(.*{'faulty_env.py'}, line \d+\)"
RESET = {
    "reset raises": f"reset fails: ZeroDivisionError: no dice {PLACE}",
    "reset reads": rf"reset fails: FileNotFoundError: .*no such file' {PLACE}",
    "reset text": "reset gives an observation that is no text: found None of type NoneType",
    "goal=none": r"reset gives an info\['goal'\] that is no text: found None",
    "goal=number": r"reset gives an info\['goal'\] that is no text: found 3 of type int",
    "info none": "reset gives an info that is no mapping: found None",
    "info score": "reset gives an info without 'goal', 'score'",
    "info commands": r"reset gives an info\['admissible_actions'\] that is no tuple of texts",
}
STEP = {
    "step raises": f"step fails: KeyError: 'room' {PLACE}",
    "step exits": f"step fails: SystemExit: 3 {PLACE}",
    "step text": "step gives an observation that is no text: found 7 of type int",
    "reward=nan": "step gives a reward that is no finite number: found nan of type float",
    "reward=inf": "step gives a reward that is no finite number: found inf",
    "reward=none": "step gives a reward that is no finite number: found None",
    "reward=str": "step gives a reward that is no finite number: found '1.0' of type str",
    "score=nan": r"step gives an info\['score'\] that is no finite number: found nan",
    "step tuple": "step gives no tuple of observation, reward, terminated, truncated and info",
    "step list": "step gives no tuple of observation, reward, .* of type list",
    "step flag": "step gives terminated that is neither true nor false: found 'no'",
    "snapshot raises": f"a snapshot fails: OSError: no place for it {PLACE}",
    "snapshot list": "a snapshot gives a state that is no tuple: found",
}
WRAPPED = {
    "wrapper reset": f"reset fails: RuntimeError: wrapped badly {PLACE}",
    "wrapper raises": f"step fails: RuntimeError: wrapped badly {PLACE}",
    # In a worker who unpacks it says how many there are.
    "wrapper tuple": "step (gives no tuple of|fails: ValueError: not enough values)",
}
CASES = {**RESET, **STEP, **WRAPPED}


def _env_config(name: str, pool: str = "serial") -> EnvConfig:
    workers = {"workers": 1} if pool == "process" else {}
    fields = {"id": f"{PLACES}:{name}", "max_steps": 8, "pool": pool, **workers}
    return from_dict({"env": fields}).env


def _played(envs: list[Any], task: str) -> None:
    reset_envs(envs, [(task, 0)])
    step_envs(envs, ["roll"], snapshots=True)


@pytest.fixture(autouse=True)
def fault(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that says what is wrong, nothing at first; workers read it too."""
    file = tmp_path_factory.getbasetemp() / "fault"
    file.write_text("")
    monkeypatch.setenv(FAULT, str(file))
    return file


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FAULT, str(tmp_path_factory.getbasetemp() / "fault"))
        found = {}
        for name in ("Faulty", "wrapped"):
            config = _env_config(name, "process")
            found[name] = make_envs(config, open_tasks(config), "train", 1)
    yield found
    for envs in found.values():
        envs[0].close()


@pytest.mark.parametrize("wrong", CASES)
@pytest.mark.parametrize("pool", ["serial", "process"])
def test_a_fault_is_a_typed_error_with_the_name_and_the_call(
    fault: Path, pools: dict[str, Any], pool: str, wrong: str
) -> None:
    if (pool, wrong) == ("process", "step exits"):
        return  # ends the worker, which is another error and named too
    name = "wrapped" if wrong in WRAPPED else "Faulty"
    config = _env_config(name)
    envs = pools[name] if pool == "process" else make_envs(config, open_tasks(config), "train", 1)
    fault.write_text(wrong)
    words = CASES[wrong]
    with pytest.raises(NamedError, match=rf"^env\.id={PLACES}:{name}: {words}") as found:
        _played(envs, "house0/lamp0")
    assert len(str(found.value).splitlines()) == 1
    if wrong in RESET:
        # Already when the tasks are opened: before any model.
        with pytest.raises(NamedError, match=rf"^env\.id={PLACES}:Faulty: {words}"):
            open_tasks(config).meta("house0/lamp0")
    fault.write_text("")
    _played(envs, "house0/lamp0")  # the pool goes on


def test_a_restore_that_fails_is_a_mismatch_and_loses_a_branch_alone(
    fault: Path, tmp_path: Path
) -> None:
    config = _env_config("Faulty")
    env = make_env(config, open_tasks(config), "train")
    env.reset(options={"task_id": "house0/lamp0"})
    snap = agent_envs.snapshot(env)
    fault.write_text("restore raises")
    words = rf"^env\.id={PLACES}:Faulty: a restore fails: IndexError: of a room {PLACE}"
    with pytest.raises(SnapshotMismatch, match=words):
        agent_envs.restore(env, snap)
    assert env.step("roll")[1] == 0.25, "the episode goes on"
    run = _config(tmp_path, f"{PLACES}:Faulty", **{"eval.splits": ["train"], "run.iterations": 1})
    result = train(run, tmp_path / "run")
    assert result.metrics[0]["sero/rows"] == 0
    assert '"reasons": ["restore_error"]' in (tmp_path / "run/roots.jsonl").read_text()


def test_a_run_stops_with_it_and_can_be_resumed(fault: Path, tmp_path: Path) -> None:
    config = _config(tmp_path, f"{PLACES}:Faulty", **{"eval.splits": ["train"]})
    train(config, tmp_path / "run", until=1)
    fault.write_text("reward=nan")
    with pytest.raises(NamedError, match="step gives a reward that is no finite number"):
        train(config, tmp_path / "run", resume=True)
    fault.write_text("")
    assert train(config, tmp_path / "run", resume=True).iterations == 2


def test_a_checked_environment_is_what_it_was() -> None:
    plain, env = OpenLampEnv(max_steps=8), OpenLampEnv(max_steps=8)
    checked(env, "env.id=x:y")
    checked(env, "env.id=x:y")
    assert type(env).__mro__[1] is OpenLampEnv
    assert (env.env_id, type(env).__qualname__, type(env).__module__) == (
        plain.env_id, type(plain).__qualname__, type(plain).__module__,
    )  # fmt: skip
    task = {"task_id": "house1/lamp1"}
    assert env.reset(seed=3, options=task) == plain.reset(seed=3, options=task)
    assert env.step("roll") == plain.step("roll")
    snap = agent_envs.snapshot(env)
    assert snap == agent_envs.snapshot(plain)
    twin = agent_envs.fork(env)
    assert twin.step("roll") == env.step("roll") == plain.step("roll")
    assert agent_envs.restore(plain, snap) == agent_envs.restore(env, snap)
    assert copy.deepcopy(env).step("go east") == env.step("go east")
    again = pickle.loads(pickle.dumps(env))
    assert type(again) is type(env) is type(copy.copy(env))
    assert again.step("go west") == env.step("go west")


@pytest.mark.parametrize("key", ["reward", "score"])
def test_a_number_that_no_float_holds_is_said_and_no_overflow(key: str) -> None:
    env = OpenLampEnv(max_steps=8)
    text, info = env.reset(options={"task_id": "house0/lamp0"})
    reward: Any = 10**400 if key == "reward" else 0.0
    info = {**info, "score": 10**400} if key == "score" else info
    with pytest.raises(NamedError, match=f"{key}.* that is no finite number: found 1000"):
        check_answer((text, reward, False, False, info), "env.id=x:y")


@pytest.mark.parametrize("bad", [("look", 3), ("look", "\ud800"), ["look"], ("é", None)])
def test_commands_that_are_no_texts_are_found_among_good_ones(bad: Any) -> None:
    env = OpenLampEnv(max_steps=8)
    text, info = env.reset(options={"task_id": "house0/lamp0"})
    for good in ((), ("look", "é"), ("look", "")):
        check_began((text, {**info, "admissible_actions": good}), "env.id=x:y")
    with pytest.raises(NamedError, match="that is no tuple of texts"):
        check_began((text, {**info, "admissible_actions": bad}), "env.id=x:y")


def test_numbers_of_other_types_are_numbers() -> None:
    env = OpenLampEnv(max_steps=8)
    text, info = env.reset(options={"task_id": "house0/lamp0"})
    for reward in (0, 1.5, True, np.float32(0.5), np.int64(1), np.bool_(True)):
        answer = (text, reward, np.bool_(False), False, info)
        assert check_answer(answer, "env.id=x:y") is answer
    assert check_began((text, info), "env.id=x:y") == (text, info)
