"""O24 for every method whose teacher is told more than the student.

A hint is a skill, feedback, or a solution. Every method is run on the same turns, in which exactly
one trajectory has no hint: the only one of its group that won, or the one that no skill is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fakes import ByteTokenizer
from tests.trainer import small
from tests.trainer.methods.distilling import LIMITS, config_of, trajectories_of, turns_of
from trainer.auxiliary.feedback_context import Section
from trainer.config import Config, ConfigError
from trainer.learning.update import BaseStep, LossStats, base_backward, score_segments
from trainer.methods.privileged import TeacherPrompt, prompt_view, rescored, with_sections
from trainer.methods.protocol import Rollouts, Setup, Step
from trainer.methods.registry import make_methods
from trainer.methods.skills.opid import Opid
from trainer.methods.skills.teacher import Distilled
from trainer.models.policy import collate, token_logprobs
from trainer.rollouts.data import Segment, Turn, segments_from_turns
from trainer.rollouts.rollout import Student

ANALYSERS = "tests.trainer.methods.toy_analysers"
SKILLS = [{"name": "put", "text": "carry the thing to its place", "keywords": ["put", "look"]}]
LIBRARY = {"entries": SKILLS, "retrieval": "keyword", "allow_missing": True}

HINTED: dict[str, dict[str, Any]] = {
    "serl": {"source": "success_or_feedback"},
    "rlsd": {},
    "opsd": {"context": "success"},
    "opsd_legacy": {"context": "success"},
    "sdpo": {"feedback": False},
    "seed": {"analyser": {"model": f"{ANALYSERS}:failures_only"}},
    "opid": {"analyser": {"model": f"{ANALYSERS}:failures_only"}},
    "sdar": LIBRARY,
    "skill_sd": LIBRARY,
    "skill_sd/hindsight": {
        "source": "hindsight",
        "analyser": {"model": f"{ANALYSERS}:failures_only"},
    },
}
"""Method, and where its hints come from."""
COVERAGE = {
    "serl": "serl/row_coverage",
    "rlsd": "rlsd/row_coverage",
    "opsd": "opsd/context_share",
    "opsd_legacy": "opsd_legacy/context_share",
    "sdpo": "sdpo/context_share",
    "opid": "opid/episode_rows_on",
}
"""The counter of turns with a hint, as a share; `NAME/rows_on` for the others."""


def config_for(case: str, **section: Any) -> Config:
    return config_with(case, {**HINTED[case], **section})


def config_with(case: str, section: dict[str, Any]) -> Config:
    more = {"rollout__temperature": 0.8, "prompt__max_prompt_tokens": 4096}
    return config_of(**more, **{f"auxiliary__{_name(case)}": section})


def _name(case: str) -> str:
    return case.split("/", maxsplit=1)[0].split(" ", maxsplit=1)[0]


@cache
def _played() -> tuple[Turn, ...]:
    turns = turns_of(trajectories_of(config_of(rollout__temperature=0.8)))
    values = score_segments(small.model(), segments_from_turns(turns), LIMITS)
    return tuple(
        replace(turn, logprobs=tuple(row.tolist())) for turn, row in zip(turns, values, strict=True)
    )


def alone() -> tuple[str, str]:
    """The one trajectory that is told nothing."""
    winners = {(t.uid, t.tid) for t in _played() if t.uid == "0.1" and t.success}
    (found,) = winners
    return found


def turns_for(case: str, student: Student | None = None) -> list[Turn]:
    """Turns of which all but one trajectory have a hint, under prompts of `student`."""
    key, turns = alone(), list(_played())
    student = small.student() if student is None else student
    if case == "serl":  # which takes what the environment answered where nobody else won
        turns = [replace(t, next_observation=" \n") if (t.uid, t.tid) == key else t for t in turns]
    if "analyser" in HINTED[case]:  # which says nothing of a success
        turns = [replace(t, success=t.success and (t.uid, t.tid) == key, reward=0.0) for t in turns]
    elif "entries" in HINTED[case]:  # whose keywords are not in every task
        turns = [replace(t, uid="other", goal="xyz") if (t.uid, t.tid) == key else t for t in turns]
    if student.tokenizer is not small.tokenizer():
        ids = {t.reply: (*student.tokenizer.encode(t.reply), 256) for t in turns}
        turns = [
            replace(t, response_ids=ids[t.reply], logprobs=(-1.0,) * len(ids[t.reply]))
            for t in turns
        ]
    return [replace(t, prompt_ids=student.prompt(prompt_view(t))) for t in turns]


def untold_places(turns: Sequence[Turn]) -> list[int]:
    return [i for i, turn in enumerate(turns) if turn.tid == alone()[1]]


def untold_of(turns: Sequence[Turn]) -> list[Turn]:
    return [turns[i] for i in untold_places(turns)]


def made(config: Config, model: Any, student: Student | None = None) -> Any:
    (method,) = make_methods(Setup(config, student or small.student(config), model))
    return method


def rollouts_of(turns: Sequence[Turn]) -> Rollouts:
    return Rollouts(0, turns, segments_from_turns(turns))


def teacher_prompts(method: Any, rollouts: Rollouts, model: Any) -> list[TeacherPrompt]:
    """The teacher's prompt of every turn, as the method makes it."""
    if isinstance(method, Opid):
        method.prepare(rollouts, model)
        return list(method._prompts(of_others=False)["episode"])
    if isinstance(method, Distilled):
        return list(method.prompts(rollouts, model))
    tell: Callable[[Rollouts], Sequence[Any]]
    if hasattr(method, "scored"):
        tell = method.contexts
    else:
        tell = method.sections if hasattr(method, "sections") else method.contexts.sections
    student = method.setup.student
    limit = method.section.max_prompt_tokens or student.max_prompt_tokens
    return [
        with_sections(student, turn, sections, max_tokens=limit)
        for turn, sections in zip(rollouts.turns, tell(rollouts), strict=True)
    ]


