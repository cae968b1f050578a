"""From turns to trajectories, skills and teachers' prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_envs.prompting import get_template
from tests.fakes import ByteTokenizer, make_turn
from tests.trainer import small
from tests.trainer.methods import toy_analysers
from tests.trainer.short_runs import mixed
from trainer import rng
from trainer.auxiliary.analyser import analyse
from trainer.auxiliary.skill_retrieval import ArmStats, StaticSkill
from trainer.auxiliary.skills import EPISODE_TITLE, STEP_TITLE, SkillReply
from trainer.config import ConfigError
from trainer.config.auxiliary.skills import SdarConfig, SkillEntry
from trainer.methods.privileged import prompt_view
from trainer.methods.skills.contexts import (
    Analyses,
    Attempt,
    RepeatedTurn,
    analyse_all,
    attempts_of,
    library_of,
    library_prompts,
    retrieve,
    shuffled,
    skill_prompts,
)
from trainer.models.text_model import Chat, ExternalTextModel
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Student


def _two() -> list[Turn]:
    """Two trajectories of one group, their turns mixed and the first one's reversed."""
    first = [
        make_turn(tid="a", t=0, reply="r0", observation="o0", format_valid=False),
        make_turn(tid="a", t=1, reply="r1", observation="o1", command_valid=False),
        make_turn(tid="a", t=2, reply="r2", observation="o2", done=True, success=True),
    ]
    second = make_turn(tid="b", t=0, reply="s0", observation="p0", done=True, goal="clean a mug.")
    return [first[2], second, first[0], first[1]]


def _stream(attempt: Attempt, call: int) -> np.random.Generator:
    return rng.stream(0, task=attempt.tid, turn=call, purpose="test")


def test_turns_become_trajectories_in_time_order() -> None:
    a, b = attempts_of(_two())
    assert (a.uid, a.tid, a.rows) == ("g0", "a", (2, 3, 0))
    assert (b.uid, b.tid, b.rows) == ("g0", "b", (1,))
    assert a.episode.success
    assert not b.episode.success
    assert (a.episode.task, b.episode.task) == ("put a mug in shelf.", "clean a mug.")
    assert [(s.observation, s.response, s.valid) for s in a.episode.steps] == [
        ("o0", "r0", False), ("o1", "r1", False), ("o2", "r2", True),
    ]  # fmt: skip


def test_equal_ids_in_different_groups_are_different_trajectories() -> None:
    turns = [make_turn(uid="x", tid="a", done=True), make_turn(uid="y", tid="a", done=True)]
    assert [attempt.uid for attempt in attempts_of(turns)] == ["x", "y"]


class _Asked:
    """A text model that records who was asked in which call."""

    def __init__(self, function: Any, too_long: str | None = None) -> None:
        self.function = function
        self.too_long = too_long
        self.calls: list[list[str]] = []
        self.draws: list[float] = []

    def answers(self, chats: list[Chat], streams: list[np.random.Generator]) -> list[str | None]:
        self.calls.append([toy_analysers.told(chat, "Outcome") for chat in chats])
        self.draws += [stream.random() for stream in streams]
        return [
            None
            if self.too_long is not None and self.too_long in chat[-1]["content"]
            else self.function(chat)
            for chat in chats
        ]


@pytest.mark.parametrize("name", ["outcome", "steps", "failures_only", "second_try", "useless"])
@pytest.mark.parametrize("mode", ["episode_only", "episode_step"])
def test_all_at_once_is_each_by_itself(name: str, mode: Any) -> None:
    attempts, function = attempts_of(_two()), getattr(toy_analysers, name)()
    found = analyse_all(ExternalTextModel(function), attempts, _stream, mode=mode)
    for n, attempt in enumerate(attempts):
        alone = analyse(function, attempt.episode, mode)
        assert (found.replies[n], found.texts[n], found.calls[n]) == (
            alone.reply, alone.text, alone.attempts,
        )  # fmt: skip
        assert found.valid[n] == (not alone.error)
    steps = [len(reply.steps or {}) for reply in found.replies if reply is not None]
    assert any(steps) == (name == "steps" and mode == "episode_step")


def test_only_those_without_a_usable_answer_are_asked_again() -> None:
    attempts = attempts_of(_two())
    model = _Asked(toy_analysers.failures_only())
    found = analyse_all(model, attempts, _stream, calls=3)
    assert model.calls == [["success", "failure"], ["success"], ["success"]]
    assert found.calls == (3, 1)
    assert found.valid == (False, True)
    assert len(set(model.draws)) == 4, "every answer has a stream of its own"
    once = _Asked(toy_analysers.failures_only())
    assert analyse_all(once, attempts, _stream, calls=1).calls == (1, 1)
    twice = _Asked(toy_analysers.useless())
    assert analyse_all(twice, attempts, _stream).calls == (2, 2), "one retry by default"


