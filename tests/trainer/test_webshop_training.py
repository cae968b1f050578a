"""Training, branches and evaluation in a generated shop.

The policy is too small and its training too short to shop well; what is checked is that every
part does its work there.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_envs.prompting import History, get_template
from agent_envs.webshop.catalogue import Shop, load_shop
from agent_envs.webshop.catalogue.goal_dicts import goal_to_dict
from tests.fakes import ByteTokenizer, ScriptedSampler
from tests.support import ROOT, run_python
from tests.trainer import small
from trainer.branches.branching import Brancher, grow
from trainer.branches.records import RootChoice
from trainer.config import Config, from_dict, load_config, resolve
from trainer.evaluation.evaluate import Incomparable, check_comparable, evaluate
from trainer.learning.base_advantages import turn_advantages
from trainer.learning.batch import training_rewards
from trainer.loop import TrainResult, train
from trainer.metrics import read_metrics
from trainer.models.tiny import load_policy
from trainer.rollouts.data import read_turns
from trainer.rollouts.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.runs.folder import RunFolder, make_student
from trainer.supervised.warmstart import demonstrate
from trainer.worlds.environments import WEBSHOP, TaskSet
from trainer.worlds.oracles import make_planner
from trainer.worlds.tasks import make_env, open_tasks, split_tasks

SHOP: dict[str, Any] = {
    "env.id": WEBSHOP,
    "env.webshop.generated.products": 64,
    "env.max_steps": 8,
    "prompt.history_length": 4,
    "rollout.tasks": 2,
    "rollout.rollouts": 3,
    "rollout.max_new_tokens": 48,
    **{key: value for key, value in small.BASE.items() if key.startswith("model.")},
    "model.vocab_size": 500,
    "model.tokenizer_games": 12,
    "warmstart.demonstrations": 12,
    "warmstart.steps": 20,
    "warmstart.batch": 8,
    "warmstart.lr": 1e-2,
    "auxiliary.sero.oracle": "goal",
    "optim.lr": 1e-3,
    "optim.warmup_steps": 0,
    "eval.splits": ["val", "test"],
    "eval.tasks": 4,
    "run.iterations": 2,
}


def shop_config(**overrides: Any) -> Config:
    return load_config({}, SHOP | {key.replace("__", "."): v for key, v in overrides.items()})


@pytest.fixture(scope="module")
def goals() -> TaskSet:
    return open_tasks(shop_config().env)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    folder = tmp_path_factory.mktemp("shop") / "run"
    return folder, train(shop_config(run__save_turns=True), folder)


# ------------------------------------------------------------------------------ a whole run


def test_a_run_branches_learns_and_evaluates(run: tuple[Path, TrainResult]) -> None:
    folder, result = run
    metrics = read_metrics(RunFolder(folder).metrics)
    assert [m["iteration"] for m in metrics] == [0, 1]
    assert sum(m["sero/roots"] for m in metrics) >= 3
    assert max(m["sero/gate_mean"] for m in metrics) > 0
    assert sum(m["sero/rows"] for m in metrics) >= 4, "no gate was open"
    for m in metrics:
        losses = [m["loss/policy"], m["loss/auxiliary"], m["grad/norm"]]
        assert all(math.isfinite(value) for value in losses if value is not None)
        assert m["score_mean"] is not None
    assert metrics[-1]["optimizer_steps"] > 0
    before, _ = load_policy(RunFolder(folder).initial)
    after, _ = load_policy(folder / "checkpoints" / "000002")
    assert not small.same(small.weights(before), small.weights(after))
    assert set(result.evaluations) == {"val", "test"}
    for split, evaluation in result.evaluations.items():
        ids = [task["task_id"] for task in evaluation["tasks"]]
        assert len(ids) == len(set(ids)) == 4
        assert evaluation["env_options"] == {
            "goal_source": "synthetic", "observation_mode": "text", "price_seed": 0,
            "show_attributes": False, "split_by": "goal",
        }, split  # fmt: skip
        assert evaluation["by_task_type"].keys() == {"synthetic"}
    report = json.loads((folder / "warmstart.json").read_text())
    assert report["demonstration_success"] > 0.5


def test_branches_are_recorded_and_follow_the_goal(run: tuple[Path, TrainResult]) -> None:
    folder, _ = run
    roots = read_metrics(RunFolder(folder).roots)
    won = [root for root in roots if root["success"] and root["gate"] > 0]
    assert won
    for root in won:
        assert root["actions"][-1] == "click[buy now]"
        assert root["task_type"] == "synthetic"
    assert any(action.startswith("search[") for root in won for action in root["actions"])


def test_turns_on_disk_give_the_same_rewards(run: tuple[Path, TrainResult]) -> None:
    folder, _ = run
    turns = read_turns(RunFolder(folder).turns(0))
    assert {turn.goal for turn in turns if turn.goal.startswith("Find me ")}
    assert all(turn.task_id.startswith("synthetic-") for turn in turns)
    assert math.isfinite(float(training_rewards(turns, 10.0, "env").sum()))


_WITHOUT_ORACLES = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "oracles" or name.startswith("trainer.auxiliary"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import json
import agent_envs
from pathlib import Path
from agent_envs.webshop.env import WebShopEnv
from trainer.evaluation.run import evaluate_run

def forbidden(*args, **kwargs):
    raise AssertionError("evaluation reached for what a deployed policy does not have")

agent_envs.snapshot = agent_envs.restore = WebShopEnv.privileged = forbidden
results = evaluate_run(Path(sys.argv[1]))
assert not any(name.split(".")[0] == "oracles" for name in sys.modules)
print(json.dumps({split: result["tasks"] for split, result in results.items()}))
"""