def teacher_of(method: Any, model: Any) -> Any:
    return method.teacher.of(model) if hasattr(method, "teacher") else model


def trained_rows(method: Any) -> dict[int, Segment | None]:
    """What the teacher scored in `prepare`, or will score in a pass: turns and their rows."""
    if isinstance(method, Opid):
        return dict.fromkeys(method._teachers["episode"])
    if isinstance(method, Distilled):
        return dict(method._segments)
    if hasattr(method, "scored"):
        return {i: rescored(row.turn, row.prompt, i) for i, row in method.scored.items()}
    return {i: pair.teacher for i, pair in method.pairs.items()}


# ------------------------------------------------------------------ an empty hint

UNFIT = {**LIBRARY, "entries": [{**SKILLS[0], "keywords": ["xyz"]}]}
EMPTY: dict[str, dict[str, Any]] = {
    **{name: HINTED[name] for name in ("serl", "rlsd", "opsd", "opsd_legacy", "sdpo")},
    **{
        case: {**HINTED[case], "analyser": {"model": f"{__name__}:no_words"}}
        for case in ("seed", "opid", "skill_sd/hindsight")
    },
    "sdar": UNFIT,
    "skill_sd": UNFIT,
    "serl feedback": {"source": "immediate_feedback"},
    "opsd feedback": {"context": "feedback"},
    "sdpo feedback": {"feedback": True},
}


def no_words() -> Callable[[Any], str]:
    """An analyser that writes a skill without words."""
    return lambda chat: json.dumps({"episode_skill": " \n"})


