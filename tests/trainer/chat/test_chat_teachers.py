"""Teachers in a conversation: the student's own conversation, and one message that says more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import full_count
from tests.trainer import small
from tests.trainer.chat import templates, world
from tests.trainer.methods.skill_runs import SECTIONS, SKILLS
from tests.trainer.methods.toy_analysers import skill_of
from tests.trainer.short_runs import resumed_like_whole
from trainer.auxiliary.feedback_context import Section, render_trajectory
from trainer.auxiliary.judge_context import JUDGE_TITLE
from trainer.auxiliary.skills import EPISODE_TITLE, STEP_TITLE
from trainer.auxiliary.teacher_prompt import CLOSING, EPISODE_CLOSING
from trainer.config import Config
from trainer.learning.learner import Learner
from trainer.learning.update import score_segments
from trainer.methods.privileged import (
    Conversations,
    edited_prompt,
    prompt_view,
    rescored,
    with_sections,
)
from trainer.methods.protocol import PassLimits, Rollouts, Setup
from trainer.methods.registry import make_methods
from trainer.methods.reweighting.feedback import context_turns
from trainer.metrics import Phases
from trainer.models.packing import chains
from trainer.rollouts.data import Turn, make_segment, segments_from_turns
from trainer.worlds.tasks import make_env

ALL = [templates.CHATML, templates.HEADERS, templates.DROPS_THOUGHTS]
APPENDS = ALL[:2]
HINT = Section("A hint:", "the mug is in drawer 2")
METHODS: dict[str, dict[str, Any]] = {
    **SECTIONS,
    "serl": {},
    "rlsd": {},
    "opsd": {},
    "opsd_legacy": {},
    "sdpo": {},
}


def _config(**more: Any) -> Config:
    shape = {
        "env__max_steps": 7,
        "rollout__rollouts": 2,
        "rollout__max_new_tokens": 64,
        "optim__old_logprobs": "recompute",
    }
    return world.config(**(shape | more))


@lru_cache(maxsize=4)
def _turns(template: str) -> tuple[Turn, ...]:
    return tuple(world.turns_of(world.mixed(_config(), template)))


def _of(turns: tuple[Turn, ...], turn: Turn) -> list[Turn]:
    return [t for t in turns if (t.uid, t.tid) == (turn.uid, turn.tid)]


# ------------------------------------------------------------------------------ prompts


@pytest.mark.parametrize("template", ALL)
def test_nothing_added_is_the_students_own_prompt(template: str) -> None:
    turns, learner = _turns(template), world.student(template)
    talks = Conversations(learner, turns)
    for m, turn in enumerate(turns):
        said = talks.before(m)
        for prompt in (
            with_sections(learner, turn, (), max_tokens=10, said=said),
            edited_prompt(learner, turn, lambda text: text, said=said),
            edited_prompt(learner, turn, lambda text: text, said=said, first=True),
        ):
            assert (prompt.ids, prompt.on, prompt.truncated) == (turn.prompt_ids, False, False)
        assert learner.prompt(prompt_view(turn), said) == turn.prompt_ids


@pytest.mark.parametrize("template", ALL)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_the_addition_stands_in_one_message_and_the_rest_is_as_it_was(
    template: str, first: bool
) -> None:
    turns, learner = _turns(template), world.student(template)
    talks = Conversations(learner, turns)
    closing = EPISODE_CLOSING if first else CLOSING
    for m, turn in enumerate(turns):
        place = 0 if first else turn.t

        def told(number: int, text: str, place: int = place) -> str:
            return f"{text}\n\nA hint:\n{HINT.text}\n\n{closing}" if number == place else text

        expected = world.rendered(learner, _of(turns, turn), turn.t, told)
        prompt = with_sections(
            learner, turn, [HINT], max_tokens=9999, said=talks.before(m), first=first
        )
        assert prompt.on
        assert prompt.ids == expected
        edited = edited_prompt(
            learner, turn, partial(told, place), max_tokens=9999, said=talks.before(m), first=first
        )
        assert edited.ids == expected
        row = rescored(turn, prompt, m)
        assert row.ids == (*expected, *turn.response_ids)
        assert row.trained == len(turn.response_ids)


@pytest.mark.parametrize("template", APPENDS)
def test_sampled_ids_of_earlier_replies_are_not_encoded_again(template: str) -> None:
    """The first reply was cut by its length, and its ids are not those of its text."""
    learner = world.student(template)
    first, second, third, *_ = _of(_turns(template), _turns(template)[0])
    tok = learner.tokenizer
    letters = tuple(i for c in first.reply for i in tok.encode(c, add_special_tokens=False))
    assert tok.decode(letters) == first.reply
    assert letters != first.response_ids[:-1]
    own = [replace(first, response_ids=letters, logprobs=(-0.5,) * len(letters))]
    for turn in (second, third):
        said = learner.conversation(own)
        own.append(replace(turn, prompt_ids=learner.prompt(prompt_view(turn), said)))
    talks = Conversations(learner, own)
    for m in (1, 2):
        told = [
            with_sections(learner, own[m], [HINT], max_tokens=9999, said=talks.before(m), first=f)
            for f in (True, False)
        ]
        behind = own[m].prompt_ids[len(first.prompt_ids) :]
        assert behind[: len(letters) + 1] == (*letters, learner.end_id)
        opening = with_sections(
            learner, first, [HINT], max_tokens=9999, first=True, closing=EPISODE_CLOSING
        ).ids
        assert told[0].ids == (*opening, *behind)
        assert told[1].ids[: len(first.prompt_ids)] == first.prompt_ids
        assert told[1].ids[len(first.prompt_ids) :][: len(letters) + 1] == (
            *letters,
            learner.end_id,
        )


@pytest.mark.parametrize("template", [templates.CHATML, templates.DROPS_THOUGHTS])
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_long_sections_alone_are_shortened_and_the_limit_holds(template: str, first: bool) -> None:
    turns, learner = _turns(template), world.student(template)
    talks = Conversations(learner, turns)
    m = max(range(len(turns)), key=lambda i: turns[i].t)
    turn, said = turns[m], talks.before(m)
    long = Section("A hint:", "you open the drawer 2 and look. " * 30)
    whole = with_sections(learner, turn, [long], max_tokens=9999, said=said, first=first)
    assert not whole.truncated
    kept = set()
    for room in range(0, 260, 13):
        limit = len(turn.prompt_ids) + room
        prompt = with_sections(learner, turn, [long], max_tokens=limit, said=said, first=first)
        assert len(prompt.ids) <= limit
        assert prompt.truncated
        kept.add(prompt.on)
        if not prompt.on:
            assert prompt.ids == turn.prompt_ids
            continue
        text = learner.tokenizer.decode(prompt.ids)
        assert EPISODE_CLOSING in text if first else CLOSING in text
        assert "[...]" in text
    assert kept == {True, False}
    exact = edited_prompt(learner, turn, lambda text: f"{text} now", max_tokens=len(whole.ids),
                          said=said, first=first)  # fmt: skip
    short = edited_prompt(learner, turn, lambda text: f"{text} now",
                          max_tokens=len(turn.prompt_ids), said=said, first=first)  # fmt: skip
    assert exact.on
    assert (short.ids, short.on, short.truncated) == (turn.prompt_ids, False, True)


def test_conversations_are_asked_in_any_order_and_need_whole_trajectories() -> None:
    turns, learner = _turns(templates.CHATML), world.student()
    expected = [learner.conversation(_of(turns, t)[: t.t]) for t in turns]
    order = sorted(range(len(turns)), key=lambda m: (m * 7) % len(turns))
    talks = Conversations(learner, turns)
    assert [talks.before(m) for m in order] == [expected[m] for m in order]
    holed = [t for t in turns if t.t != 1]
    late = next(m for m, t in enumerate(holed) if t.t == 2)
    with pytest.raises(ValueError, match="its turn 1 is missing"):
        Conversations(learner, holed).before(late)
    with pytest.raises(ValueError, match="needs the 2 turns before it, found 0"):
        with_sections(learner, holed[late], [HINT], max_tokens=9999)
    plain = small.student()
    assert Conversations(plain, turns).before(5).messages == ()


def test_the_next_observation_is_the_next_message() -> None:
    turns, learner = list(_turns(templates.CHATML)), world.student()
    found = context_turns(learner, turns)
    for turn, told in zip(turns, found, strict=True):
        after = next((t for t in _of(tuple(turns), turn) if t.t == turn.t + 1), None)
        assert told.next_observation is not None
        assert turn.goal not in told.next_observation
        if after is not None:
            message = learner.template.message(prompt_view(after))["content"]
            assert told.next_observation == message
            assert after.observation.strip().splitlines()[-1] in message


# ----------------------------------------------------------------- methods, by hand


def _method(name: str, section: dict[str, Any], template: str = templates.CHATML) -> Any:
    c = _config(**{f"auxiliary__{name}": section})
    model, turns = world.model(), _turns(template)

    def new_env() -> Any:
        return make_env(c.env, small.games(), "train")

    (method,) = make_methods(Setup(c, world.student_of(c, template), model, new_env))
    method.prepare(Rollouts(0, turns, segments_from_turns(turns)), model)
    return method, model, turns


def _by_hand(
    model: Any, turns: tuple[Turn, ...], told: dict[int, tuple[int, Callable[[str], str]]],
    template: str = templates.CHATML,
) -> dict[int, torch.Tensor]:  # fmt: skip
    """Log-probs of each told turn's reply behind a prompt that the tokenizer renders itself.

    Args:
        told: index of a turn to (number of the changed message, what it says).
    """
    learner, rows = world.student(template), []
    for m, (place, edit) in told.items():
        turn = turns[m]
        ids = world.rendered(
            learner, _of(turns, turn), turn.t,
            lambda n, text, place=place, edit=edit: edit(text) if n == place else text,
        )  # fmt: skip
        rows.append(make_segment(ids, turn.response_ids))
    found = score_segments(model, rows, PassLimits(4096, learner.pad_id))
    return dict(zip(told, found, strict=True))


def _same(found: dict[int, torch.Tensor], expected: dict[int, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert found
    for m, values in found.items():
        torch.testing.assert_close(values.float(), expected[m].float(), rtol=0, atol=1e-5)


def _sections(title: str, text: str, closing: str) -> Callable[[str], str]:
    return lambda message: f"{message}\n\n{title}\n{text}\n\n{closing}"


def _won(turns: tuple[Turn, ...], turn: Turn) -> str | None:
    """The group's won rollout as text, for a turn of another one."""
    learner = world.student()
    winners = {(t.uid, t.tid) for t in turns if t.success}
    if (turn.uid, turn.tid) in winners:
        return None
    own = [t for t in turns if t.uid == turn.uid and (t.uid, t.tid) in winners]
    return render_trajectory(context_turns(learner, own), "response", None)


