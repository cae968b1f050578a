"""How `--env`, `--policy` and `--oracle` are resolved."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from oracles.alfworld_explorer import ALFWorldExplorer
from oracles.branches import EnvRecipe, run_branches
from tests.support import run_python
from trainer.config.sections import ConfigError
from trainer.worlds.named import NamedError, load_named
from trainer.worlds.sources import ImportedRecipe, OracleRecipe, Source, resolve

GAMES = "generated:small?seed=1&train=4"
SOMEBODY = """
import sys

import gymnasium

from examples.third_party_env import COMMANDS, JugsEnv, Oracle

gymnasium.register("SomebodyJugs-v0", entry_point=f"{__name__}:JugsEnv")
number = 7


def make(max_steps=None):
    return JugsEnv(max_steps=max_steps or 9)


def cartpole():
    return gymnasium.make("CartPole-v1")


def last(observation, info):
    return info["admissible_actions"][-1]


def wrong(observation, info):
    return 3


class Counting:
    def __init__(self):
        self.asked = 0

    def __call__(self, observation, info):
        self.asked += 1
        return COMMANDS[self.asked % len(COMMANDS)]


class NoOracle:
    pass


def boom(*anything):
    raise RuntimeError("boom")


def leave(*anything):
    sys.exit(0)


def stop(observation, info):
    raise StopIteration


class Torn(JugsEnv):
    def _apply(self, command):
        raise OSError("engine gone")
