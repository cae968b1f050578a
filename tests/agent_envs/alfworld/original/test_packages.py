"""The packages of the original engine: missing, or in versions that do not work together."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

import agent_envs
from agent_envs.alfworld.original import packages as reference
from agent_envs.alfworld.original import textworld_engine
from agent_envs.alfworld.original.packages import WORKING, check_versions
from agent_envs.errors import IncompatibleExtra, MissingExtra
from tests.agent_envs.alfworld.household import payload
from tests.agent_envs.alfworld.worlds import MUG, make
from tests.support import ROOT, run_python

GOOD = {
    "alfworld": "0.4.2",
    "textworld": "1.7.0",
    "tatsu": "5.8.3",
    "fast-downward-textworld": "20.6.4",
}


def test_a_pair_that_works() -> None:
    assert check_versions(GOOD.get) == GOOD
    newer = {**GOOD, "alfworld": "0.4.10", "textworld": "1.7.3rc1"}
    assert check_versions(newer.get) == newer


@pytest.mark.parametrize(
    ("package", "number"),
    [
        ("alfworld", "0.3.5"),
        ("alfworld", "0.4.1"),
        ("alfworld", "0.5.0"),
        ("textworld", "1.6.2"),
        ("textworld", "1.8"),
        ("textworld", "1.10.0"),
        ("tatsu", "5.8.2"),
        ("tatsu", "5.12.1"),
        ("fast-downward-textworld", "19.12"),
        ("textworld", "unknown"),
    ],
)
def test_o34_versions_that_do_not_work_together_are_all_named(package: str, number: str) -> None:
    found = {**GOOD, package: number}
    with pytest.raises(IncompatibleExtra) as caught:
        check_versions(found.get)
    message = str(caught.value)
    for name, there in found.items():
        assert f"{name} {there}" in message
    assert f"At fault: {package}." in message
    assert "'reference'" in message
    assert "pip install '.[reference]'" in message


@pytest.mark.parametrize("missing", list(GOOD))
def test_o34_a_missing_package_names_the_extra(missing: str) -> None:
    found = {name: number for name, number in GOOD.items() if name != missing}
    with pytest.raises(MissingExtra, match="'reference'") as caught:
        check_versions(found.get)
    assert f"{missing} not installed" in str(caught.value)
    assert not isinstance(caught.value, IncompatibleExtra)


@pytest.mark.parametrize(
    ("found", "error"),
    [({}, MissingExtra), ({**GOOD, "tatsu": "5.12.1"}, IncompatibleExtra)],
    ids=["missing", "incompatible"],
)
def test_o34_the_env_and_the_driver_say_so_and_nothing_is_imported(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], error: type[Exception]
) -> None:
    monkeypatch.setattr(textworld_engine, "check_versions", lambda: check_versions(found.get))
    with pytest.raises(error, match="reference"):
        textworld_engine.TextWorldGame(payload())
    env = make(engine="textworld")
    with pytest.raises(error, match="reference"):
        env.reset(seed=0, options={"task_id": MUG})
    with pytest.raises(agent_envs.ResetNeeded):
        env.step("look")


def test_o34_without_the_packages_everything_else_runs() -> None:
    """In a process where the original cannot be imported: the native engine plays."""
    code = (
        "import sys\n"
        "for name in ('textworld', 'alfworld', 'tatsu', 'fast_downward'):\n"
        "    sys.modules[name] = None\n"
        "from tests.agent_envs.alfworld.worlds import MUG, make\n"
        "print(make().reset(options={'task_id': MUG})[1]['goal'])\n"
        "import agent_envs\n"
        "try: make(engine='textworld').reset(options={'task_id': MUG})\n"
        "except agent_envs.MissingExtra as error: print('reference' in str(error))"
    )
    assert run_python(code) == "put some mug on shelf.\nTrue\n"


def test_the_versions_are_those_of_the_extra() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    asked = project["project"]["optional-dependencies"][reference.EXTRA]
    ours = {
        f"{package}=={first}" if beyond is None else f"{package}>={first},<{beyond}"
        for package, (first, beyond) in WORKING.items()
    }
    assert set(asked) <= ours  # Fast Downward comes with textworld