SUCCESS = "How another attempt at this task succeeded:"
FEEDBACK = "What the environment answered to your action at this step:"


@pytest.mark.parametrize("template", [templates.CHATML, templates.DROPS_THOUGHTS])
@pytest.mark.parametrize("name", ["rlsd", "opsd", "opsd_legacy"])
def test_a_won_rollout_is_told_at_the_beginning(name: str, template: str) -> None:
    more = {"weight": 0.0} if name == "opsd" else {}  # which only measures, with its scores kept
    method, model, turns = _method(name, more, template)
    told = {
        m: (0, _sections(SUCCESS, text, EPISODE_CLOSING))
        for m, turn in enumerate(turns)
        if (text := _won(turns, turn)) is not None
    }
    scores = (
        {m: row.logprobs for m, row in method.scored.items()} if name == "rlsd" else method.scores
    )
    _same(scores, _by_hand(model, turns, told, template))


def test_one_text_for_an_episode_is_one_pass_a_trajectory() -> None:
    method, _, turns = _method("rlsd", {})
    rows = [(*row.prompt.ids, *row.turn.response_ids) for row in method.scored.values()]
    lost = {(t.uid, t.tid) for t in turns} - {(t.uid, t.tid) for t in turns if t.success}
    assert len(chains(rows)) == len(lost) < len(rows)


