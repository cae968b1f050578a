"""Prompts and parsing against running envs."""

from __future__ import annotations

import gymnasium
import pytest

import agent_envs
from agent_envs.alfworld.engine import admissible, step
from agent_envs.alfworld.households.generator import SMALL, generate_game_set
from agent_envs.prompting import (
    CompactTemplate,
    FieldTemplate,
    History,
    PromptView,
    command_verb,
    named_verbs,
    parse_plain,
)
from tests.agent_envs.prompting.test_prompting_templates import listed_verbs
from tests.support import full_count


@pytest.fixture(scope="module")
def games():
    return generate_game_set(
        seed=0, counts={"train": 12, "valid_seen": 0, "valid_unseen": 0}, spec=SMALL
    )


@pytest.fixture
def env(games):
    env = gymnasium.make("SeroALFWorld-v0", data=games, max_steps=15)
    yield env
    env.close()


@pytest.mark.parametrize("template", [FieldTemplate(), CompactTemplate()], ids=lambda t: t.name)
def test_o01_generated_games_name_the_verbs_of_the_env(env, games, template):
    for task in games.task_ids("train"):
        observation, info = env.reset(options={"task_id": task})
        history = History()
        for command in (*games.load(task).walkthrough, "look"):
            view = history.view(
                info["goal"], observation, info["admissible_actions"], info["action_templates"]
            )
            env_verbs = {command_verb(c) for c in info["admissible_actions"]}
            assert listed_verbs(template, view) == env_verbs - set(template.hidden)
            assert command_verb(command) in env_verbs
            shown, (observation, _, over, cut, info) = observation, env.step(command)
            history = history.append(shown, command, info["command_valid"])
            if over or cut:
                break


@pytest.mark.data
def test_o01_real_games_name_the_verbs_of_the_env(real_games):
    tasks = real_games.task_ids()
    count = full_count(30, len(tasks))
    field = FieldTemplate()
    seen = set()
    for task in tasks[:: max(1, len(tasks) // count)]:
        game = real_games.load(task)
        state = game.start
        for command in ("look", *game.walkthrough):
            commands = admissible(game, state)
            view = PromptView(game.task_sentence, "here", commands)
            env_verbs = {command_verb(c) for c in commands}
            assert env_verbs - {"help"} == named_verbs(view, field.hidden)
            assert listed_verbs(field, view) == env_verbs - {"help"}
            seen |= env_verbs
            state, _, accepted = step(game, state, command)
            assert accepted
    assert {"go", "take", "move", "open", "close"} <= seen
    assert "put" not in seen


@pytest.mark.parametrize("reply", ["> think: where is it?", "", "I cannot tell."])
def test_o05_the_env_refuses_what_is_no_action_and_the_world_stays(env, games, reply):
    _, info = env.reset(options={"task_id": games.task_ids("train")[0]})
    before, commands = agent_envs.snapshot(env), info["admissible_actions"]
    parsed = parse_plain(reply)
    observation, reward, over, _, info = env.step(parsed.command)
    assert (observation, reward, over) == ("Nothing happens.", 0.0, False)
    assert info["command_valid"] is False
    assert info["admissible_actions"] == commands
    after = agent_envs.snapshot(env)
    assert after.state[0] == before.state[0]  # the engine's own state
    assert after.steps_left == before.steps_left - 1