"""
NAME = "somebodys_game"


@pytest.fixture
def somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that lies in the current folder and nowhere else."""
    import gymnasium

    (tmp_path / f"{NAME}.py").write_text(SOMEBODY, encoding="utf-8")
    (tmp_path / "broken_game.py").write_text("import nothing_of_that_name", encoding="utf-8")
    (tmp_path / "leaving_game.py").write_text("raise SystemExit(0)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield NAME
    sys.modules.pop(NAME, None)
    gymnasium.registry.pop("SomebodyJugs-v0", None)


def _resolve(**given: Any) -> Source:
    words = {"env": None, "policy": "random", "oracle": "planner", "seed": 0, **given}
    return resolve(**words)


@pytest.mark.parametrize("env", [None, "alfworld", "SeroALFWorld-v0", "agent_envs:SeroALFWorld-v0"])
def test_our_environments_have_many_names(env: str | None) -> None:
    source = _resolve(env=env, options={"data": GAMES, "split": None})
    assert source.recipe == EnvRecipe("SeroALFWorld-v0", {"data": GAMES, "split": "train"})
    assert (source.oracle, source.policy, source.provenance) == ("planner", "random", {})
    assert source.trained is None
    assert not next(source.played).success


def test_the_default_oracle_is_the_environments_first() -> None:
    shop = _resolve(env="webshop", options={"data": "generated:small?n=64"})
    assert (shop.oracle, shop.make_oracle) == ("goal", OracleRecipe("goal", "SeroWebShop-v0"))
    named = _resolve(oracle="explorer", options={"data": GAMES})
    assert isinstance(named.make_oracle(), ALFWorldExplorer)
    by_place = _resolve(
        oracle="oracles.alfworld_explorer:ALFWorldExplorer", options={"data": GAMES}
    )
    assert isinstance(by_place.make_oracle(), ALFWorldExplorer)


@pytest.mark.parametrize("name", ["make", "JugsEnv", "SomebodyJugs-v0"])
def test_a_function_a_class_or_an_id_of_a_module_in_this_folder(somebody: str, name: str) -> None:
    before = list(sys.path)
    oracle = f"{somebody}:Oracle"
    source = _resolve(env=f"{somebody}:{name}", oracle=oracle)
    assert sys.path == before
    assert source.recipe == ImportedRecipe(f"{somebody}:{name}", {})
    assert source.oracle == oracle
    walk = next(source.played)
    assert walk.snapshots[0].env_id == "JugsEnv"
    assert len(walk.history) <= (9 if name == "make" else 14)
    (branch,) = run_branches([walk.request(0)], source.make_oracle, source.recipe)
    assert branch.valid
    assert branch.success


def test_options_reach_a_factory_that_has_them(somebody: str) -> None:
    words = {"env": f"{somebody}:make", "oracle": f"{somebody}:Oracle"}
    source = _resolve(**words, options={"max_steps": 3, "data": None})
    assert source.recipe.kwargs == {"max_steps": 3}
    assert all(len(walk.history) <= 3 for walk in islice(source.played, 4))
    with pytest.raises(NamedError, match=r"--data: .*make has no such option"):
        _resolve(**words, options={"data": "x"})


def test_recipes_are_plain_values_that_other_processes_can_use(somebody: str) -> None:
    source = _resolve(env=f"{somebody}:make", oracle=f"{somebody}:Oracle", policy="first")
    recipes = (source.recipe, source.make_oracle)
    assert pickle.loads(pickle.dumps(recipes)) == recipes
    requests = [next(source.played).request(0) for _ in range(2)]
    here = run_branches(requests, source.make_oracle, source.recipe)
    there = run_branches(requests, source.make_oracle, source.recipe, workers=1)
    assert here == there


def test_a_policy_is_a_function_or_a_class_of_such(somebody: str) -> None:
    words = {"env": f"{somebody}:make", "oracle": f"{somebody}:Oracle"}
    last = _resolve(**words, policy=f"{somebody}:last")
    assert last.policy == f"{somebody}:last"
    assert {item.action for item in next(last.played).history} == {"pour out of the large jug"}
    counting = _resolve(**words, policy=f"{somebody}:Counting")
    assert len({item.action for item in next(counting.played).history}) == 6
    wrong = _resolve(**words, policy=f"{somebody}:wrong")
    with pytest.raises(NamedError, match="wrong answered 3: expected a command"):
        next(wrong.played)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"env": f"{NAME}:boom"}, f"--env {NAME}:boom fails: RuntimeError: boom .*{NAME}.py, line"),
        ({"env": f"{NAME}:leave"}, "leave fails: SystemExit: 0"),
        ({"env": f"{NAME}:Torn"}, "Torn: an episode fails: OSError: engine gone"),
        ({"oracle": f"{NAME}:boom"}, f"--oracle {NAME}:boom fails: RuntimeError: boom"),
        ({"oracle": f"{NAME}:leave"}, "leave fails: SystemExit"),
        ({"policy": f"{NAME}:boom"}, f"--policy {NAME}:boom fails: RuntimeError: boom"),
        ({"policy": f"{NAME}:leave"}, "leave fails: SystemExit: 0"),
        ({"policy": f"{NAME}:stop"}, "stop fails: StopIteration"),
        ({"env": "leaving_game:make"}, "leaving_game cannot be imported .*SystemExit"),
    ],
)
def test_what_somebodys_code_raises_is_told_with_its_name(
    somebody: str, given: dict[str, str], message: str
) -> None:
    words = {"env": f"{NAME}:make", "oracle": f"{NAME}:Oracle", **given}
    with pytest.raises(NamedError, match=message):
        next(_resolve(**words).played)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"env": "nowhere:make"}, "the module nowhere cannot be imported .*ModuleNotFoundError"),
        ({"env": "broken_game:make"}, "broken_game cannot be imported .*nothing_of_that_name"),
        ({"env": f"{NAME}:mak"}, f"{NAME}:mak: the module has no 'mak', and registers no such id"),
        ({"env": f"{NAME}:number"}, "has 'number' of type int"),
        ({"env": ":make"}, "expected the form module:name"),
        ({"env": f"{NAME}:cartpole"}, "gives a CartPoleEnv: expected an agent_envs.TextEnv"),
        ({"env": f"{NAME}:make", "oracle": "planner"}, "has no oracles by name"),
        ({"oracle": f"{NAME}:Orcale"}, f"the module {NAME} has no 'Orcale'"),
        ({"oracle": f"{NAME}:NoOracle"}, "gives a NoOracle, which is no oracle"),
        ({"oracle": "operator:add"}, r"takes arguments \(a, b\): expected a factory without"),
        ({"policy": "lucky"}, "neither random nor first, there is no such folder"),
        ({"policy": f"{NAME}:number"}, "is of type int: expected a function"),
    ],
)
def test_what_is_not_there_is_said(somebody: str, given: dict[str, str], message: str) -> None:
    words = {"env": f"{NAME}:make", "oracle": f"{NAME}:Oracle", **given}
    with pytest.raises(NamedError, match=message):
        _resolve(**words)


def test_an_unknown_oracle_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="Unknown oracle 'delphi' for SeroALFWorld-v0"):
        _resolve(oracle="delphi", options={"data": GAMES})


def test_nested_attributes_are_found() -> None:
    assert load_named("os:path.join", "--env") is os.path.join


def test_importing_it_loads_no_torch() -> None:
    code = "import sys, trainer.worlds.sources; print('torch' in sys.modules)"
    assert run_python(code).strip() == "False"