@pytest.mark.parametrize("name", ["serl", "opsd"])
def test_feedback_is_told_before_the_reply_that_it_is_about(name: str) -> None:
    section = {"source": "immediate_feedback"} if name == "serl" else {
        "context": "feedback", "weight": 0.0,
    }  # fmt: skip
    method, model, turns = _method(name, section)
    told = {
        m: (turn.t, _sections(FEEDBACK, turn.next_observation.strip(), CLOSING))
        for m, turn in enumerate(turns)
    }
    scores = (
        {m: row.logprobs for m, row in method.scored.items()} if name == "serl" else method.scores
    )
    _same(scores, _by_hand(model, turns, told))


def test_sdpo_tells_a_won_rollout_at_the_beginning_and_feedback_where_there_is_none() -> None:
    method, model, turns = _method("sdpo", {"weight": 0.0})
    told = {}
    for m, turn in enumerate(turns):
        text = _won(turns, turn)
        told[m] = (
            (turn.t, _sections(FEEDBACK, turn.next_observation.strip(), CLOSING))
            if text is None
            else (0, _sections(SUCCESS, text, EPISODE_CLOSING))
        )
    _same(method.scores, _by_hand(model, turns, told))


def _after_goal(turn: Turn, title: str, skill: str) -> Callable[[str], str]:
    task = f"task: {turn.goal}\n"
    return lambda text: text.replace(task, f"{task}{title}\n{skill}\n", 1)


@pytest.mark.parametrize("name", ["sdar", "skill_sd"])
def test_a_library_skill_is_told_with_the_task(name: str) -> None:
    method, model, turns = _method(name, SECTIONS[name])
    skill = "\n".join(f"- {entry['text']}" for entry in SKILLS)
    told = {m: (0, _after_goal(turn, EPISODE_TITLE, skill)) for m, turn in enumerate(turns)}
    _same(method._frozen, _by_hand(model, turns, told))