@pytest.mark.parametrize("case", EMPTY)
def test_o24_with_an_empty_hint_the_teacher_is_the_student(case: str) -> None:
    """Nobody won, no skill has words or fits, the environment answered with blanks."""
    name = _name(case)
    config = config_with(case, EMPTY[case])
    turns = [
        replace(t, success=False, task_score=0.0, reward=0.0, next_observation=" \n")
        for t in _played()
    ]
    model = small.model()
    method = made(config, model)
    rollouts = rollouts_of(turns)
    prompts = teacher_prompts(method, rollouts, model)
    assert [p.ids for p in prompts] == [t.prompt_ids for t in turns]
    assert not any(p.on or p.truncated for p in prompts)
    rows = [rescored(turn, prompt) for turn, prompt in zip(turns, prompts, strict=True)]
    teacher = score_segments(teacher_of(method, model), rows, LIMITS)
    for found, turn in zip(teacher, turns, strict=True):
        own = torch.tensor(turn.logprobs, dtype=found.dtype)
        torch.testing.assert_close(found, own, rtol=0, atol=1e-5)
    method.prepare(rollouts, model)
    assert trained_rows(method) == {}
    assert method.metrics()[COVERAGE.get(name, f"{name}/rows_on")] == 0.0


def test_o24_a_title_without_words_is_no_hint() -> None:
    student = small.student(config_for("serl"))
    turn = turns_for("serl")[0]
    for sections in ((), (Section("A hint", ""),), (Section("A", " "), Section("B", "\n"))):
        prompt = with_sections(student, turn, sections, max_tokens=4096)
        assert prompt == TeacherPrompt(turn.prompt_ids, False)


# ------------------------------------------------------------------ a hint


