"""Nothing that the student cannot see reaches a conversation: two worlds that differ only in it.

The worlds and the commands are those of `tests.trainer.test_no_leak`: unseen objects lie in other
closed receptacles, and only opening one tells the worlds apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from agent_envs.alfworld.games import GameSet
from tests.support import full_count
from tests.trainer import small
from tests.trainer.chat import templates, world
from tests.trainer.methods.skill_runs import SECTIONS
from tests.trainer.test_no_leak import _commands, _first_difference, _Fixed, _Pair, _pairs
from trainer.branches.branching import grow
from trainer.branches.records import GrownRoot, RootChoice
from trainer.config import Config
from trainer.generation.hf import HFSampler
from trainer.learning.learner import Learner
from trainer.methods.protocol import Rollouts, Setup
from trainer.methods.registry import make_methods
from trainer.metrics import Phases
from trainer.rollouts.data import Turn, segments_from_turns
from trainer.rollouts.rollout import Episode, PlaySettings, Trajectory, play
from trainer.worlds.tasks import make_env

PAIRS = range(full_count(2, 5))
TEMPLATES = [templates.CHATML, templates.DROPS_THOUGHTS]


def _config(**more: Any) -> Config:
    shape = {"env__max_steps": 20, "env__generated__train": 40}
    return world.config(**(shape | more))


def _played(
    games: GameSet, pair: _Pair, sampler: Any, template: str, *, rollouts: int = 1, **more: Any
) -> list[Trajectory]:
    c = _config(**more)
    return play(
        [Episode(pair.task_id, "g", f"t{j}", 0, rollout=j) for j in range(rollouts)],
        [make_env(c.env, games, "train") for _ in range(rollouts)],
        world.student_of(c, template),
        sampler,
        PlaySettings(64, snapshots=True),
    )


def _driven(games: GameSet, pair: _Pair, commands: list[str], template: str) -> Trajectory:
    script: Iterator[str] = iter(commands)
    talker = world.Talker(
        lambda request: f"<think>so</think><action>{next(script, 'look')}</action>", template
    )
    (trajectory,) = _played(games, pair, talker, template)
    return trajectory


def _worlds(pair: _Pair) -> tuple[GameSet, GameSet]:
    return pair.left, pair.right


# ------------------------------------------------------------------------------ prompts


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("number", PAIRS)
def test_prompts_of_a_conversation_depend_on_what_was_seen_alone(
    number: int, template: str
) -> None:
    pair = _pairs()[number]
    commands = _commands(pair)
    left, right = (_driven(games, pair, commands, template) for games in _worlds(pair))
    seen = [[turn.next_observation for turn in t.turns] for t in (left, right)]
    split = _first_difference(*seen)
    assert split == commands.index(f"open {pair.source}"), "only opening may tell the worlds apart"
    for a, b in zip(left.turns[: split + 1], right.turns[: split + 1], strict=True):
        assert a.prompt_ids == b.prompt_ids
        assert a.admissible == b.admissible
    assert left.turns[split + 1].prompt_ids != right.turns[split + 1].prompt_ids


def _branch(
    games: GameSet, pair: _Pair, template: str, commands: list[str], mode: str
) -> GrownRoot:
    c = _config(auxiliary__sero={"max_depth": len(commands), "think_mode": mode})
    trajectory = _driven(games, pair, ["inventory", "go to nowhere 1", "look"], template)
    oracle = _Fixed(commands)
    env, section = make_env(c.env, games, "train"), c.auxiliary.sero
    assert section is not None
    student = world.student_of(c, template)
    root = grow(RootChoice(0, 3), trajectory, env, oracle, student, section, 64)
    assert all(view is not None for view in oracle.views), "it looks at everything"
    return root


@pytest.mark.parametrize("mode", ["empty", "template", "none"])
@pytest.mark.parametrize("number", PAIRS)
def test_branches_of_a_conversation_depend_on_what_was_seen_alone(
    number: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fixed script does not win; the gate is opened so that its rows are made all the same.
    monkeypatch.setattr("trainer.branches.branching.gate", lambda *_: 1.0)
    pair = _pairs()[number]
    oracle = [f"go to {pair.target}", f"go to {pair.source}", f"open {pair.source}", "inventory"]
    left, right = (_branch(g, pair, templates.CHATML, oracle, mode) for g in _worlds(pair))
    assert left.valid
    assert right.valid
    assert len(left.rows) == len(right.rows) == 4
    assert left.rows[:3] == right.rows[:3]
    assert left.rows[3] != right.rows[3]


# ------------------------------------------------------- sampled replies and gradients


def _unopened(request: Any) -> str:
    """Never opens anything; some replies are malformed, so rewards differ."""
    draw = request.rng.random()
    if draw < 0.3:
        return "look"
    command = "look" if draw < 0.6 else "inventory"
    return f"<think>{int(draw * 1000)}</think><action>{command}</action>"


def _turns(found: list[Trajectory]) -> list[Turn]:
    return [turn for trajectory in found for turn in trajectory.turns]


def _facts(turns: list[Turn]) -> list[tuple[Any, ...]]:
    return [
        (t.prompt_ids, t.response_ids, t.logprobs, t.observation, t.next_observation, t.admissible,
         t.reward, t.task_score, t.success)
        for t in turns
    ]  # fmt: skip


@pytest.mark.parametrize("number", PAIRS)
def test_a_policys_own_replies_and_the_update_are_the_same_in_both_worlds(number: int) -> None:
    pair = _pairs()[number]
    made = []
    for games in _worlds(pair):
        c = _config(env__max_steps=4, objective__name="grpo")
        policy, student = world.model(), world.student_of(c)
        sampler = HFSampler(policy, student.stop_ids, pad_id=student.pad_id)
        own = _played(games, pair, sampler, templates.CHATML, env__max_steps=4)
        talked = _talked(games, pair, 4, 4)
        turns = _turns(talked)
        line = Learner(c, policy, student).learn(0, turns, Phases(), talked)
        assert line["optimizer_steps"] > 0
        made.append((_facts(_turns(own)), _facts(turns), small.weights(policy)))
    (own, talked, weights), (own_too, talked_too, weights_too) = made
    assert own == own_too
    assert talked == talked_too
    assert small.same(weights, weights_too)
    assert not small.same(weights, small.weights(world.model())), "there was something to learn"


PRIVILEGED: dict[str, dict[str, Any]] = {
    "opsd": {"context": "plan", "weight": 0.0},
    "opsd_legacy": {"context": "plan", "weight": 0.0},
    "rlsd": {"context": "plan", "weight": 0.0},
    "sero": {"weight": 0.0, "think_mode": "none"},
    "serl": {"weight": 0.0},
    "sdpo": {"weight": 0.0},
    **{name: {**SECTIONS[name], "weight": 0.0} for name in ("seed", "sdar", "skill_sd")},
}
"""They only measure: what is left is the base's gradient."""