@pytest.mark.parametrize("name", ["seed", "opid"])
def test_an_episodes_skill_is_told_with_the_task_and_a_steps_at_its_step(name: str) -> None:
    analyser = {"model": "tests.trainer.methods.toy_analysers:steps"}
    section = {"analyser": analyser} | ({"skill_mode": "episode_step"} if name == "seed" else {})
    method, model, turns = _method(name, section)
    won = {(t.uid, t.tid) for t in turns if t.success}
    whole, steps = {}, {}
    for m, turn in enumerate(turns):
        outcome = "success" if (turn.uid, turn.tid) in won else "failure"
        whole[m] = (0, _after_goal(turn, EPISODE_TITLE, skill_of(turn.goal, outcome)))
        if turn.t == 1:
            own = "at this step open the closed thing first"
            steps[m] = (1, lambda text, own=own: f"{text}\n\n{STEP_TITLE}\n{own}")
    if name == "seed":  # a step's own skill takes the place of the episode's
        _same(method._frozen, _by_hand(model, turns, {**whole, **steps}))
    else:
        _same(method._teachers["episode"], _by_hand(model, turns, whole))
        _same(method._teachers["step"], _by_hand(model, turns, steps))


# --------------------------------------------------------------------------- learning


@pytest.mark.parametrize("name", METHODS)
def test_they_learn_from_conversations_of_mixed_outcome(name: str) -> None:
    c = _config(**{f"auxiliary__{name}": METHODS[name]})
    learner, turns = world.student_of(c), list(_turns(templates.CHATML))
    weights = []
    for with_method in (False, True):
        model = world.model()
        methods = make_methods(Setup(c, learner, model)) if with_method else []
        line = Learner(c, model, learner, methods=methods).learn(0, turns, Phases())
        assert line["nonfinite_steps"] == 0
        weights.append(small.weights(model))
    assert not small.same(*weights), "the method moves the policy"


QUICK = ["rlsd", "skill_sd", "opsd_legacy"]


@pytest.mark.parametrize("name", list(METHODS)[: full_count(0, len(METHODS))] or QUICK)
def test_runs_in_chat_go_on_after_a_stop_as_without_it(name: str, tmp_path: Path) -> None:
    section = dict(METHODS[name])
    if name in ("rlsd", "opsd", "opsd_legacy"):
        section["context"] = "plan"  # nobody wins here
    c = world.config(
        world.policy(tmp_path / "policy"),
        run__iterations=2,
        run__save_turns=True,
        rollout__rollouts=2,
        env__max_steps=3,
        eval__tasks=1,
        **{f"auxiliary__{name}": section},
    )
    lines = resumed_like_whole(c, tmp_path)
    covered = ("row_coverage", "context_share", "rows_on", "episode_rows_on")
    assert any(line.get(f"{name}/{key}") for line in lines for key in covered)


def reviewer() -> Any:
    """A judge that calls every attempt the same."""
    return lambda messages: "it went past the right shelf"


def test_a_reviewers_assessment_is_told_at_the_beginning() -> None:
    section = {"source": "judge_current", "judge": f"{__name__}:reviewer"}
    method, model, turns = _method("serl", section)
    told = {
        m: (0, _sections(JUDGE_TITLE, "it went past the right shelf", EPISODE_CLOSING))
        for m in range(len(turns))
    }
    _same({m: row.logprobs for m, row in method.scored.items()}, _by_hand(model, turns, told))


@pytest.mark.parametrize(
    "section",
    [
        {"source": "success+future+next_observation"},
        {"source": "success_or_feedback", "placement": "anchor", "anchor_min_size": 1},
        {"act_weight": 0.1, "act_kind": "js"},
        {"act_weight": 0.1, "act_kind": "k3"},
    ],
    ids=str,
)
def test_other_settings_of_serl_learn_too(section: dict[str, Any]) -> None:
    c = _config(auxiliary__serl=section)
    learner, turns, model = world.student_of(c), list(_turns(templates.CHATML)), world.model()
    methods = make_methods(Setup(c, learner, model))
    line = Learner(c, model, learner, methods=methods).learn(0, turns, Phases())
    assert line["serl/row_coverage"] > 0
    assert line["serl/delta_abs_mean"] > 0
    assert (line["serl/act_loss"] is not None) == ("act_weight" in section)
    for row in methods[0].scored.values():
        shown = learner.tokenizer.decode(row.prompt.ids)
        last = shown.rindex("<|im_start|>user")
        assert shown.index(CLOSING) > last, "sections of a step stand before its reply"