def test_held_out_evaluation_runs_where_oracles_cannot_be_imported(
    run: tuple[Path, TrainResult],
) -> None:
    folder, result = run
    tasks = json.loads(
        run_python(_WITHOUT_ORACLES, str(folder), timeout=400).strip().splitlines()[-1]
    )
    assert tasks == {split: e["tasks"] for split, e in result.evaluations.items()}


def test_the_example_trains(tmp_path: Path) -> None:
    """`examples/tiny_webshop.yaml` as it is, but for its size."""
    less = {
        key: value for key, value in SHOP.items() if key.split(".")[0] in ("model", "warmstart")
    }
    less |= {
        "run.iterations": 1, "run.threads": 1, "rollout.tasks": 2, "rollout.rollouts": 2,
        "env.max_steps": 4,
        "eval.tasks": 2, "eval.initial": False, "warmstart.steps": 3, "warmstart.text_steps": 2,
    }  # fmt: skip
    config = load_config(ROOT / "examples" / "tiny_webshop.yaml", less)
    assert (config.env.id, config.auxiliary.sero.oracle) == (WEBSHOP, "goal")
    result = train(config, tmp_path / "run")
    assert result.evaluations["val"]["n"] == 2
    assert result.metrics[0]["sero/roots"] == 2


# ------------------------------------------------------------------------------ by a script


def scripted_student(config: Config) -> Student:
    wide = config.replace(**{"prompt.max_prompt_tokens": 20_000})
    return make_student(wide, None, ByteTokenizer())


def first_come(prompt: str) -> str:
    """Buys the first product of a search for `shirt`, whatever was asked for."""
    listed = [line.split(" ")[0] for line in prompt.splitlines() if line.startswith("click[g")]
    if "search[<query>]" in prompt:
        command = "search[shirt]"
    else:
        command = listed[0] if listed else "click[buy now]"
    return f"<think></think><action>{command}</action>"


def scripted(config: Config, goals: TaskSet, tasks: list[str], script: Any) -> list[Trajectory]:
    return play(
        [Episode(task, f"g{i}", f"t{i}", 0) for i, task in enumerate(tasks)],
        [make_env(config.env, goals, config.env.split)],
        scripted_student(config),
        ScriptedSampler(ByteTokenizer(), script),
        PlaySettings(200, snapshots=True),
    )


def test_scores_are_reported_beside_strict_success(goals: TaskSet) -> None:
    config = shop_config()
    tasks = split_tasks(config.env, goals, "test")[:12]
    result = evaluate(
        tasks,
        [make_env(config.env, goals, "test") for _ in range(3)],
        scripted_student(config),
        ScriptedSampler(ByteTokenizer(), first_come),
        split="test",
        max_new_tokens=200,
    )
    scores = [task["score"] for task in result["tasks"]]
    assert any(0 < score < 1 for score in scores)
    assert result["score"] == pytest.approx(sum(scores) / 12)
    assert result["wins"] == sum(score == 1.0 for score in scores) < 12
    assert [t["success"] for t in result["tasks"]] == [score == 1.0 for score in scores]
    ends = {"success": result["wins"], "purchase": 12 - result["wins"]}
    assert result["stop_reasons"] == {reason: n for reason, n in ends.items() if n}
    assert result["by_task_type"]["synthetic"]["score"] == pytest.approx(result["score"])
    other = {**result, "env_options": {**result["env_options"], "show_attributes": True}}
    with pytest.raises(Incomparable, match="env_options"):
        check_comparable(result, other)


def graded(config: Config, goals: TaskSet) -> Trajectory:
    """A purchase that is worth something, and not everything."""
    tasks = list(split_tasks(config.env, goals, "train")[:20])
    found = scripted(config, goals, tasks, first_come)
    return next(t for t in found if 0 < t.score < 1)


def test_rewards_are_strict_unless_the_env_pays(goals: TaskSet) -> None:
    config = shop_config()
    trajectory = graded(config, goals)
    assert trajectory.stop_reason == "purchase"
    turns = trajectory.turns
    assert training_rewards(turns, 10.0).tolist() == [0.0] * len(turns)
    paid = training_rewards(turns, 10.0, "env").tolist()
    assert paid == [0.0] * (len(turns) - 1) + [10.0 * trajectory.score]
    pair = [*turns, *(small_turn(t) for t in turns)]
    strict, scored = shop_config(), shop_config(rollout__reward="env")
    assert turn_advantages(pair, strict.objective, strict.rollout).abs().max() == 0
    assert turn_advantages(pair, scored.objective, scored.rollout)[0] > 0.5


