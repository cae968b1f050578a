"""What a teacher is told comes from recorded turns, one source at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import ByteTokenizer, make_turn
from tests.trainer import small
from tests.trainer.rollouts.test_tokens import CHAT
from tests.trainer.short_runs import mixed
from trainer.auxiliary.feedback_context import TITLES
from trainer.config import Config, ConfigError, load_config
from trainer.config.auxiliary import SerlConfig
from trainer.methods.privileged import prompt_view, with_sections
from trainer.methods.reweighting.feedback import context_turns, feedback_sections, success_sections
from trainer.models.text_model import load_text_model
from trainer.rollouts.data import Turn, read_turns, write_turns
from trainer.rollouts.rollout import Student
from trainer.runs.folder import make_student
from trainer.worlds.environments import WEBSHOP


def _reply(command: str) -> str:
    return f"<think>hm {command}</think><action>{command}</action>"


def _turn(tid: str, t: int, command: str, after: str, **changes: Any) -> Turn:
    return make_turn(
        **{
            "tid": tid,
            "t": t,
            "observation": f"{tid} before {t}",
            "next_observation": after,
            "anchor": "hall" if t == 0 else f"{tid}{t}",
            "command": command,
            "reply": _reply(command),
            "history": ((f"{tid} before 0", "go", True),) if t else (),
            **changes,
        }
    )


def _group() -> list[Turn]:
    """Two attempts: `a` fails in two steps, `b` wins in two."""
    last = {"done": True, "stop_reason": "step_limit", "next_admissible": ("wave",)}
    return [
        _turn("a", 0, "go", "a hall", reward=0.25),
        _turn("a", 1, "sit", "a end", **last),
        _turn("b", 0, "run", "b hall", reward=0.5),
        _turn("b", 1, "win", "b end", reward=1.0, success=True, **last),
    ]


def _student(template: str = "compact") -> Student:
    return small.student_for(small.small_config(prompt__template=template), ByteTokenizer())


def _section(**changes: Any) -> SerlConfig:
    section = replace(SerlConfig(), **changes)
    section.check()
    return section


def _told(section: SerlConfig, turns: list[Turn], judge: Any = None) -> list[list[tuple[str, str]]]:
    rows = feedback_sections(context_turns(_student(), turns), section, judge)
    return [[(title, text) for title, text in row] for row in rows]


def test_turns_become_rows_of_text() -> None:
    first, second, *_, won = context_turns(_student(), _group())
    assert (first.uid, first.tid, first.t, first.anchor) == ("g0", ("g0", "a"), 0, "hall")
    assert first.observation == "Task: put a mug in shelf.\na before 0"
    assert second.observation == "a before 1", "the task is said once"
    assert first.response == _reply("go")
    assert first.feedback == "a hall"
    assert (first.success, second.success, won.success) == (False, False, True)
    assert (first.episode_return, second.episode_return, won.episode_return) == (0.25, 0.25, 1.5)
    unfinished = replace(_group()[3], done=False)
    assert not context_turns(_student(), [unfinished])[0].success
    stated = _turn("a", 0, "go", "x", observation="Your task: put a mug in shelf.")
    assert context_turns(_student(), [stated])[0].observation == stated.observation


@pytest.mark.parametrize("template", ["compact", "field"])
def test_the_next_observation_is_the_prompt_that_came_next(template: str) -> None:
    student, turns = _student(template), _group()
    rows = context_turns(student, turns)
    rendered = student.template.render(prompt_view(turns[1]))
    assert rows[0].next_observation == (
        rendered if isinstance(rendered, str) else rendered[-1]["content"]
    )
    # After a last turn: the end, with the commands of the moment and the turn itself as history.
    text = rows[1].next_observation
    assert text is not None
    places = [text.index(part) for part in ("a before 0", "a before 1", "sit", "a end", "wave")]
    assert places == sorted(places)
    if template == "field":
        assert "This is step 3." in text
    alone = context_turns(student, [replace(turns[0], done=False)])
    assert alone[0].next_observation is None, "a trajectory that is not whole"


def test_two_groups_may_number_their_trajectories_alike() -> None:
    other = [replace(turn, uid="g1", success=False) for turn in _group()]
    rows = context_turns(_student(), [*_group(), *other])
    assert [row.success for row in rows] == [False, False, True, True, False, False, False, False]
    assert [row.episode_return for row in rows[4:]] == [0.25, 0.25, 1.5, 1.5]


_WIN = "Step 1\nResponse: <action>run</action>\n\nStep 2\nResponse: <action>win</action>"
_SUCCESS = (TITLES["success"], _WIN)


@pytest.mark.parametrize(
    ("source", "first", "last_of_winner"),
    [
        ("immediate_feedback", ["feedback"], ["feedback"]),
        ("next_observation", ["next_obs"], ["next_obs"]),
        ("future_trajectory", ["future"], []),
        ("success_or_feedback", ["success"], ["feedback"]),
        ("success+feedback", ["success", "feedback"], []),
        ("success+next_observation", ["success", "next_obs"], []),
        ("success+future", ["success", "future"], []),
        ("success+future+feedback", ["success", "future", "feedback"], []),
        ("success+future+next_observation", ["success", "future", "next_obs"], []),
    ],
)
def test_every_source_tells_its_own(
    source: str, first: list[str], last_of_winner: list[str]
) -> None:
    turns = _group()
    rows = _told(_section(source=source), turns)
    following = context_turns(_student(), turns)
    texts = {
        "success": _WIN,
        "feedback": "a hall",
        "future": "Step 2\nResponse: <action>sit</action>",
        "next_obs": str(following[0].next_observation).strip(),
    }
    assert rows[0] == [(TITLES[name], texts[name]) for name in first]
    # The winner has no other success in its group, and the last step no future.
    assert [title for title, _ in rows[3]] == [TITLES[name] for name in last_of_winner]


def test_trajectories_are_shown_as_the_config_says() -> None:
    shown = _told(_section(source="success_or_feedback", rendering="observation_action"), _group())
    assert "Observation: b before 1\nAction: <action>win</action>" in shown[0][0][1]
    cut = _told(_section(source="success_or_feedback", context_steps=1), _group())
    assert cut[0][0][1] == "Step 1\nResponse: <action>run</action>\n\n(1 more)"


def test_an_anchor_tells_what_all_tried_there() -> None:
    section = _section(placement="anchor")
    rows = _told(section, _group())
    ((_, hall),) = rows[0]
    assert hall == "go: a hall\nrun: b hall"
    assert rows[2] == rows[0]
    assert rows[1][0][1] == "sit: a end"
    met_twice = _told(replace(section, anchor_min_size=2), _group())
    assert [len(row) for row in met_twice] == [1, 0, 1, 0]
    circle = _group()
    circle[1] = replace(circle[1], anchor="hall")
    first_only = _told(replace(section, anchor_first_only=True), circle)
    assert [len(row) for row in first_only] == [1, 0, 1, 1]
    assert len(_told(section, circle)[1]) == 1
    near = _group()
    near[2] = replace(near[2], anchor="hal")
    assert _told(section, near)[0] != rows[0]
    assert _told(replace(section, similarity=0.8), near)[0] == rows[0]
    with_success = _told(_section(placement="anchor", source="success+feedback"), _group())
    assert with_success[0][0] == _SUCCESS
    assert "go: tried 1 time(s), 0 of them" in with_success[0][1][1]


ASKED: list[list[dict[str, str]]] = []


def reviewer() -> Callable[[list[dict[str, str]]], str]:
    def answer(messages: list[dict[str, str]]) -> str:
        ASKED.append(messages)
        return "It walked away from the goal."

    return answer


def test_a_judge_is_asked_once_a_trajectory() -> None:
    ASKED.clear()
    place = f"{__name__}:reviewer"
    judge = load_text_model(place, "x").function
    rows = _told(_section(source="judge_current", judge=place), _group(), judge)
    assert len(ASKED) == 2
    assert {text for row in rows for _, text in row} == {"It walked away from the goal."}
    assert [len(row) for row in rows] == [1, 1, 1, 1]
    user = ASKED[0][-1]["content"]
    assert "Task: put a mug in shelf.\na before 0" in user
    assert "Outcome: failure." in user
    assert "run" not in user
    ASKED.clear()
    section = _section(source="judge_current_success", judge=place, context_steps=1)
    _told(section, _group(), judge)
    assert (
        "an attempt that succeeded:\nStep 1\nResponse: <action>run</action>\n\n(1 more)"
        in (ASKED[0][-1]["content"])
    )
    ASKED.clear()
    lost = [replace(turn, success=False) for turn in _group()]
    assert _told(section, lost, judge) == [[], [], [], []]
    assert ASKED == []
    with pytest.raises(ValueError, match="'judge_current_success' needs a judge, found none"):
        _told(section, lost)


def test_a_solution_is_that_of_another_attempt() -> None:
    rows = success_sections(context_turns(_student(), _group()), "response", None)
    assert [list(row) for row in rows] == [[_SUCCESS], [_SUCCESS], [], []]
    (section,) = success_sections(context_turns(_student(), _group()), "observation_action", 1)[0]
    assert section.text.startswith("Step 1\nObservation: Task: put a mug in shelf.\nb before 0")
    assert section.text.endswith("(1 more)")


# -------------------------------------------------------------------------- to the prompt


def _chat_student(config: Config) -> Student:
    tokenizer = copy.deepcopy(small.tokenizer())
    tokenizer.chat_template = CHAT
    return make_student(config, None, tokenizer)


@pytest.mark.parametrize("env_id", ["SeroALFWorld-v0", WEBSHOP])
@pytest.mark.parametrize("template", ["compact", "field"])
@pytest.mark.parametrize("source", ["immediate_feedback", "success+next_observation"])
def test_the_teacher_reads_the_students_prompt_and_then_the_feedback(
    env_id: str, template: str, source: str
) -> None:
    config = load_config({}, {"env.id": env_id, "prompt.template": template})
    student = _chat_student(config)
    shop = {"action_templates": ("search[<query>]",), "goal": "find me a lamp"}
    turns = [
        replace(turn, prompt_ids=student.prompt(prompt_view(turn)))
        for turn in (replace(turn, **shop) for turn in _group())
    ]
    section = _section(source=source)
    rows = feedback_sections(context_turns(student, turns), section)
    decode = student.tokenizer.decode
    for turn, sections in zip(turns[:2], rows[:2], strict=True):
        prompt = with_sections(student, turn, sections, max_tokens=10_000)
        own, told = decode(list(turn.prompt_ids)), decode(list(prompt.ids))
        assert prompt.on
        header = "<end>\n<assistant>" if template == "field" else "\n"
        assert own.endswith(header)
        assert told.endswith(header)
        assert told.startswith(own.removesuffix(header).rstrip())
        for title, text in sections:
            assert f"{title}\n{decode(student.tokenizer.encode(text))}" in told
    view = prompt_view(turns[0])
    assert not any(title in str(student.template.render(view)) for title in TITLES.values())


def test_turns_from_a_file_tell_the_same(tmp_path: Path) -> None:
    config = small.small_config()
    turns = mixed(config)
    write_turns(tmp_path / "turns.parquet", turns)
    read = read_turns(tmp_path / "turns.parquet")
    student = small.student(config)
    for source in ("success+future+next_observation", "next_observation"):
        for placement in ("step", "anchor"):
            section = _section(source=source, placement=placement)
            rows = [feedback_sections(context_turns(student, t), section) for t in (turns, read)]
            assert rows[0] == rows[1]
            assert any(rows[0])


# -------------------------------------------------------------------------- the config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("weight", -1.0, r"serl\.weight=-1.0 must be at least 0"),
        ("weight", 2.5, r"weight=2.5 times auxiliary\.serl\.alpha=0.5 must not exceed 1"),
        ("alpha", 1.5, r"serl\.alpha=1.5 must lie in \[0, 1\]"),
        ("decay", -1, r"serl\.decay=-1 must be at least 0"),
        ("clip", 1.0, r"serl\.clip=1.0 must be at least 0 and below 1"),
        ("clip", -0.1, r"serl\.clip=-0.1"),
        ("sync_every", 0, r"serl\.sync_every=0 must be positive"),
        ("max_prompt_tokens", 0, r"serl\.max_prompt_tokens=0"),
        ("context_steps", 0, r"serl\.context_steps=0"),
        ("anchor_min_size", 0, r"serl\.anchor_min_size=0"),
        ("act_weight", -0.1, r"serl\.act_weight=-0.1"),
        ("act_clamp", 0.0, r"serl\.act_clamp=0.0"),
        ("act_beta", 1.0, r"serl\.act_beta=1.0 must lie inside"),
        ("act_beta", 0.0, r"serl\.act_beta=0.0"),
        ("similarity", 0.0, r"serl\.similarity=0.0 must lie in \(0, 1\]"),
        ("similarity", 1.01, r"serl\.similarity=1.01"),
        ("judge", "a:b", r"never asked by the source 'immediate_feedback'"),
        ("source", "judge_current", r"judge=None must be 'module:factory'"),
        ("source", "everything", r"source"),
    ],
)
def test_settings_that_make_no_sense_are_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small.small_config(**{f"auxiliary__serl__{key}": value})


def test_a_judge_has_a_place_and_no_anchors() -> None:
    judged = {"source": "judge_current", "judge": "a:b"}
    small.small_config(auxiliary__serl=judged)
    with pytest.raises(ConfigError, match="placement=anchor has no source 'judge_current'"):
        small.small_config(auxiliary__serl={**judged, "placement": "anchor"})
    for broken in ("a:", ":b", "ab"):
        with pytest.raises(ConfigError, match=r"must be 'module:factory'"):
            small.small_config(auxiliary__serl={**judged, "judge": broken})


def test_published_settings_are_the_defaults() -> None:
    s = SerlConfig()
    assert (s.weight, s.alpha, s.decay, s.clip, s.sync_every) == (1.0, 0.5, 50, 0.2, 10)
    assert (s.source, s.placement, s.rendering) == ("immediate_feedback", "step", "response")
    assert (s.act_weight, s.act_kind, s.act_clamp, s.act_beta) == (0.0, "pg_rkl", 5.0, 0.5)
    assert (s.anchor_min_size, s.anchor_first_only, s.similarity, s.judge) == (1, False, None, None)
    assert (s.max_prompt_tokens, s.context_steps) == (None, None)
    assert replace(s, weight=2.0, alpha=0.5).check() is None
