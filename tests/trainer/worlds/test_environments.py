"""What differs between environments is one entry each; a foreign one joins with its own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import MissingData
from oracles.alfworld_explorer import ALFWorldExplorer
from oracles.alfworld_planner import ALFWorldPlanner
from oracles.base import PlanStatus
from oracles.webshop_goal import WebShopGoalOracle
from tests.trainer import lamp_world, small
from trainer.config import Config, ConfigError, config_hash, from_dict, load_config, resolve
from trainer.loop import train
from trainer.runs.folder import RunFolder, template_of
from trainer.worlds.environments import ALFWORLD, WEBSHOP, Environment, register_environment
from trainer.worlds.oracles import check_oracle, check_planner, make_oracle, make_planner
from trainer.worlds.tasks import check_splits, make_env, open_tasks, split_tasks

LAMP: dict[str, Any] = {
    **{key: value for key, value in small.BASE.items() if not key.startswith(("env.", "eval."))},
    "env.id": lamp_world.ENV_ID,
    "env.max_steps": 8,
    "eval.initial": False,
    "run.iterations": 2,
}


def lamp_config(**overrides: Any) -> Config:
    return load_config({}, LAMP | {key.replace("__", "."): v for key, v in overrides.items()})


def test_a_foreign_environment_trains_branches_and_is_evaluated(tmp_path: Path) -> None:
    config = lamp_config(auxiliary__sero={})
    result = train(config, tmp_path / "run")
    assert [m["iteration"] for m in result.metrics] == [0, 1]
    assert sum(m["sero/roots"] for m in result.metrics) > 0
    assert sum(m["sero/rows"] for m in result.metrics) > 0, "no gate was open"
    evaluation = result.evaluations["dark"]
    assert [t["task_id"] for t in evaluation["tasks"]] == list(
        lamp_world.LampTasks().task_ids("dark")
    )
    assert evaluation["env_options"] == {"n_tasks": 12}
    _, info = RunFolder(tmp_path / "run").read_info()
    assert info["manifest_hash"] == "0" * 64


def test_an_id_joins_once() -> None:
    entry = Environment(lambda c: lamp_world.LampTasks(), lambda c, t, s: {}, ())
    with pytest.raises(ConfigError, match="already known"):
        register_environment(ALFWORLD, entry)
    with pytest.raises(ConfigError, match=r"Did you mean 'SeroWebShop-v0'.*SeroALFWorld-v0"):
        from_dict({"env": {"id": "SeroWebshop-v0"}})


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"id": ALFWORLD, "webshop": {"goal_source": "human"}}, "env.webshop"),
        ({"id": WEBSHOP, "generated": {"train": 7}}, "env.generated"),
        ({"id": WEBSHOP, "task_types": ["human"]}, "env.task_types"),
        ({"id": lamp_world.ENV_ID, "data": None}, "env.data"),
    ],
)
def test_what_an_environment_would_not_read_is_refused(data: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} is set, but {data['id']} does not read it"):
        from_dict({"env": data})


@pytest.mark.parametrize(
    ("webshop", "message"),
    [
        ({"goal_sorce": "human"}, r"'env\.webshop\.goal_sorce'.*'env\.webshop\.goal_source'"),
        ({"goal_source": "robot"}, r"env\.webshop\.goal_source='robot' must be one of synthetic"),
        ({"split_by": "asin"}, r"env\.webshop\.split_by='asin' must be one of goal, product"),
        ({"generated": {"products": 0}}, r"env\.webshop\.generated\.products=0"),
        ({"generated": {"preset": "tiny"}}, r"env\.webshop\.generated\.preset='tiny'"),
        ({"price_seed": 1.5}, r"env\.webshop\.price_seed=1\.5"),
        ({"observation_mode": "html"}, r"observation_mode='html' must be one of text, text_rich"),
    ],
)
def test_nonsense_about_a_shop_is_refused_by_name(webshop: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict({"env": {"id": WEBSHOP, "webshop": webshop}})


def test_held_out_splits_follow_the_environment_unless_named() -> None:
    assert from_dict({}).eval.splits == ("valid_seen", "valid_unseen")
    assert from_dict({"env": {"id": WEBSHOP}}).eval.splits == ("val",)
    assert from_dict({"env": {"id": WEBSHOP}, "eval": {"splits": []}}).eval.splits == ()
    chosen = from_dict({"env": {"id": WEBSHOP}, "eval": {"splits": ["val", "test"]}})
    assert chosen.eval.splits == ("val", "test")
    assert from_dict(resolve(chosen)) == chosen
    assert config_hash(chosen) != config_hash(from_dict({"env": {"id": WEBSHOP}}))


def test_oracles_by_name_belong_to_an_environment() -> None:
    for name in ("planner", "goal"):
        oracle = make_oracle(name, 0.5, WEBSHOP)
        assert isinstance(oracle, WebShopGoalOracle)
        assert oracle.budget_s == 0.5
    planner = make_planner(None, ALFWORLD)
    assert isinstance(planner, ALFWorldPlanner)
    assert planner.budget_s is None
    with pytest.raises(ConfigError, match="'goal' for SeroALFWorld-v0: give planner, explorer"):
        make_oracle("goal", None, ALFWORLD)
    assert isinstance(make_oracle("explorer", None, ALFWORLD), ALFWorldExplorer)
    assert from_dict({"auxiliary": {"sero": {"oracle": "explorer"}}})
    with pytest.raises(ConfigError, match=r"oracle='goal' must be 'planner', 'explorer', .* or"):
        from_dict({"auxiliary": {"sero": {"oracle": "goal"}}})
    with pytest.raises(
        ConfigError, match=r"'explorer' must be 'planner', 'goal', 'choice', 'rule' or"
    ):
        from_dict({"env": {"id": WEBSHOP}, "auxiliary": {"sero": {"oracle": "explorer"}}})
    assert from_dict({"env": {"id": WEBSHOP}, "auxiliary": {"sero": {"oracle": "goal"}}})


def test_an_oracle_is_refused_with_the_field_that_names_it() -> None:
    field = "auxiliary.sero.oracle"
    for name, told in (
        ("goal", f"{field}=goal: unknown oracle for SeroALFWorld-v0: give planner, explorer"),
        ("no.such:oracle", f"{field}=no.such:oracle: the module no.such cannot be imported"),
        ("json:oracle", f"{field}=json:oracle: the module json has no 'oracle'"),
        ("math:pi", f"{field}=math:pi is of type float: expected a function or class"),
    ):
        with pytest.raises(ConfigError, match=re.escape(told)):
            make_oracle(name, None, ALFWORLD, field=field)
        with pytest.raises(ConfigError, match=re.escape(told)):
            check_oracle(name, ALFWORLD, field)
    check_oracle("planner", ALFWORLD, field)
    check_planner(ALFWORLD, "auxiliary.opsd.context=plan")


@pytest.mark.parametrize(
    ("env_id", "variable"), [(ALFWORLD, "SERO_ALFWORLD_DATA"), (WEBSHOP, "SERO_WEBSHOP_DATA")]
)
def test_data_that_a_config_names_in_vain_are_named_with_its_option(
    env_id: str, variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = from_dict({"env": {"id": env_id, "data": str(tmp_path / "none")}}).env
    told = re.escape(f"Here: --env.data PATH, or --env.data null with ${variable}.")
    with pytest.raises(MissingData, match=told):
        open_tasks(config)
    with pytest.raises(MissingData, match=r"Here: --data PATH\.$"):
        open_tasks(config, "--data")
    # Where the variable is what counts, its own message is enough.
    monkeypatch.setenv(variable, str(tmp_path / "none"))
    with pytest.raises(MissingData) as caught:
        open_tasks(replace(config, data=None))
    assert "Here:" not in str(caught.value)


def test_an_oracle_that_cannot_plan_is_no_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(lamp_world.Walker, "plan")
    assert make_oracle("walker", None, lamp_world.ENV_ID).privileged
    with pytest.raises(ConfigError, match="cannot plan ahead"):
        make_planner(None, lamp_world.ENV_ID)


def test_an_environment_without_oracles_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.worlds import environments

    bare = Environment(lambda c: lamp_world.LampTasks(), lambda c, t, s: {}, ("dark",))
    monkeypatch.setitem(environments._ENVIRONMENTS, "Bare-v0", bare)
    with pytest.raises(ConfigError, match="'planner' for Bare-v0: it has none by name"):
        make_oracle("planner", None, "Bare-v0")


def test_the_planner_of_an_environment_knows_it() -> None:
    config = lamp_config()
    env = make_env(config.env, open_tasks(config.env), "train")
    env.reset(seed=0, options={"task_id": "house3/lamp3"})
    planner = make_planner(None, config.env.id)
    unwrapped: Any = env.unwrapped
    plan = planner.plan(unwrapped.privileged(), 8, None)
    assert plan.status is PlanStatus.FOUND
    *_, info = [env.step(action) for action in plan.actions][-1]
    assert info["success"]


def test_templates_follow_the_environment() -> None:
    assert template_of(from_dict({})).hash.startswith("2905a445")
    shop = template_of(from_dict({"env": {"id": WEBSHOP}}))
    assert (shop.name, shop.parse("no tags, 30 characters of words").command) == (
        "compact",
        "30 characters of words"[-20:],
    )
    assert template_of(lamp_config()).hash == template_of(from_dict({})).hash


def test_a_split_without_tasks_is_named_with_its_field() -> None:
    config = lamp_config(eval__splits=["bright"])
    with pytest.raises(MissingData, match=r"eval\.splits names 'bright'.*splits: dark, train"):
        check_splits(config, open_tasks(config.env))
    with pytest.raises(MissingData, match=r"the lamps of the tests have none in split 'bright'"):
        split_tasks(config.env, open_tasks(config.env), "bright")


def test_the_trainer_names_no_environment_outside_its_entries() -> None:
    """Special cases scattered about are what the table is there to prevent."""
    root = Path(__file__).parents[3] / "trainer"
    own = {"worlds/environments.py", "demo/recipe.py"}
    apart = {"bench", "cli", "oracle_bench", "vectors", "baselines"}
    files = [
        path
        for path in root.rglob("*.py")
        if path.relative_to(root).as_posix() not in own
        and path.relative_to(root).parts[0] not in apart
    ]
    assert len(files) > 100
    for path in files:
        text = path.read_text(encoding="utf-8")
        for word in ("agent_envs.alfworld", "agent_envs.webshop", "alfworld_planner", "webshop_g"):
            assert word not in text, (path.name, word)
