"""From recorded turns to teachers' prompts with skills in them.

    turns -> episodes -> an analyser's replies -> skills -> the turns' prompts with a skill

Hindsight skills (SEED, OPID) come from an analyser that reads each finished trajectory; static ones
(SDAR) from a library, chosen a task at a time. Prompts are made by `privileged.edited_prompt`, so
they differ from the student's by the skill alone, and one that is longer than the student's may be
is switched off. In chat an episode's skill goes into the first message, which states the task, and
a step's into the message that the step answers. Nothing of this reaches a rollout: streams are the
methods' own.

Axis letters: N trajectories, M turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from agent_envs.errors import DataError
from trainer.auxiliary.analyser import Episode, EpisodeStep, analyser_prompt, reply_error
from trainer.auxiliary.skill_retrieval import (
    ArmStats,
    StaticSkill,
    retrieve_full,
    retrieve_keyword,
    retrieve_random,
    retrieve_ucb,
    skills_text,
)
from trainer.auxiliary.skills import (
    SkillMode,
    SkillReply,
    insert_episode_skill,
    insert_step_skill,
    other_skill,
    parse_skill,
)
from trainer.config.auxiliary.skills import RetrievalConfig
from trainer.errors import ConfigError
from trainer.methods.privileged import Conversations, TeacherPrompt, edited_prompt
from trainer.models.text_model import TextModel
from trainer.rollouts.chat import Conversation
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Student

__all__ = [
    "Analyses",
    "Attempt",
    "Level",
    "RepeatedTurn",
    "analyse_all",
    "attempts_of",
    "library_of",
    "library_prompts",
    "retrieve",
    "shuffled",
    "skill_prompts",
]


Level = Literal["priority", "episode", "step"]


class RepeatedTurn(DataError, ValueError):
    """One turn of a trajectory is there twice: trajectories of different runs, or a copy."""


class Attempt(NamedTuple):
    """One trajectory of the turns.

    Attributes:
        uid, tid: its group and itself.
        rows: indices of its turns, in time order, (K,).
        episode: what an analyser is shown of it.
    """

    uid: str
    tid: str
    rows: tuple[int, ...]
    episode: Episode


@dataclass(frozen=True, slots=True)
class Analyses:
    """What an analyser made of N trajectories.

    Attributes:
        replies: the last reply to each, read; None where it held no object.
        texts: the last replies; None where the trajectory was too long to be asked about.
        calls: answers asked for, of each.
    """

    replies: tuple[SkillReply | None, ...]
    texts: tuple[str | None, ...]
    calls: tuple[int, ...]

    @property
    def valid(self) -> tuple[bool, ...]:
        """Which trajectories have a skill, (N,); there is no substitute for the others."""
        return tuple(reply is not None and reply.ok for reply in self.replies)


def attempts_of(turns: Sequence[Turn]) -> list[Attempt]:
    """The trajectories in recorded turns, in the order of their first turns.

    Args:
        turns: of one iteration of one run: ids are unique there, and nowhere else.

    Raises:
        RepeatedTurn: two turns of one trajectory have the same time.
    """
    rows: dict[tuple[str, str], list[int]] = {}
    seen: dict[tuple[str, str, int], int] = {}
    for m, turn in enumerate(turns):
        first = seen.setdefault((turn.uid, turn.tid, turn.t), m)
        if first != m:
            raise RepeatedTurn(
                f"Turn {turn.t} of trajectory {turn.tid!r} in group {turn.uid!r} is there twice, "
                f"in rows {first} and {m}; expected once. Ids are unique within one iteration of "
                "one run: give the turns of each by themselves."
            )
        rows.setdefault((turn.uid, turn.tid), []).append(m)
    found = []
    for (uid, tid), places in rows.items():
        places.sort(key=lambda m: turns[m].t)
        played = [turns[m] for m in places]
        steps = tuple(
            EpisodeStep(turn.observation, turn.reply, turn.format_valid and turn.command_valid)
            for turn in played
        )
        success = any(turn.success for turn in played)
        found.append(Attempt(uid, tid, tuple(places), Episode(played[0].goal, success, steps)))
    return found


def analyse_all(
    model: TextModel,
    attempts: Sequence[Attempt],
    streams: Callable[[Attempt, int], np.random.Generator],
    *,
    mode: SkillMode = "episode_only",
    calls: int = 2,
    text_limit: int | None = None,
) -> Analyses:
    """`trainer.auxiliary.analyser.analyse` for all trajectories at once.

    Everybody is asked in one call of the model; those whose answer cannot be used are asked again
    together, each told what was wrong with its own.

    Args:
        streams: (trajectory, number of the call) to the stream that the answer is drawn from.
        mode, text_limit: see `trainer.auxiliary.analyser.analyser_prompt`.
        calls: at most, of each.
    """
    count = len(attempts)
    replies: list[SkillReply | None] = [None] * count
    texts: list[str | None] = [None] * count
    made, errors, asked = [0] * count, [""] * count, list(range(count))
    for call in range(calls):
        if not asked:
            break
        chats = [
            analyser_prompt(attempts[n].episode, mode, error=errors[n], text_limit=text_limit)
            for n in asked
        ]
        answers = model.answers(chats, [streams(attempts[n], call) for n in asked])
        again = []
        for n, text in zip(asked, answers, strict=True):
            if text is None:  # too long, and the complaint would only make it longer
                continue
            made[n], texts[n] = call + 1, text
            steps = len(attempts[n].episode.steps) if mode == "episode_step" else 0
            replies[n] = parse_skill(text, steps)
            errors[n] = reply_error(replies[n])
            if errors[n]:
                again.append(n)
        asked = again
    return Analyses(tuple(replies), tuple(texts), tuple(made))


def shuffled(analyses: Analyses, generator: np.random.Generator) -> list[SkillReply | None]:
    """The control: each trajectory with the skill of another one; None where there is none."""
    return [
        None if partner is None else analyses.replies[partner]
        for partner in other_skill(analyses.valid, generator)
    ]


def skill_prompts(
    student: Student,
    turns: Sequence[Turn],
    attempts: Sequence[Attempt],
    replies: Sequence[SkillReply | None],
    level: Level = "priority",
) -> list[TeacherPrompt]:
    """The prompt of every turn with its trajectory's skill, (M,).

    Args:
        replies: of each trajectory; those without a valid skill leave its turns switched off.
        level: "priority": a step's own skill, or else the episode's (SEED); "episode": the
            episode's only; "step": the step's only, off at steps without one (OPID).
    """
    found = [TeacherPrompt(turn.prompt_ids, False) for turn in turns]
    talks = Conversations(student, turns)
    for attempt, reply in zip(attempts, replies, strict=True):
        if reply is None or not reply.ok:
            continue
        for step, m in enumerate(attempt.rows):
            kind, skill = reply.at(step)
            if level == "episode":
                kind, skill = "episode", reply.skill
            elif level == "step" and kind != "step":
                continue
            found[m] = _with_skill(student, turns[m], talks.before(m), kind, skill)
    return found


def _with_skill(
    student: Student, turn: Turn, said: Conversation, kind: str, skill: str
) -> TeacherPrompt:
    def of_step(text: str) -> str:
        return insert_step_skill(text, skill).text

    def of_episode(text: str) -> str:
        return insert_episode_skill(text, skill, turn.goal).text

    if kind == "step":
        return edited_prompt(student, turn, of_step, said=said)
    return edited_prompt(student, turn, of_episode, said=said, first=True)


# ------------------------------------------------------------------------- fixed libraries


def library_of(section: RetrievalConfig, place: str) -> tuple[StaticSkill, ...]:
    """The library of a config: its entries, or the JSON file that it names.

    Raises:
        ConfigError: no such file, or not a list of {"name", "text", "keywords"} with names of
            their own, or a skill without words: its teacher would be told nothing.
    """
    if section.skills is None:
        library = tuple(StaticSkill(e.name, e.text, e.keywords) for e in section.entries)
    else:
        try:
            data = json.loads(Path(section.skills).read_text(encoding="utf-8"))
            library = tuple(_static(item) for item in data)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{place}.skills={section.skills!r} is no library of skills: {error!r}. Give a "
                'JSON file with a list of {"name": ..., "text": ..., "keywords": [...]}; keywords '
                "may be left out."
            ) from error
    names = [skill.name for skill in library]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"{place} needs at least one skill, each with its own name: {names}.")
    blank = [skill.name for skill in library if not skill.text.strip()]
    if blank:
        raise ConfigError(
            f"{place}: the text of the skill {blank[0]!r} is blank, so its teacher would be told "
            "nothing. Write the text, or leave the skill out."
        )
    return library


def _static(item: Any) -> StaticSkill:
    if not isinstance(item, dict) or not {"name", "text"} <= item.keys() <= {
        "name", "text", "keywords",
    }:  # fmt: skip
        raise ValueError(f"an entry {item!r:.80}")
    keywords = item.get("keywords", [])
    texts = [item["name"], item["text"], *(keywords if isinstance(keywords, list) else [None])]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"other things than texts in {item!r:.80}")
    return StaticSkill(item["name"], item["text"], tuple(keywords))


def retrieve(
    section: RetrievalConfig,
    library: Sequence[StaticSkill],
    stats: ArmStats,
    attempts: Sequence[Attempt],
    stream: Callable[[str], np.random.Generator],
) -> dict[str, tuple[StaticSkill, ...]]:
    """Skills of each group: its rollouts are attempts at one task and share them.

    Args:
        stats: what is known of the skills so far; read by "ucb" only.
        stream: a group's own stream.
    """
    chosen: dict[str, tuple[StaticSkill, ...]] = {}
    for attempt in attempts:
        if attempt.uid in chosen:
            continue
        if section.retrieval == "full":
            found = retrieve_full(library)
        elif section.retrieval == "keyword":
            found = retrieve_keyword(library, attempt.episode.task, section.k)
        elif section.retrieval == "random":
            found = retrieve_random(library, section.k, stream(attempt.uid))
        else:
            found = retrieve_ucb(
                library, stats, section.k, stream(attempt.uid), exploration=section.exploration
            )
        chosen[attempt.uid] = found
    return chosen


def library_prompts(
    student: Student,
    turns: Sequence[Turn],
    chosen: dict[str, tuple[StaticSkill, ...]],
) -> list[TeacherPrompt]:
    """The prompt of every turn with the skills of its group, (M,); off where it has none."""
    talks = Conversations(student, turns)
    return [
        _with_skill(student, turn, talks.before(m), "episode", skills_text(chosen[turn.uid]))
        if chosen[turn.uid]
        else TeacherPrompt(turn.prompt_ids, False)
        for m, turn in enumerate(turns)
    ]
