"""``SeroALFWorld-v0`` as a user gets it from `gymnasium.make`."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
import pytest

import agent_envs
from agent_envs.alfworld.compile import grammar_text, text_hash
from agent_envs.alfworld.env import ALFWorldEnv, check_state
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.model import PrivilegedView, State, TaskType
from agent_envs.errors import (
    InvalidOption,
    MissingData,
    ResetNeeded,
    SnapshotMismatch,
    TaskNotFound,
    UnsupportedGame,
)
from tests.agent_envs.alfworld.household import payload, play, toy
from tests.agent_envs.alfworld.worlds import LAMP, MUG, PEN, game_set, make


def test_a_whole_episode() -> None:
    env = make()
    observation, info = env.reset(seed=0, options={"task_id": MUG})
    assert observation.endswith("Your task is to: put some mug on shelf.")
    assert (info["task_id"], info["task_type"], info["split"]) == (MUG, TaskType.PICK, "train")
    assert info["goal"] == "put some mug on shelf."
    assert info["action_templates"] == ()
    assert info["admissible_actions"][-3:] == ("help", "inventory", "look")
    for command in ("go to desk 2", "take mug 3 from desk 2", "go to shelf 1"):
        assert command in info["admissible_actions"]
        observation, reward, terminated, truncated, info = env.step(command)
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
        assert info["command_valid"] is True
    observation, reward, terminated, truncated, info = env.step("move mug 3 to shelf 1")
    assert observation == "You move the mug 3 to the shelf 1."
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["success"], info["score"], info["stop_reason"]) == (True, 1.0, "success")
    assert info["steps_left"] == 46
    with pytest.raises(ResetNeeded):
        env.step("look")


def test_refused_commands_cost_a_step_and_change_nothing() -> None:
    env = make(max_steps=3)
    env.reset(options={"task_id": MUG})
    before = env.unwrapped.privileged().state
    for command in ("take mug 3 from desk 2", "go to the desk", 7):
        observation, reward, terminated, truncated, info = env.step(command)  # type: ignore[arg-type]
        assert (observation, reward, terminated) == ("Nothing happens.", 0.0, False)
        assert info["command_valid"] is False
        assert env.unwrapped.privileged().state == before
    assert truncated
    assert info["stop_reason"] == "step_limit"


def test_o1_info_names_engine_version_and_data_revision() -> None:
    env = make()
    _, info = env.reset(options={"task_id": MUG})
    provenance = info["provenance"]
    assert provenance["engine"] == "sero-native"
    assert provenance["engine_version"]
    assert provenance["data_revision"] == toy().revision
    assert provenance["manifest_hash"] == game_set().manifest_hash
    assert provenance["generation"] == "move"
    assert provenance["reward_version"]
    json.dumps(dict(provenance))


def test_o1_verbs_come_from_the_game() -> None:
    """This generation says ``move``; nothing ever lists ``put``."""
    env = make()
    _, info = env.reset(options={"task_id": PEN})
    verbs = set()
    rng = Random(0)
    for _ in range(49):
        verbs |= {command.split()[0] for command in info["admissible_actions"]}
        command = rng.choice(info["admissible_actions"])
        _, _, terminated, truncated, info = env.step(command)
        if terminated or truncated:
            _, info = env.reset()
    assert "move" in verbs
    assert verbs <= {
        "clean", "close", "cool", "examine", "go", "heat", "help", "inventory", "look", "move",
        "open", "slice", "take", "use",
    }  # fmt: skip


def test_o1_unknown_rules_stop_the_reset(tmp_path: Path) -> None:
    older = payload()
    older["pddl_domain"] = older["pddl_domain"].replace("alfred", "alfred2")
    env = make(data=GameSet.from_games([(MUG, "train", older)]))
    with pytest.raises(UnsupportedGame, match="engine='textworld'") as caught:
        env.reset()
    assert text_hash(older["pddl_domain"]) in str(caught.value)
    assert text_hash(grammar_text()) in str(caught.value)


def test_o2_same_task_on_request() -> None:
    env = make()
    first = env.reset(options={"task_id": PEN})
    env.step("go to desk 1")
    env.step("use desklamp 1")
    again = env.reset(options={"task_id": PEN})
    assert first == again
    with pytest.raises(TaskNotFound, match="Did you mean"):
        env.reset(options={"task_id": PEN + "x"})


def test_a_first_reset_that_fails_spoils_no_later_step() -> None:
    env = make()
    with pytest.raises(TaskNotFound):
        env.reset(options={"task_id": MUG[:-1]})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look")
    env.reset(options={"task_id": MUG})
    for left in (49, 48):
        assert env.step("look")[4]["steps_left"] == left


def test_task_of_another_split_is_told_apart_from_an_unknown_one() -> None:
    env = make()
    with pytest.raises(TaskNotFound, match="not in this env's split"):
        env.reset(options={"task_id": LAMP})
    assert make(split=None).reset(options={"task_id": LAMP})[1]["split"] == "valid_seen"


def test_schedule_covers_the_split() -> None:
    env = make()
    assert {env.reset(seed=3)[1]["task_id"], env.reset()[1]["task_id"]} == {MUG, PEN}
    only = make(split=None, task_types=["look_at_obj_in_light"])
    assert {only.reset(seed=s)[1]["task_id"] for s in range(3)} == {LAMP}


def test_o3_nothing_listed_is_refused(real_games: GameSet) -> None:
    """At many states: snapshot, take every listed action, restore."""
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split="valid_unseen")
    rng = Random(1)
    states = 0
    for seed in range(10):
        _, info = env.reset(seed=seed)
        for _ in range(rng.randrange(4, 9)):
            _, _, over, _, info = env.step(rng.choice(info["admissible_actions"]))
            if over:
                break
        if over:
            continue
        snap = agent_envs.snapshot(env)
        for command in info["admissible_actions"]:
            observation, _, _, _, after = env.step(command)
            assert observation != "Nothing happens."
            assert after["command_valid"]
            restored = agent_envs.restore(env, snap)
            assert restored[1]["admissible_actions"] == info["admissible_actions"]
        states += 1
    assert states >= 5


def test_privileged_view_is_the_true_state() -> None:
    env = make()
    with pytest.raises(ResetNeeded):
        env.unwrapped.privileged()
    env.reset(options={"task_id": MUG})
    env.step("go to desk 2")
    view = env.unwrapped.privileged()
    assert isinstance(view, PrivilegedView)
    assert view.state == play(view.game, "go to desk 2")[0]
    assert view.steps_left == 49
    env.step("take mug 3 from desk 2")
    assert view.state.held == -1  # what was handed out stays as it was


def test_snapshot_goes_to_another_env_with_the_same_data() -> None:
    env, other = make(), make(split=None)
    env.reset(seed=1, options={"task_id": MUG})
    env.step("go to desk 2")
    env.step("take mug 3 from desk 2")
    snap = agent_envs.Snapshot.from_bytes(agent_envs.snapshot(env).to_bytes())
    assert snap.data_revision == toy().revision
    observation, info = agent_envs.restore(other, snap)
    assert observation == "You pick up the mug 3 from the desk 2."
    assert info["steps_left"] == 48
    for command in ("go to shelf 1", "move mug 3 to shelf 1"):
        assert env.step(command)[:4] == other.step(command)[:4]


def test_snapshot_of_other_data_is_refused() -> None:
    env = make()
    env.reset(options={"task_id": MUG})
    snap = agent_envs.snapshot(env)
    changed = GameSet.from_games([(MUG, "train", payload(task="put a mug on shelf"))])
    other = make(data=changed)
    other.reset()
    with pytest.raises(SnapshotMismatch, match="revision"):
        agent_envs.restore(other, snap)


@pytest.mark.parametrize(
    "change",
    [
        {"loc": 99},
        {"loc": -1},
        {"loc": True},
        {"held": 11},
        {"held": -2},
        {"contents": (0,)},
        {"contents": [0] * 8},
        {"contents": (0.0,) * 8},
        {"contents": (1 << 40, *[0] * 7)},
        {"at": (-1, *[0] * 6)},
        {"opened": 1 << 7},  # the sink has no door
        {"opened": "0"},
        {"clean": -1},
        {"on": 1 << 11},
        {"removed": None},
        {"removed": (2047,) * 8, "contents": (1,) * 8},  # removed and there at once
    ],
)
def test_impossible_states_are_refused(change: dict[str, Any]) -> None:
    game = toy()
    good = tuple(game.start)
    assert check_state(game, good) == game.start
    fields = dict(zip(State._fields, good, strict=True)) | change
    with pytest.raises(SnapshotMismatch):
        check_state(game, tuple(fields.values()))
    with pytest.raises(SnapshotMismatch):
        check_state(game, good[:-1])


def test_reached_states_pass_the_check(real_games: GameSet) -> None:
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split="valid_seen")
    rng = Random(2)
    for seed in range(4):
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            command = rng.choice(info["admissible_actions"])
            _, _, terminated, truncated, info = env.step(command)
            over = terminated or truncated
            view = env.unwrapped.privileged()
            assert check_state(view.game, tuple(view.state)) == view.state


def test_constructor_says_what_is_wrong() -> None:
    with pytest.raises(MissingData, match="train") as caught:
        ALFWorldEnv(data=game_set(), split="test")
    assert "valid_seen" in str(caught.value)
    with pytest.raises(MissingData, match="pick_two"):
        ALFWorldEnv(data=game_set(), task_types=["pick_two_obj_and_place"])
    with pytest.raises(InvalidOption, match="juggle"):
        ALFWorldEnv(data=game_set(), task_types=["juggle"])
    with pytest.raises(InvalidOption, match="split"):
        ALFWorldEnv(data=game_set(), split=3)  # type: ignore[arg-type]


def test_nothing_privileged_in_info() -> None:
    env = make()
    _, info = env.reset(options={"task_id": MUG})
    assert set(info) == {
        "task_id", "task_type", "split", "goal", "admissible_actions", "action_templates",
        "command_valid", "success", "score", "steps_left", "stop_reason", "provenance",
    }  # fmt: skip
    assert "loc_bar" not in repr(info)


def test_o15_walkthroughs_win_through_the_env(real_games: GameSet) -> None:
    env = gymnasium.make("SeroALFWorld-v0", data=real_games, split=None)
    for task_id in real_games.task_ids()[::13]:
        _, info = env.reset(options={"task_id": task_id})
        plan = real_games.walkthrough(task_id)
        assert plan is not None
        for number, command in enumerate(plan, start=1):
            assert command in info["admissible_actions"]
            _, reward, terminated, truncated, info = env.step(command)
            assert info["command_valid"]
            assert (reward, terminated, truncated) == (
                (1.0, True, False) if number == len(plan) else (0.0, False, False)
            )