def test_a_trajectory_that_is_too_long_has_no_skill() -> None:
    model = _Asked(toy_analysers.outcome(), too_long="Outcome: success")
    found = analyse_all(model, attempts_of(_two()), _stream)
    assert model.calls == [["success", "failure"]], "asking again would not make it shorter"
    assert found.texts[0] is None
    assert found.calls == (0, 1)
    assert found.valid == (False, True)


def test_long_texts_are_cut_where_asked_for() -> None:
    seen: list[str] = []

    def function(chat: Chat) -> str:
        seen.append(chat[0]["content"])
        return toy_analysers.outcome()(chat)

    turns = [make_turn(observation="x" * 50, done=True)]
    analyse_all(ExternalTextModel(function), attempts_of(turns), _stream, text_limit=10)
    assert "Observation: xxxxxxxxxx [...]\n" in seen[0]


GOOD = SkillReply("open the fridge before you look", True, "", {1: "take the mug at once, now"})


def test_a_skill_stands_behind_the_task_and_nothing_else_changes() -> None:
    config = small.small_config()
    student, turns = small.student(config), mixed(config)
    attempts = attempts_of(turns)
    replies = [GOOD if n % 2 else None for n in range(len(attempts))]
    prompts = skill_prompts(student, turns, attempts, replies)
    section = f"{EPISODE_TITLE}\n{GOOD.skill}\n"
    own_step = f"\n\n{STEP_TITLE}\ntake the mug at once, now\n"
    steps = 0
    for n, attempt in enumerate(attempts):
        for step, m in enumerate(attempt.rows):
            own = small.tokenizer().decode(list(turns[m].prompt_ids))
            text = small.tokenizer().decode(list(prompts[m].ids))
            assert prompts[m].on == (n % 2 == 1)
            if n % 2 == 0:
                assert prompts[m].ids == turns[m].prompt_ids
            elif step == 1:
                steps += 1
                assert text == own + own_step
            else:
                task = f"task: {turns[m].goal}\n"
                assert text == own.replace(task, task + section, 1)
    assert steps > 0


def test_levels_choose_whose_skill_is_shown() -> None:
    turns, reply = mixed(small.small_config()), GOOD
    attempts = attempts_of(turns)
    student = small.student()
    every = [reply] * len(attempts)
    episode = skill_prompts(student, turns, attempts, every, "episode")
    step = skill_prompts(student, turns, attempts, every, "step")
    priority = skill_prompts(student, turns, attempts, every, "priority")
    assert all(prompt.on for prompt in episode)
    seconds = {attempt.rows[1] for attempt in attempts if len(attempt.rows) > 1}
    assert seconds
    assert {m for m, prompt in enumerate(step) if prompt.on} == seconds
    for m in range(len(turns)):
        assert priority[m].ids == (step if m in seconds else episode)[m].ids
    assert all(STEP_TITLE not in small.tokenizer().decode(list(p.ids)) for p in episode)


def test_an_invalid_reply_switches_its_trajectory_off() -> None:
    turns = mixed(small.small_config())
    attempts = attempts_of(turns)
    prompts = skill_prompts(
        small.student(), turns, attempts, [SkillReply("too short", False)] * len(attempts)
    )
    assert not any(prompt.on for prompt in prompts)


@pytest.mark.parametrize("name", ["compact", "field"])
@pytest.mark.parametrize("pages", ["plain", "webshop"])
def test_every_template_takes_a_skill(name: str, pages: str) -> None:
    tokenizer = ByteTokenizer()
    student = Student(get_template(name, pages=pages), tokenizer, (256,), 10_000)
    turn = make_turn(
        goal="find a red mug, price lower than 20 dollars",
        observation="WebShop [SEP] Instruction: [SEP] find a red mug, price lower than 20 dollars"
        " [SEP] Search",
        admissible=("click[search]",),
        action_templates=("search[<query>]",),
        history=(("a page", "search[mug]", True),),
        t=1,
        done=True,
    )
    turn = replace(turn, prompt_ids=student.prompt(prompt_view(turn)))
    own = tokenizer.decode(turn.prompt_ids)
    reply = replace(GOOD, steps={0: "take the mug at once, now"})
    attempts = attempts_of([turn])
    (episode,) = skill_prompts(student, [turn], attempts, [GOOD])
    (step,) = skill_prompts(student, [turn], attempts, [reply])
    for prompt, section in (
        (episode, f"{EPISODE_TITLE}\n{GOOD.skill}"),
        (step, f"{STEP_TITLE}\ntake the mug at once, now"),
    ):
        text = tokenizer.decode(prompt.ids)
        assert prompt.on
        assert section in text
        left = text.replace(section, "", 1)
        assert "".join(left.split()) == "".join(own.split())