def small_turn(turn: Any) -> Any:
    """The same turn in a second trajectory of the group, unpaid."""
    return replace(turn, tid="other", reward=0.0)


@pytest.mark.parametrize("target", ["success", "score"])
def test_the_gate_compares_successes_or_scores(goals: TaskSet, target: str) -> None:
    config = shop_config(auxiliary__sero__target=target)
    trajectory = graded(config, goals)
    brancher = Brancher(
        config,
        config.auxiliary.sero,
        make_env(config.env, goals, "train"),
        scripted_student(config),
    )
    root = grow(
        RootChoice(0, 0), trajectory, brancher.env, brancher.oracle, brancher.student,
        config.auxiliary.sero, 200,
    )  # fmt: skip
    assert root.valid
    assert root.branch.success
    assert root.G_O == 1.0
    assert root.G_pi == (trajectory.score if target == "score" else 0.0)
    assert root.gate == pytest.approx(1.0 - root.G_pi)


def test_a_branch_trains_the_words_of_its_search(goals: TaskSet) -> None:
    config = shop_config()
    trajectory = graded(config, goals)
    student = scripted_student(config)
    brancher = Brancher(
        config, config.auxiliary.sero, make_env(config.env, goals, "train"), student
    )
    root = grow(
        RootChoice(0, 0),
        trajectory,
        brancher.env,
        brancher.oracle,
        student,
        config.auxiliary.sero,
        200,
    )
    first, action = root.rows[0], root.branch.steps[0].action
    assert action.startswith("search[")
    kept = [i for i, keep in zip(first.ids, first.loss_mask, strict=True) if keep]
    assert ByteTokenizer().decode(kept) == f"{action}</action>"
    inner = [
        i for i, keep in zip(root.z_rows[0].ids, root.z_rows[0].loss_mask, strict=True) if keep
    ]
    assert ByteTokenizer().decode(inner) == action
    # The first prompt is the rollout's own, id for id.
    prompt = first.ids[: first.ids.index(ord("<"), len(trajectory.turns[0].prompt_ids) - 1)]
    assert prompt == trajectory.turns[0].prompt_ids


def test_demonstrations_are_the_planners_own_and_reproducible(goals: TaskSet) -> None:
    config = shop_config(env__max_steps=15)
    env = make_env(config.env, goals, "train")
    planner = make_planner(None, WEBSHOP)
    tasks = split_tasks(config.env, goals, "train")[:20]
    first = [
        demonstrate(env, task, config.warmstart, i, planner=planner) for i, task in enumerate(tasks)
    ]
    again = [demonstrate(env, task, config.warmstart, i) for i, task in enumerate(tasks)]
    assert first == again
    assert sum(d.success for d in first) > 10
    assert sum(d.injected for d in first) > 0
    for demonstration in first:
        view, command = demonstration.decisions[0]
        assert command.startswith("search[") or view.step > 0
        for view, command in demonstration.decisions:
            assert command in view.admissible or command.startswith("search[")


# ------------------------------------------------------------------------------ nothing leaks


def test_prompts_do_not_depend_on_what_only_the_goal_knows() -> None:
    """Two goals of one sentence: other product, attributes, options, price limit, query."""
    shop = load_shop("generated:small?n=64")
    plain = goal_to_dict(shop.goals("synthetic")[0])
    other = {
        **plain, "asin": "G000000060", "attributes": ["nothing like it"], "price_upper": 1.0,
        "goal_options": {"color": "none of these"}, "query": "other", "name": "Other",
        "category": "grocery", "product_category": "Other",
    }  # fmt: skip
    for name in ("field", "compact"):
        prompts = [_prompts(shop, goal, name) for goal in (plain, other)]
        assert prompts[0] == prompts[1]
        assert len(prompts[0]) == 4


def _prompts(shop: Shop, goal: Any, name: str) -> list[Any]:
    env = gymnasium.make(WEBSHOP, data=shop, split=None)
    template = get_template(name, pages="webshop", history_length=4)
    observation, info = env.reset(options={"goal": goal})
    history, shown = History(), []
    for command in ("search[shirt]", "click[next >]", "click[< prev]", ""):
        view = history.view(
            info["goal"], observation, info["admissible_actions"], info["action_templates"]
        )
        shown.append(template.render(view))
        following, _, _, _, info = env.step(command)
        history = history.append(observation, command, info["command_valid"])
        observation = following
    return shown


def test_a_config_of_a_shop_round_trips() -> None:
    config = shop_config(env__webshop__goal_source="human", env__webshop__split_by="product")
    assert from_dict(resolve(config)) == config
    goals = open_tasks(config.env)
    assert {goals.meta(task).task_type for task in goals.task_ids("train")[:3]} == {"human"}
    assert goals.manifest_hash != open_tasks(shop_config().env).manifest_hash