def chat_student(config: Config) -> Student:
    chat = config.replace(**{"prompt.template": "field", "prompt.max_prompt_tokens": 20_000})
    return small.student_for(chat, ByteTokenizer())


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("case", HINTED)
def test_o24_with_a_hint_the_scored_tokens_are_the_same(case: str, chat: bool) -> None:
    """The sampled ids, all of them, behind the whole prompt; in a chat behind its last marker."""
    config, model = config_for(case), small.model()
    student = chat_student(config) if chat else small.student(config)
    turns = turns_for(case, student)
    section = (
        {"max_prompt_tokens": 20_000} if hasattr(_section(config), "max_prompt_tokens") else {}
    )
    method = made(config_for(case, **section), model, student)
    rollouts = rollouts_of(turns)
    if not chat:
        prompts = teacher_prompts(method, rollouts, model)
    else:  # the small policy cannot read bytes, so nothing is scored
        prompts = _unscored(method, rollouts, model)
    on = [i for i, prompt in enumerate(prompts) if prompt.on]
    assert on == [i for i in range(len(turns)) if i not in untold_places(turns)]
    for i in on:
        row = rescored(turns[i], prompts[i], i)
        scored = [id_ for id_, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
        assert scored == list(turns[i].response_ids)
        assert row.ids == (*prompts[i].ids, *turns[i].response_ids)
        assert row.temperature == turns[i].temperature == 0.8
        assert len(prompts[i].ids) > len(turns[i].prompt_ids)
        if chat:
            text = student.tokenizer.decode(list(prompts[i].ids))
            assert text.endswith("[assistant]")
            assert text.count("[assistant]") == 1


def _section(config: Config) -> Any:
    ((_, section),) = config.auxiliary.active()
    return section


def _unscored(method: Any, rollouts: Rollouts, model: Any) -> list[TeacherPrompt]:
    if isinstance(method, Opid):
        method.hindsight.read(rollouts, model)
        return list(method.hindsight.prompts("episode"))
    return teacher_prompts(method, rollouts, model)


@pytest.mark.parametrize("case", HINTED)
def test_o24_what_is_scored_is_the_hinted_prompt_and_the_hint_matters(case: str) -> None:
    config, model = config_for(case), small.model()
    turns = turns_for(case)
    method, rollouts = made(config, model), rollouts_of(turns)
    prompts = teacher_prompts(method, rollouts, model)
    method.prepare(rollouts, model)
    rows = trained_rows(method)
    told = [i for i in range(len(turns)) if i not in untold_places(turns)]
    assert sorted(rows) == told
    for i, row in rows.items():
        expected = rescored(turns[i], prompts[i], i)
        if row is not None:
            assert (row.ids, row.temperature) == (expected.ids, expected.temperature)
    hinted = [rescored(turns[i], prompts[i]) for i in told]
    values = score_segments(model, hinted, LIMITS)
    gaps = [
        float((value - torch.tensor(turns[i].logprobs)).abs().max())
        for i, value in zip(told, values, strict=True)
    ]
    assert min(gaps) > 1e-4, "a hint that changes nothing tests nothing"
    kept = method._teachers["episode"] if isinstance(method, Opid) else None
    for i, value in zip(told, values, strict=True):
        if kept is not None:
            torch.testing.assert_close(kept[i], value, rtol=0, atol=1e-5)


# ------------------------------------------------------------------ no hint


@pytest.mark.parametrize("case", HINTED)
def test_o24_without_a_hint_a_trajectory_trains_nothing_and_is_counted(case: str) -> None:
    """Of all trajectories one is told nothing: the share of turns with a hint lacks its turns."""
    config, model = config_for(case), small.model()
    turns = turns_for(case)
    untold = untold_places(turns)
    method = made(config, model)
    method.prepare(rollouts_of(turns), model)
    assert len(untold) > 0
    assert set(trained_rows(method)) == set(range(len(turns))) - set(untold)
    name = _name(case)
    share = method.metrics()[COVERAGE.get(name, f"{name}/rows_on")]
    assert share == pytest.approx(1 - len(untold) / len(turns), abs=1e-12)
    # a step of this trajectory alone has no term and no pass
    step = Step(0, 0, 0, 1, tuple(untold))
    assert method.token_term(step) is None
    assert not method.has_pass(step)


@pytest.mark.parametrize("case", HINTED)
def test_o24_without_a_hint_the_advantages_are_those_of_the_base(case: str) -> None:
    """Those of the whole iteration, and those of a micro-batch with told turns beside it."""
    config, model = config_for(case, **_felt(case)), small.model()
    turns = turns_for(case)
    untold = untold_places(turns)
    method = made(config, model)
    rollouts = rollouts_of(turns)
    method.prepare(rollouts, model)
    before = [torch.full((len(t.response_ids),), 0.5, dtype=torch.float64) for t in turns]
    shaped = method.shaped([row.clone() for row in before])
    changed = {i for i, (a, b) in enumerate(zip(before, shaped, strict=True)) if not a.equal(b)}
    assert changed.isdisjoint(untold)
    assert bool(changed) == (case in ("rlsd", "opid"))
    batch = collate(list(rollouts.segments))
    everyone = tuple(range(len(turns)))
    term = method.token_term(Step(0, 0, 0, 1, everyone))
    if term is None:
        return
    adv_B_T = torch.full(batch.mask_B_T.shape, 0.5) * batch.mask_B_T
    new_B_T = token_logprobs(model, batch).logprobs.detach().double()
    found = term.advantages(adv_B_T.double(), new_B_T, batch, everyone)
    differs = (found != adv_B_T).any(dim=1)
    assert not differs[untold].any()
    assert bool(differs.any()) == (case == "serl")


def _felt(case: str) -> dict[str, Any]:
    return {"weight": 1.0} if case == "opid" else {}


@pytest.mark.parametrize("case", [c for c in HINTED if c not in ("rlsd", "opid", "sdpo", "opsd")])
def test_o24_without_a_hint_no_gradient_reaches_the_trajectory(case: str) -> None:
    """The loss of a micro-batch of everybody, differentiated by each log-prob."""
    config = config_for(case, **({"act_weight": 0.5} if case == "serl" else {}))
    model, turns = small.model(), turns_for(case)
    untold = untold_places(turns)
    method = made(config, model)
    rollouts = rollouts_of(turns)
    method.prepare(rollouts, model)
    everyone = tuple(range(len(turns)))
    term = method.token_term(Step(0, 0, 0, 1, everyone))
    batch = collate(list(rollouts.segments))
    new_B_T = token_logprobs(model, batch).logprobs.detach().double().requires_grad_()
    loss = term.loss(new_B_T, batch, everyone)
    assert loss is not None
    (grad,) = torch.autograd.grad(loss, new_B_T)
    rows = (grad != 0).any(dim=1)
    assert not rows[untold].any()
    assert rows[[i for i in everyone if i not in untold]].any()
    rest = collate([rollouts.segments[i] for i in untold])
    cut = new_B_T[untold][:, : rest.mask_B_T.shape[1]]
    own_loss = term.loss(cut, rest, tuple(untold))
    assert own_loss is None or float(own_loss.detach()) == 0.0


@pytest.mark.parametrize("case", HINTED)
def test_o24_without_a_hint_the_rl_step_is_unchanged(case: str) -> None:
    """The gradient of a step of this trajectory, with the method and without it, bit for bit."""
    config, model = config_for(case, **_felt(case)), small.model()
    turns = turns_for(case)
    untold = untold_places(turns)
    method = made(config, model)
    rollouts = rollouts_of(turns)
    method.prepare(rollouts, model)
    plain = [torch.full((len(t.response_ids),), 0.5, dtype=torch.float64) for t in turns]
    step = Step(0, 0, 0, 1, tuple(untold))
    term = method.token_term(step)
    shaped = list(method.shaped([row.clone() for row in plain]))
    found = _gradient(model, config, rollouts, untold, shaped, [] if term is None else [term])
    expected = _gradient(model, config, rollouts, untold, plain, [])
    assert expected.abs().max() > 0
    assert torch.equal(found, expected)


def _gradient(
    model: Any,
    config: Config,
    rollouts: Rollouts,
    places: Sequence[int],
    advantages: Sequence[Tensor],
    terms: Sequence[Any],
) -> Tensor:
    segments = [rollouts.segments[i] for i in places]
    own = [advantages[i] for i in places]
    base = BaseStep(segments, tuple(places), own, None, list(terms), 1.0)
    model.zero_grad()
    base_backward(model, base, config.objective, LIMITS, LossStats())
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


# ------------------------------------------------------------------ what was loaded


@pytest.mark.parametrize("name", ["sdar", "skill_sd"])
def test_o24_every_type_of_task_says_how_many_hints_it_loaded(name: str) -> None:
    """Zero for a type is an error that names the type and the way out, unless allowed."""
    two = [*SKILLS, {"name": "lamp", "text": "switch it on", "keywords": ["look"]}]
    turns = [
        replace(t, goal="look", task_type="looking")
        if t.uid == "0.0"
        else replace(t, goal="xyz", task_type="other")
        for t in _played()
    ]
    for k in (1, 2):
        method = made(config_for(name, entries=two, k=k), small.model())
        method.prepare(rollouts_of(turns), small.model())
        figures = method.metrics()
        assert figures[f"{name}/loaded/looking"] == float(k)
        assert figures[f"{name}/loaded/other"] == 0.0
    strict = made(config_for(name, entries=two, allow_missing=False), small.model())
    with pytest.raises(ConfigError, match=rf"auxiliary.{name} .*'other'.*allow_missing=true"):
        strict.prepare(rollouts_of(turns), small.model())


@pytest.mark.parametrize("name", ["sdar", "skill_sd"])
@pytest.mark.parametrize("text", ["", " \n\t"])
def test_o24_a_skill_without_words_is_an_error(name: str, text: str, tmp_path: Path) -> None:
    """It would count as loaded, and its teacher would be shown a title with nothing below."""
    entries = [*SKILLS, {"name": "hollow", "text": text, "keywords": ["put"]}]
    with pytest.raises(ConfigError, match=r"text of the skill 'hollow' is blank"):
        made(config_for(name, entries=entries), small.model())
    path = tmp_path / "skills.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(ConfigError, match=r"text of the skill 'hollow' is blank"):
        made(config_for(name, entries=(), skills=str(path)), small.model())


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "a", "text": None},
        {"name": None, "text": "b"},
        {"name": "a", "text": "b", "keywords": "put"},
        {"name": "a", "text": "b", "keywords": [1]},
    ],
)
def test_o24_a_library_of_other_things_than_texts_is_an_error(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    """A null is no skill called "None", and one keyword is not three of one letter."""
    path = tmp_path / "skills.json"
    path.write_text(json.dumps([entry]))
    with pytest.raises(ConfigError, match=r"is no library of skills.*other things than texts"):
        made(config_for("sdar", entries=(), skills=str(path)), small.model())