def test_the_control_gives_everybody_the_skill_of_another() -> None:
    replies = tuple(SkillReply(f"skill {n} says look around first", True) for n in range(5))
    broken = SkillReply("", False)
    analyses = Analyses((*replies, None, broken), (None,) * 7, (1,) * 7)
    assert analyses.valid == (True,) * 5 + (False, False)
    others = shuffled(analyses, rng.stream(0, purpose="test"))
    assert others[5:] == [None, None]
    assert all(other is not own for other, own in zip(others, replies, strict=False))
    assert {id(other) for other in others[:5]} == {id(own) for own in replies}


# ---------------------------------------------------------------------------- fixed libraries


LIBRARY = (
    StaticSkill("mug", "take the mug from the shelf", ("mug",)),
    StaticSkill("lamp", "switch on the desklamp"),
)


def _entries(**fields: Any) -> SdarConfig:
    return SdarConfig(
        entries=tuple(SkillEntry(s.name, s.text, s.keywords) for s in LIBRARY), **fields
    )


def test_a_library_comes_from_the_config_or_from_a_file(tmp_path: Path) -> None:
    assert library_of(_entries(), "here") == LIBRARY
    path = tmp_path / "skills.json"
    data = [
        {"name": "mug", "text": "take the mug from the shelf", "keywords": ["mug"]},
        {"name": "lamp", "text": "switch on the desklamp"},
    ]
    path.write_text(json.dumps(data), encoding="utf-8")
    assert library_of(SdarConfig(skills=str(path)), "here") == LIBRARY


@pytest.mark.parametrize(
    "text", ["nothing", "3", '["mug"]', '[{"name": "a"}]', '[{"name": "a", "text": "b", "c": 1}]']
)
def test_a_file_that_is_no_library_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "skills.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"here\.skills=.*is no library of skills"):
        library_of(SdarConfig(skills=str(path)), "here")


def test_a_library_must_exist_and_its_names_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"here\.skills=.*is no library of skills"):
        library_of(SdarConfig(skills=str(tmp_path / "none.json")), "here")
    twice = SdarConfig(entries=(SkillEntry("a", "b"), SkillEntry("a", "c")))
    with pytest.raises(ConfigError, match="each with its own name"):
        library_of(twice, "here")
    path = tmp_path / "empty.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ConfigError, match="at least one skill"):
        library_of(SdarConfig(skills=str(path)), "here")


def _chosen(section: SdarConfig, stats: ArmStats | None = None) -> dict[str, list[str]]:
    turns = [make_turn(uid="x", goal="put a mug in shelf."), make_turn(uid="y", goal="look at it")]
    found = retrieve(
        section,
        LIBRARY,
        ArmStats() if stats is None else stats,
        attempts_of([*turns, make_turn(uid="x", tid="g0/1", goal="put a mug in shelf.")]),
        lambda uid: rng.stream(0, task=uid, purpose="test"),
    )
    return {uid: [skill.name for skill in skills] for uid, skills in found.items()}


def test_the_four_ways_to_choose() -> None:
    assert _chosen(_entries()) == {"x": ["mug"], "y": []}
    assert _chosen(_entries(retrieval="full")) == {"x": ["mug", "lamp"], "y": ["mug", "lamp"]}
    both = _chosen(_entries(retrieval="random", k=2))
    assert {frozenset(names) for names in both.values()} == {frozenset(("mug", "lamp"))}
    known = ArmStats({"mug": 10, "lamp": 10}, {"mug": 1.0, "lamp": 9.0})
    assert _chosen(_entries(retrieval="ucb"), known) == {"x": ["lamp"], "y": ["lamp"]}
    curious = ArmStats({"mug": 1, "lamp": 1000}, {"mug": 0.0, "lamp": 900.0})
    assert _chosen(_entries(retrieval="ucb"), curious) == {"x": ["mug"], "y": ["mug"]}
    greedy = _entries(retrieval="ucb", exploration=0.0)
    assert _chosen(greedy, curious) == {"x": ["lamp"], "y": ["lamp"]}


def test_groups_without_a_skill_keep_the_students_prompt() -> None:
    student, turns = small.student(), mixed(small.small_config())
    uids = sorted({turn.uid for turn in turns})
    prompts = library_prompts(student, turns, {uids[0]: LIBRARY, uids[1]: ()})
    for turn, prompt in zip(turns, prompts, strict=True):
        assert prompt.on == (turn.uid == uids[0])
        text = small.tokenizer().decode(list(prompt.ids))
        lines = "- take the mug from the shelf\n- switch on the desklamp\n"
        assert (f"{EPISODE_TITLE}\n{lines}" in text) == prompt.on
        assert prompt.on or prompt.ids == turn.prompt_ids


def test_a_turn_that_is_there_twice_is_refused() -> None:
    turns = [*_two(), make_turn(tid="a", t=1)]
    with pytest.raises(
        RepeatedTurn, match=r"Turn 1 of trajectory 'a' in group 'g0' .* rows 3 and 4; expected once"
    ):
        attempts_of(turns)
    assert issubclass(RepeatedTurn, ValueError)
    attempts_of([*_two(), make_turn(uid="g1", tid="a", t=1), make_turn(tid="a", t=3)])
