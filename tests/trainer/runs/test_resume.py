"""Resuming: a continuation, or an error that says what to do."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tests.support import full_count
from tests.trainer import small
from tests.trainer.short_runs import run_config, sampled, trained, untimed
from tests.trainer.two_worlds import cloned_policy, short_config
from trainer.config.objective import CRITIC, ObjectiveConfig
from trainer.loop import train
from trainer.metrics import MetricsError, read_metrics
from trainer.runs.checkpoint import CheckpointError, load_checkpoint
from trainer.runs.folder import RunFolder, RunFolderError
from trainer.runs.resume import set_aside
from trainer.runs.status import best_iteration, read_status
from trainer.worlds.environments import ALFWORLD


def test_o25_resume_is_a_continuation(tmp_path: Path) -> None:
    config = run_config(
        tmp_path,
        run__iterations=6,
        auxiliary__sero={},
        objective__kl_coef=0.01,
        optim__warmup_steps=4,
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=3)
    # What a killed run leaves after its last checkpoint is dropped by the resume.
    with (parts / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"iteration": 3, "stale": True}) + '\n{"torn')
    resumed = train(config, parts, resume=True)
    assert resumed.iterations == 6
    assert len(resumed.metrics) == 3
    assert small.same(trained(whole), trained(parts))
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    assert sampled(whole) == sampled(parts)
    assert (whole / "roots.jsonl").read_text() == (parts / "roots.jsonl").read_text()
    left, right = (load_checkpoint(p / "checkpoints/000006") for p in (whole, parts))
    assert left.state == right.state
    assert left.state["optimizer_steps"] > 6
    a, b = ((p / "optimizer.safetensors").read_bytes() for p in (left.path, right.path))
    assert a == b
    result = json.loads((whole / "eval/000006_valid_seen.json").read_text())
    assert result == json.loads((parts / "eval/000006_valid_seen.json").read_text())


def test_o25_resuming_without_state_is_an_error(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=1)
    train(config, tmp_path / "run")
    more = config.replace(**{"run.iterations": 2})
    checkpoint = tmp_path / "run/checkpoints/000001"
    with pytest.raises(RunFolderError, match="already holds a run"):
        train(more, tmp_path / "run")
    with pytest.raises(RunFolderError, match="another config"):
        train(more.replace(**{"optim.lr": 1.0}), tmp_path / "run", resume=True)
    with pytest.raises(RunFolderError, match=r"it holds no run\.json"):
        train(more, tmp_path / "elsewhere", resume=True)
    state = checkpoint / "state.json"
    state.write_text(state.read_text().replace('"seed"', '"sead"'))
    with pytest.raises(CheckpointError, match=r"state\.json"):
        train(more, tmp_path / "run", resume=True)
    state.unlink()
    with pytest.raises(CheckpointError, match=r"state\.json is missing"):
        train(more, tmp_path / "run", resume=True)


def test_o25_a_resume_makes_the_evaluation_that_a_killed_run_did_not(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=2, run__checkpoint_every=1, eval__every=1)
    straight = train(config, tmp_path / "run")
    file = tmp_path / "run/eval/000002_valid_seen.json"
    expected = json.loads(file.read_text())
    file.unlink()  # killed after the last checkpoint
    resumed = train(config, tmp_path / "run", resume=True)
    assert json.loads(file.read_text()) == expected
    assert resumed.evaluations == straight.evaluations == {"valid_seen": expected}
    stamp = file.stat().st_mtime_ns
    again = train(config, tmp_path / "run", resume=True)
    assert (again.iterations, again.evaluations) == (2, straight.evaluations)
    assert file.stat().st_mtime_ns == stamp, "what is there is not made again"


@pytest.mark.parametrize("key", ["manifest_hash", "prompt_hash"])
def test_o25_resuming_on_other_games_or_prompts_is_an_error(tmp_path: Path, key: str) -> None:
    """With `env.data: null` the games follow from the environment variables of the moment."""
    config = run_config(tmp_path, run__iterations=1)
    train(config, tmp_path / "run")
    info = tmp_path / "run/run.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {key: "of another"}))
    with pytest.raises(RunFolderError, match=f"{key} 'of another'"):
        train(config.replace(**{"run.iterations": 2}), tmp_path / "run", resume=True)


def test_o25_a_corrupt_checkpoint_names_an_intact_one_and_the_run_goes_on_there(
    tmp_path: Path,
) -> None:
    config = run_config(
        tmp_path, run__iterations=4, run__checkpoint_every=1, eval__every=2, auxiliary__sero={}
    )
    folder = tmp_path / "run"
    straight = train(config, folder)
    weights, kept = trained(folder), (folder / "roots.jsonl").read_text()
    for number in (3, 4):
        file = folder / f"checkpoints/{number:06d}/model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"\xaa")
    with pytest.raises(CheckpointError, match=r"000004/model.*corrupt.*--resume-from 2`"):
        train(config, folder, resume=True)
    with pytest.raises(CheckpointError, match=r"000003/model.*corrupt.*--resume-from 2`"):
        train(config, folder, resume_from=3)
    with pytest.raises(CheckpointError, match=r"no checkpoint of iteration 7\. It has: 4, 3, 2, 1"):
        train(config, folder, resume_from=7)
    assert not (folder / "aside").exists(), "nothing moves before everything is checked"
    logged = (folder / "metrics.jsonl").read_text().splitlines()

    resumed = train(config, folder, resume_from=2)
    assert [line["iteration"] for line in resumed.metrics] == [2, 3]
    assert untimed(read_metrics(folder / "metrics.jsonl")) == untimed(straight.metrics)
    assert (folder / "roots.jsonl").read_text() == kept
    assert small.same(trained(folder), weights)
    aside = folder / "aside/000002"
    assert (aside / "metrics.jsonl").read_text().splitlines() == logged[2:]
    assert kept.endswith((aside / "roots.jsonl").read_text())
    moved = {path.relative_to(aside).as_posix() for path in aside.glob("*/*")}
    assert moved == {
        "checkpoints/000003", "checkpoints/000004", "eval/000004_valid_seen.json",
        "turns/000002.parquet", "turns/000003.parquet",
    }  # fmt: skip


def test_nothing_before_a_corrupt_first_checkpoint_is_said(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=1)
    train(config, tmp_path / "run")
    (tmp_path / "run/checkpoints/000001/state.json").write_text("{}")
    more = config.replace(**{"run.iterations": 2})
    with pytest.raises(CheckpointError, match="None before it is intact"):
        train(more, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (b'{"iteration": 0}\n\xff\xfe\n', "is no text"),
        (b'{"itera\n{"iteration": 1}\n', "line 1: not JSON"),
        (b'[]\n{"iteration": 1}\n', "line 1: no JSON object"),
        (b'{"iter": 0}\n', "no integer 'iteration'"),
    ],
)
def test_nothing_is_set_aside_where_a_log_cannot_be_read(
    tmp_path: Path, damage: bytes, message: str
) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"iteration": 0}\n{"iteration": 1}\n')
    folder.roots.write_bytes(damage)
    with pytest.raises(MetricsError, match=message):
        set_aside(folder, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "roots.jsonl"]
    assert folder.roots.read_bytes() == damage


def test_setting_aside_loses_nothing_and_takes_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    lines = [json.dumps({"iteration": i, "x": "é"}) + "\n" for i in (0, 1, 1, 2)]
    folder.roots.write_text("".join(lines) + '{"iteration": 0, "to')
    for name in (
        "turns/000000.parquet", "turns/000001.parquet", "eval/000001_a.json", "eval/000002_a.json",
        "eval/later/000002_a.json", "eval/notes.txt", "checkpoints/.000002.x/part", "report.html",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    aside = set_aside(folder, 1)
    assert aside == tmp_path / "aside/000001"
    assert folder.roots.read_text() == lines[0]
    assert (aside / "roots.jsonl").read_text() == "".join(lines[1:]) + '{"iteration": 0, "to'
    moved = ["turns/000001.parquet", "eval/000002_a.json", "eval/later/000002_a.json"]
    assert [(aside / name).read_text() for name in moved] == moved
    assert not any((tmp_path / name).exists() for name in moved)
    left = ["turns/000000.parquet", "eval/000001_a.json", "eval/notes.txt", "report.html"]
    assert all((tmp_path / name).exists() for name in left)
    # A second time there is nothing; what comes later never overwrites what was set aside.
    assert set_aside(folder, 1) is None
    (tmp_path / "turns/000005.parquet").write_text("new")
    assert set_aside(folder, 1) == tmp_path / "aside/000001-2"


BASES = (
    "dapo", "turn_gae", "gigpo",  # rounds of sampling, a critic, groups of states
    "grpo", "dr_grpo", "gspo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "hgpo", "graphgpo",
    "ppo", "ppo_trajectory", "none",
)  # fmt: skip


def test_every_base_objective_is_resumed() -> None:
    assert set(BASES) == set(get_args(get_type_hints(ObjectiveConfig)["name"]))


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cloned_policy(ALFWORLD, tmp_path_factory.mktemp("policies"))


@pytest.mark.parametrize("name", BASES[: full_count(3, len(BASES))])
def test_o25_six_iterations_are_three_and_three_with_every_base_objective(
    name: str, cloned: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "model.path": str(cloned),
        "objective.name": name,
        "auxiliary.sero.weight": 0.1,
        "run.iterations": 6,
        "run.save_turns": True,
        "rollout.rollouts": 3,
        "optim.warmup_steps": 4,
        "eval.splits": [],
    }
    if name == "dapo":
        settings["objective.dynamic_rounds"] = 2
    if name in CRITIC:
        settings["objective.critic.lr"] = 1e-3
    config = short_config(ALFWORLD, **settings)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(config, whole)
    train(config, parts, until=3)
    train(config, parts, resume=True)
    assert straight.metrics[-1]["optimizer_steps"] > 0
    assert untimed(read_metrics(parts / "metrics.jsonl")) == untimed(straight.metrics)
    assert small.same(trained(whole), trained(parts))
    assert sampled(whole) == sampled(parts)
    assert (whole / "roots.jsonl").read_text() == (parts / "roots.jsonl").read_text()
    left, right = (load_checkpoint(p / "checkpoints/000006") for p in (whole, parts))
    assert left.state == right.state
    files = sorted(path.name for path in left.path.glob("*.safetensors"))
    assert ("critic.safetensors" in files) == config.objective.has_critic
    for file in files:
        assert (left.path / file).read_bytes() == (right.path / file).read_bytes(), file


def test_o25_every_file_of_a_runs_checkpoint_is_named_where_it_is_damaged(tmp_path: Path) -> None:
    """A critic's and the tokenizer's as well."""
    config = run_config(tmp_path, run__iterations=1, objective__name="ppo", eval__splits=[])
    train(config, tmp_path / "run")
    folder = tmp_path / "run/checkpoints/000001"
    files = sorted(path for path in folder.iterdir())
    assert {"critic.safetensors", "tokenizer.json", "state.json"} <= {file.name for file in files}
    more = config.replace(**{"run.iterations": 2})
    for file in files:
        data = file.read_bytes()
        middle = len(data) // 2
        for damaged in (
            data[:middle],
            data[:middle] + bytes((data[middle] ^ 1,)) + data[middle + 1 :],
        ):
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=re.escape(file.name)):
                train(more, tmp_path / "run", resume=True)
        file.write_bytes(data)
    assert train(more, tmp_path / "run", resume=True).iterations == 2


@pytest.mark.parametrize("damage", ["{", "", "{}", "3", None])
def test_a_damaged_evaluation_of_the_checkpoint_is_made_anew(
    tmp_path: Path, damage: str | None
) -> None:
    config = run_config(tmp_path, eval__every=1, run__keep="best+last")
    first = train(config, tmp_path / "run")
    file = RunFolder(tmp_path / "run").evaluation(2, "valid_seen")
    whole = file.read_text()
    file.unlink()
    if damage is not None:
        file.write_text(damage)
    again = train(config, tmp_path / "run", resume=True)
    assert file.read_text() == whole
    assert again.evaluations == first.evaluations


def test_o25_a_renamed_checkpoint_is_not_taken_for_a_later_one(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__checkpoint_every=1)
    train(config, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "000002").rename(checkpoints / "000007")
    more = config.replace(**{"run.iterations": 3})
    with pytest.raises(CheckpointError, match=r"000007 holds the checkpoint after iteration 2"):
        train(more, tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match=r"000007 holds"):
        trained(tmp_path / "run")
    (checkpoints / "000007").rename(checkpoints / "000002")
    assert train(more, tmp_path / "run", resume=True).iterations == 3


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=2, eval__initial=True, auxiliary__sero={})
    straight = train(config, tmp_path / "whole")
    train(config, tmp_path / "run", until=1)
    shutil.rmtree(tmp_path / "run/checkpoints")
    resumed = train(config, tmp_path / "run", resume=True)
    assert untimed(resumed.metrics) == untimed(straight.metrics)
    assert small.same(trained(tmp_path / "whole"), trained(tmp_path / "run"))
    assert (tmp_path / "run/roots.jsonl").read_text() == (
        tmp_path / "whole/roots.jsonl"
    ).read_text()
    with pytest.raises(CheckpointError, match="has no checkpoint of iteration 7"):
        train(config, tmp_path / "run", resume_from=7)


def test_a_lengthened_run_says_so_in_its_folder(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=1, run__checkpoint_every=1)
    train(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    longer = config.replace(**{"run.iterations": 3, "run.threads": 2})
    train(longer, tmp_path / "run", resume=True, until=2)  # and broken off

    # The folder stands for its run.json: it goes on to the length that the run was given last.
    assert folder.read_config() == config.replace(**{"run.iterations": 3})
    result = train(folder.read_config(), tmp_path / "run", resume=True)
    assert (result.iterations, result.stop) == (3, "finished")
    status = read_status(folder)
    assert status is not None
    assert best_iteration(folder) == status["best"]["iteration"]


def test_a_run_is_never_shorter_than_it_is(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=2, run__checkpoint_every=1, eval__every=0)
    train(config, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    best = best_iteration(folder)
    shorter = config.replace(**{"run.iterations": 1})
    result = train(shorter, tmp_path / "run", resume=True)
    assert (result.iterations, result.metrics) == (2, [])
    assert folder.read_config() == config, "its last evaluation is still one that it asks for"
    assert best_iteration(folder) == best == 2


def test_how_many_tokens_are_sampled_at_a_time_may_change(tmp_path: Path) -> None:
    config = run_config(tmp_path, run__iterations=1, run__checkpoint_every=1)
    train(config, tmp_path / "run")
    more = config.replace(**{"run.iterations": 2, "sampler.max_batch_tokens": 131072})
    assert train(more, tmp_path / "run", resume=True).iterations == 2
