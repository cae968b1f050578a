"""What a run lacks is said before its warm start, and before anything is written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import SeroError
from tests.trainer import small
from tests.trainer.worlds.test_user_env import HERE as WORLD
from trainer.config import Config, ConfigError, from_dict
from trainer.loop import train
from trainer.runs.needs import check_needs, check_policy, warmstart_oracle

LIBRARY = {"auxiliary__sdar__weight": 0.01, "auxiliary__sdar__skills": "/no/such/file.json"}


def _refused(config: Config, out: Path, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def warm(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the warm start began")

    monkeypatch.setattr("trainer.supervised.warmstart.supervised", warm)
    with pytest.raises(SeroError, match=told):
        train(config, out)
    assert not (out / "initial").exists()
    assert not (out / "warmstart.json").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (LIBRARY, "auxiliary.sdar.skills='/no/such/file.json'"),
        ({"auxiliary__sero__oracle": "no.such:oracle"}, "auxiliary.sero.oracle=no.such:oracle"),
        ({"auxiliary__dagger__oracle": "json:loadd"}, "auxiliary.dagger.oracle=json:loadd"),
        ({"auxiliary__sft__oracle": "math:pi"}, "auxiliary.sft.oracle=math:pi is of type float"),
        ({"warmstart__oracle": "no.such:oracle"}, "warmstart.oracle=no.such:oracle"),
        ({"auxiliary__opd__teacher": "/no/folder"}, "auxiliary.opd.teacher=/no/folder"),
        ({"auxiliary__gkd__teacher": "/no/folder"}, "auxiliary.gkd.teacher=/no/folder"),
        ({"auxiliary__seed__analyser__model": "no.such:model"}, "auxiliary.seed.analyser.model"),
        (
            {"auxiliary__serl__source": "judge_current", "auxiliary__serl__judge": "no.such:j"},
            "auxiliary.serl.judge=no.such:j",
        ),
        (
            {"auxiliary__sero__depth_iterations": 2, "auxiliary__sero__depth_start": 99},
            "auxiliary.sero.depth_start=99",
        ),
        ({"prompt__max_prompt_tokens": 5}, "prompt.max_prompt_tokens=5 does not hold"),
    ],
)
def test_what_is_missing_is_said_first(
    tmp_path: Path, changes: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refused(small.small_config(**changes), tmp_path / "run", told, monkeypatch)


@pytest.mark.parametrize(
    ("package", "changes", "told"),
    [
        ("peft", {"lora__rank": 4}, r"pip install 'sero-rl\[lora\]'"),
        ("bitsandbytes", {"optim__optimizer": "adamw_8bit"}, "works on CUDA only"),
    ],
)
def test_missing_packages_are_said_first(
    tmp_path: Path,
    package: str,
    changes: dict[str, Any],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    _refused(small.small_config(**changes), tmp_path / "run", told, monkeypatch)


def test_layers_that_the_model_does_not_have_are_said_first() -> None:
    config = small.small_config(lora__rank=4, lora__targets=["q_proj", "nose"])
    with pytest.raises(ConfigError, match=r"lora.targets.* no linear layer nose"):
        check_policy(config, small.games(), small.model(), small.tokenizer())


def test_nothing_is_made_by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    def walker(*args: Any) -> None:
        raise AssertionError("an oracle was made")

    monkeypatch.setattr(f"{WORLD}.walker", walker)
    check_needs(small.small_config(auxiliary__sero__oracle=f"{WORLD}:walker"))


# ------------------------------------------------------------------------------ own environments


def _own(**sections: Any) -> Config:
    return from_dict({"env": {"id": f"{WORLD}:SplitLamp", "max_steps": 8}, **sections})


def test_the_first_oracle_of_ones_own_demonstrates() -> None:
    oracle = f"{WORLD}:walker"
    own = _own(auxiliary={"sero": {"oracle": oracle}})
    assert warmstart_oracle(own) == (oracle, "auxiliary.sero.oracle")
    check_needs(own)
    other = _own(
        auxiliary={"sero": {"oracle": "a:b"}, "dagger": {"oracle": "a:b"}},
        warmstart={"oracle": oracle},
    )
    assert warmstart_oracle(other) == (oracle, "warmstart.oracle")
    # With oracles by name, the planner is meant.
    assert warmstart_oracle(small.small_config(auxiliary__sero__oracle=oracle))[0] == "planner"


def test_where_nobody_can_demonstrate_the_field_is_named(tmp_path: Path) -> None:
    for auxiliary in ({}, {"auxiliary": {"gkd": {"fraction": 1.0, "weight": 0.1}}}):
        with pytest.raises(ConfigError, match=r"warmstart.oracle=planner: .*SplitLamp has no"):
            check_needs(_own(**auxiliary))
    check_needs(_own(), fresh=False)
    check_needs(_own(model={"path": str(tmp_path)}))
    with pytest.raises(ConfigError, match=r"or warmstart.given_model to false"):
        check_needs(_own(model={"path": str(tmp_path)}, warmstart={"given_model": True}))


def test_an_auxiliary_left_at_the_planner_is_named_with_its_field() -> None:
    config = _own(auxiliary={"sero": {}}, warmstart={"oracle": f"{WORLD}:walker"})
    with pytest.raises(ConfigError, match=r"auxiliary.sero.oracle=planner: unknown oracle for"):
        check_needs(config)
    config = _own(auxiliary={"opsd": {"context": "plan"}}, warmstart={"oracle": f"{WORLD}:walker"})
    with pytest.raises(ConfigError, match=r"auxiliary.opsd.context=plan needs a planner"):
        check_needs(config)
