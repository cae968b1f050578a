"""ReAct: the examples, the transcript, and how it plays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_envs.errors import DataError
from agent_envs.prompting import PromptView
from tests.fakes import ByteTokenizer
from tests.support import full_count
from tests.trainer import small
from tests.trainer.baselines.script import ScriptSampler, answer, serving
from trainer.baselines import make_exemplars
from trainer.baselines.endpoint import EndpointModel, EndpointSettings
from trainer.baselines.episodes import Situation, TextEpisode, TextSettings, Told, play_text
from trainer.baselines.models import PolicyModel
from trainer.baselines.plain import PlainAgent
from trainer.baselines.react import (
    ReActAgent,
    check_exemplars,
    exemplar_text,
    load_exemplars,
    type_of_goal,
)
from trainer.config import Config, load_config
from trainer.evaluation.evaluate import evaluate
from trainer.evaluation.run import Plan, evaluate_subject
from trainer.evaluation.subjects import Subject
from trainer.generation.base import Rounds
from trainer.rollouts.rollout import Student
from trainer.runs.folder import make_student
from trainer.worlds.tasks import make_env, open_tasks, split_tasks

KINDS = {
    "look_at_obj_in_light", "pick_and_place_simple", "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep", "pick_heat_then_place_in_recep", "pick_two_obj_and_place",
}  # fmt: skip


def config(**more: Any) -> Config:
    return small.small_config(
        env__max_steps=20, prompt__template="field", prompt__max_prompt_tokens=60_000, **more
    )


def student() -> Student:
    return make_student(config(), None, ByteTokenizer())


def tasks(n: int) -> list[str]:
    return list(split_tasks(config().env, small.games(), "valid_seen")[:n])


def envs(n: int) -> list[Any]:
    return [make_env(config().env, small.games(), "valid_seen") for _ in range(n)]


def outcomes(played: Any) -> list[Any]:
    return [run.outcome for run in played]


# ------------------------------------------------------------------------------ examples


def test_two_examples_a_type_and_one_for_the_shop() -> None:
    kinds = [example["task_type"] for example in load_exemplars("alfworld")]
    assert {kind: kinds.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, 2)
    assert len(load_exemplars("webshop")) == 1
    for world in ("alfworld", "webshop"):
        for example in load_exemplars(world):
            assert sum(step["thought"] is not None for step in example["steps"]) >= 3
    with pytest.raises(DataError, match="'chess'"):
        load_exemplars("chess")


@pytest.mark.parametrize(
    ("world", "overrides"),
    [("alfworld", make_exemplars._HOUSES), ("webshop", make_exemplars._SHOP)],
)
def test_the_examples_are_episodes_of_training_tasks(world: str, overrides: dict[str, Any]) -> None:
    """Every command is played again and answered as the example says; the last one solves it."""
    env_config = load_config({}, overrides).env
    task_set = open_tasks(env_config)
    env = make_env(env_config, task_set, "train")
    train = set(split_tasks(env_config, task_set, "train"))
    for example in load_exemplars(world):
        assert example["task_id"] in train
        observation, info = env.reset(options={"task_id": example["task_id"]})
        assert (observation, info["goal"]) == (example["observation"], example["goal"])
        for step in example["steps"]:
            observation, _, _, _, info = env.step(step["command"])
            assert observation.startswith(step["observation"]), step
            assert info["command_valid"]
        assert info["success"]
        assert info["score"] == 1.0


def test_the_files_are_what_the_script_writes() -> None:
    for world, made in (
        ("alfworld", make_exemplars.household_examples()),
        ("webshop", make_exemplars.shop_example()),
    ):
        assert json.loads(json.dumps(made["exemplars"])) == load_exemplars(world)


def test_an_evaluation_on_the_tasks_of_the_examples_is_refused() -> None:
    shown = load_exemplars("alfworld")[3]["task_id"]
    with pytest.raises(DataError, match="worked examples"):
        check_exemplars("alfworld", ["other", shown], "any")
    check_exemplars("alfworld", tasks(10), small.games().manifest_hash)
    goal = load_exemplars("webshop")[0]["task_id"]
    check_exemplars("webshop", [goal], "of another shop")
    shop = open_tasks(load_config({}, make_exemplars._SHOP).env)
    with pytest.raises(DataError, match="worked examples"):
        check_exemplars("webshop", [goal], shop.manifest_hash)


def test_the_type_is_read_off_the_sentence() -> None:
    spec = {"env.generated.train": full_count(60, 600), "env.generated.preset": "standard"}
    env_config = load_config({}, spec).env
    games = open_tasks(env_config)
    env = make_env(env_config, games, "train")
    kinds = set()
    for task in split_tasks(env_config, games, "train"):
        _, info = env.reset(options={"task_id": task})
        assert type_of_goal(info["goal"]) == info["task_type"], info["goal"]
        kinds.add(info["task_type"])
    assert kinds == KINDS
    assert type_of_goal("cool some mug and put it in microwave.") == "pick_cool_then_place_in_recep"


# ------------------------------------------------------------------------------ prompts


def _situation(goal: str, told: tuple[Told, ...] = (), notes: tuple[str, ...] = ()) -> Situation:
    view = PromptView(goal, "You see a pen.", ("look", "help", "take pen 1 from desk 1"))
    return Situation(view, f"A room.\n\nYour task is to: {goal}", told, notes)


def test_the_prompt_has_the_examples_of_its_type_and_grows() -> None:
    agent = ReActAgent("alfworld")
    told = (Told("> think: hm\n> go to desk 1", "You arrive."), Told("> look", "You see a pen."))
    messages: Any = agent.prompt(_situation("put a hot egg in fridge.", told))
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    text = messages[0]["content"]
    for example in load_exemplars("alfworld"):
        same = example["task_type"] == "pick_heat_then_place_in_recep"
        assert (exemplar_text(example) in text) == same
    assert text.endswith("A room.\n\nYour task is to: put a hot egg in fridge.")
    assert [m["content"] for m in messages[1:]] == [
        "> think: hm\n> go to desk 1", "You arrive.", "> look", "You see a pen.",
    ]  # fmt: skip
    assert "You have tried" not in text
    assert agent.prompt(_situation("put a hot egg in fridge."))[0] == messages[0]


def test_commands_are_listed_under_the_current_observation_only() -> None:
    agent = ReActAgent("alfworld", list_commands=True)
    told = (Told("> look", "You see a pen."),)
    messages: Any = agent.prompt(_situation("put a pen in bed.", told))
    assert messages[-1]["content"].endswith("possible now: look, take pen 1 from desk 1")
    assert "possible now" not in messages[0]["content"]
    assert agent.hash != ReActAgent("alfworld").hash != ReActAgent("webshop").hash


def test_games_of_an_older_release_are_shown_their_own_command(real_data: Path) -> None:
    example = load_exemplars("alfworld")[-1]
    assert example["task_type"] == "pick_two_obj_and_place"
    new, old = exemplar_text(example), exemplar_text(example, "put")
    assert new.count("> move keychain ") == new.count("You move the keychain ") == 2
    assert old.count("> put keychain ") == old.count("in/on the armchair 1.") == 2
    assert "move" not in old
    assert ReActAgent("alfworld", generation="put").hash != ReActAgent("alfworld").hash
    # As the old engine words it.
    env_config = load_config({}, {"env.data": str(real_data / "alfworld_games_old.tar.xz")}).env
    games = open_tasks(env_config)
    split = games.splits[0]
    env = make_env(env_config, games, split)
    _, info = env.reset(options={"task_id": split_tasks(env_config, games, split)[0]})
    assert info["provenance"]["generation"] == "put"
    sampler = ScriptSampler(lambda messages: "> look")
    subject = Subject("m", config(env__data="generated"), {}, None, student(), Rounds(sampler))
    plan = Plan(
        [split], 1, data=str(real_data / "alfworld_games_old.tar.xz"), max_steps=1, method="react"
    )
    evaluate_subject(subject, plan)
    assert "> put " in sampler.prompts[0][0]["content"]
    assert "> move " not in sampler.prompts[0][0]["content"]


def test_what_a_model_makes_up_behind_its_command_is_left_out() -> None:
    agent = ReActAgent("alfworld")
    reply = "> think: hm\n> go to desk 1\nYou arrive at desk 1.\n> take pen 1"
    assert agent.said(reply, agent.parse(reply)) == "> think: hm\n> go to desk 1"
    thought = "> think: " + "hm " * 1000
    assert len(agent.said(thought, agent.parse(thought))) == 600
    assert agent.shown(thought, "Nothing happens.") == "OK."
    assert agent.shown(reply, "You arrive.") == "You arrive."


# ------------------------------------------------------------------------------ playing


def test_o35_react_plays_alike_at_every_batch_size_and_behind_a_server() -> None:
    ids = tasks(10)
    agent = ReActAgent("alfworld", list_commands=True)
    settings = TextSettings(400)
    results = []
    for batch in (1, 3, 10, 16):
        model = PolicyModel(student(), ScriptSampler())
        played = play_text([TextEpisode(i) for i in ids], envs(batch), agent, model, settings)
        assert [run.episode.task_id for run in played] == ids
        results.append(outcomes(played))
    assert all(result == results[0] for result in results)
    wins = sum(outcome.success for outcome in results[0])
    assert 0 < wins < 10
    with serving() as server:
        served = EndpointModel(EndpointSettings(server.url, "scripted", concurrency=4))
        played = play_text([TextEpisode(i) for i in ids], envs(4), agent, served, settings)
        served.close()
    assert outcomes(played) == results[0]
    assert len(server.requests) == sum(outcome.steps for outcome in results[0])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_plain_in_text_is_plain_in_tokens(temperature: float) -> None:
    """The training prompt gives the same episodes through ids, through text and behind a server."""
    ids = tasks(6)
    by_ids = evaluate(
        ids, envs(3), student(), ScriptSampler(), split="valid_seen", max_new_tokens=400,
        temperature=temperature,
    )  # fmt: skip
    agent = PlainAgent(student().template)
    settings = TextSettings(400, temperature)
    model = PolicyModel(student(), ScriptSampler())
    by_text = play_text([TextEpisode(i) for i in ids], envs(2), agent, model, settings)
    with serving() as server:
        served = EndpointModel(EndpointSettings(server.url, "scripted", concurrency=2))
        remote = play_text([TextEpisode(i) for i in ids], envs(2), agent, served, settings)
        served.close()
    assert outcomes(by_text) == outcomes(remote)
    for row, outcome in zip(by_ids["tasks"], outcomes(by_text), strict=True):
        assert row == {
            "task_id": outcome.task_id, "task_type": outcome.task_type, "score": outcome.score,
            "success": outcome.success, "steps": outcome.steps, "stop_reason": outcome.stop_reason,
        }  # fmt: skip
    assert any(outcome.success for outcome in outcomes(by_text))


def test_sampled_text_has_the_draws_of_sampled_ids() -> None:
    """A tiny model at temperature 1: the streams are the same, so the episodes are."""
    from trainer.generation.hf import HFSampler

    ids = tasks(4)
    base = small.small_config()
    made = [make_env(base.env, small.games(), "valid_seen") for _ in range(3)]
    sampler = HFSampler(small.model(), [small.tokenizer().eos_token_id])
    options: Any = {"split": "valid_seen", "max_new_tokens": 8, "temperature": 1.0, "seed": 3}
    by_ids = evaluate(ids, made, small.student(), sampler, **options)
    agent = PlainAgent(small.student().template)
    by_text = play_text(
        [TextEpisode(i, seed=3) for i in ids], made[:2], agent,
        PolicyModel(small.student(), sampler), TextSettings(8, 1.0),
    )  # fmt: skip
    shares = [by_ids["admissible_share"], by_ids["invalid_format_share"]]
    steps = sum(o.steps for o in outcomes(by_text))
    assert shares == [
        (steps - sum(o.refused for o in outcomes(by_text))) / steps,
        sum(sum(o.malformed.values()) for o in outcomes(by_text)) / steps,
    ]
    assert [t["steps"] for t in by_ids["tasks"]] == [o.steps for o in outcomes(by_text)]


def test_o5_an_episode_of_thoughts_uses_up_its_steps() -> None:
    model = PolicyModel(student(), ScriptSampler(lambda messages: "> think: hm"))
    (run,) = play_text(
        [TextEpisode(tasks(1)[0])], envs(1), ReActAgent("alfworld"), model, TextSettings(64)
    )
    assert (run.outcome.steps, run.outcome.stop_reason) == (20, "step_limit")
    assert (run.outcome.refused, run.outcome.malformed) == (20, {"no_action": 20})
    assert {told.shown for told in run.situation.told} == {"OK."}
    assert not run.outcome.success


def test_a_transcript_that_outgrows_the_prompt_ends_the_episode() -> None:
    sampler = ScriptSampler(lambda messages: "> look")
    episodes = [TextEpisode(i) for i in tasks(3)]

    def play_below(limit: int) -> list[Any]:
        limited = Student(student().template, ByteTokenizer(), (256,), limit)
        model = PolicyModel(limited, sampler)
        return outcomes(
            play_text(episodes, envs(2), ReActAgent("alfworld"), model, TextSettings(64))
        )

    play_below(100_000)
    sizes = [sum(len(m["content"]) + 12 for m in prompt) for prompt in sampler.prompts]
    cut = play_below((min(sizes) + max(sizes)) // 2)
    assert {outcome.stop_reason for outcome in cut} == {"context_overflow"}
    assert any(0 < outcome.steps < 20 for outcome in cut)
    assert not any(outcome.success for outcome in cut)
    assert {(o.stop_reason, o.steps) for o in play_below(100)} == {("context_overflow", 0)}


def test_the_script_is_no_accident() -> None:
    """The stand-in answers from what it is shown: without a list of commands it does not act."""
    seen = answer([{"role": "user", "content": "Now it is your turn.\nYour task is to: look."}])
    assert "go to" not in seen