@pytest.mark.parametrize("name", PRIVILEGED)
def test_what_a_teacher_is_told_stays_out_of_the_base_gradient(name: str) -> None:
    # A branch has to have the steps for winning.
    steps = 14 if name == "sero" else 4
    c = _config(env__max_steps=steps, **{f"auxiliary__{name}": PRIVILEGED[name]})
    told = []
    for pair in _pairs()[: full_count(2, 8)]:
        made = []
        for games in _worlds(pair):
            found = _talked(games, pair, 3, steps)
            told.append(_told(_method(c, games, world.model(), found)))
            method = _method(c, games, policy := world.model())
            learner = Learner(c, policy, world.student_of(c), methods=(method,))
            learner.learn(0, _turns(found), Phases(), found)
            made.append((_facts(_turns(found)), small.weights(policy)))
        base = _config(env__max_steps=steps)
        Learner(base, plain := world.model(), world.student_of(base)).learn(
            0, _turns(found), Phases(), found
        )
        assert made[0][0] == made[1][0]
        assert small.same(made[0][1], made[1][1])
        assert small.same(made[0][1], small.weights(plain)), "and it is the base's alone"
    pairs = list(zip(told[::2], told[1::2], strict=True))
    assert all(any(found) for found in pairs)
    if name in ("opsd", "opsd_legacy", "rlsd", "sero"):
        assert any(a != b for a, b in pairs), "the oracle knows which world it is in"
    else:
        assert all(a == b for a, b in pairs), "made of what the student saw"


def _talked(games: GameSet, pair: _Pair, rollouts: int, steps: int) -> list[Trajectory]:
    talker = world.Talker(_unopened)
    return _played(games, pair, talker, templates.CHATML, rollouts=rollouts, env__max_steps=steps)


def _method(c: Config, games: GameSet, policy: Any, found: Any = None) -> Any:
    """The config's method; after `prepare` where rollouts are given."""
    student = world.student_of(c)
    new_env = partial(make_env, c.env, games, "train")
    (method,) = make_methods(Setup(c, student, policy, new_env))
    if found is not None:
        turns = _turns(found)
        method.prepare(Rollouts(0, turns, segments_from_turns(turns), found), policy)
    return method


def _told(method: Any) -> list[tuple[int, ...]]:
    """Ids of what a method's teacher, or oracle, makes of the rollouts."""
    if hasattr(method, "roots"):
        return [row.ids for root in method.roots for row in root.rows]
    if hasattr(method, "scored"):
        return [row.prompt.ids for row in method.scored.values()]
    if hasattr(method, "pairs"):
        return [pair.teacher.ids for pair in method.pairs.values()]
    return [segment.ids for segment in method._segments.values()]
