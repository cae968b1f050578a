"""Plays episodes with a policy: many environments, one batch of replies per round.

Promises (tests/trainer/test_rollout.py):

1. Every live episode gets one reply per round; finished ones take no place in the batch.
2. A reply depends on its own stream, keyed by (seed, iteration, task, rollout, turn), so the
   number of environments, the order of episodes and who finishes when change nothing.
3. The prompt shows what the student saw: goal, observations, its own commands (refused ones
   included), admissible commands. Nothing else reaches it.
4. Token ids and log-probs are recorded as sampled; nothing is encoded again.
5. Running out of steps is never a success. A prompt that outgrows its limit ends the episode
   with `context_overflow`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium

import agent_envs
from agent_envs import Snapshot
from agent_envs.prompting import History, PromptTemplate, PromptView
from trainer import rng, tokens
from trainer.data import CONTEXT_OVERFLOW, WRAPPER_LIMIT, Turn
from trainer.generation.base import Generation, GenerationRequest, Sampler
from trainer.tokens import ReplyTarget

__all__ = ["Episode", "PlaySettings", "Student", "Trajectory", "play"]

TextEnvironment = gymnasium.Env[str, str]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode to play. The last four fields key its random streams."""

    task_id: str
    uid: str
    tid: str
    seed: int
    iteration: int = 0
    task: int | str = 0
    rollout: int = 0
    purpose: str = rng.GENERATE


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """How replies are drawn. Greedy replies report log-probs at `temperature`.

    `provenance` is added to what the env says about itself in every turn.
    """

    max_new_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    policy_version: int = 0
    snapshots: bool = False  # keep the state before every turn, for branches
    provenance: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished episode.

    Attributes:
        episode: what was asked for.
        turns: one per model call, in order; empty if the first prompt did not fit.
        snapshots: state before each turn; empty unless asked for.
        history: all exchanges, refused commands included.
        success, score, stop_reason: as the env reported them at the end.
        provenance: of the env that played it.
    """

    episode: Episode
    task_type: str
    turns: tuple[Turn, ...]
    snapshots: tuple[Snapshot, ...]
    history: History
    success: bool
    score: float
    stop_reason: str
    provenance: Mapping[str, object] = field(default_factory=dict)

    def history_before(self, t: int) -> History:
        """What the student remembered when it took turn `t`."""
        return History(self.history.items[:t])


@dataclass(frozen=True, slots=True)
class Student:
    """Everything between an observation and token ids: the one way to make a prompt.

    Rollouts, branches, evaluation and demonstrations all come through here, so that a prompt
    can differ only where the student's own record differs.
    """

    template: PromptTemplate
    tokenizer: Any
    stop_ids: tuple[int, ...]
    max_prompt_tokens: int

    @property
    def end_id(self) -> int:
        """The token that ends a target."""
        return self.stop_ids[0]

    @property
    def pad_id(self) -> int:
        """Fills padding; what it is never matters."""
        pad = self.tokenizer.pad_token_id
        return self.end_id if pad is None else int(pad)

    def prompt(self, view: PromptView) -> tuple[int, ...]:
        """Token ids of a prompt; may exceed `max_prompt_tokens`."""
        return tuple(tokens.encode_prompt(self.template, view, self.tokenizer))

    def fits(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt is within the limit."""
        return len(prompt_ids) <= self.max_prompt_tokens

    def reply_text(self, ids: Sequence[int]) -> str:
        """Text of a sampled reply, without its end token."""
        return tokens.reply_text(self.tokenizer, ids, self.stop_ids)

    def target(self, command: str) -> ReplyTarget:
        """The reply that sends `command`, to be trained on."""
        return tokens.encode_reply(self.template, command, self.tokenizer, self.end_id)

    def command_mask(self, ids: Sequence[int]) -> tuple[bool, ...]:
        """Which tokens of a sampled reply hold the executed command."""
        return tokens.command_mask(self.template, ids, self.tokenizer, self.stop_ids)


@dataclass(slots=True)
class _Live:
    """A running episode."""

    place: int
    episode: Episode
    env: TextEnvironment
    observation: str
    info: Mapping[str, Any]
    provenance: Mapping[str, object]
    history: History = field(default_factory=History)
    turns: list[Turn] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    def view(self) -> PromptView:
        return self.history.view(
            self.info["goal"],
            self.observation,
            self.info["admissible_actions"],
            self.info["action_templates"],
        )

    def finish(self, stop_reason: str) -> Trajectory:
        success = bool(self.info["success"]) and stop_reason != CONTEXT_OVERFLOW
        if self.turns and not self.turns[-1].done:
            self.turns[-1] = replace(
                self.turns[-1],
                done=True,
                stop_reason=stop_reason,
                next_admissible=self.info["admissible_actions"],
            )
        return Trajectory(
            self.episode,
            self.info["task_type"],
            tuple(self.turns),
            tuple(self.snapshots),
            self.history,
            success,
            float(self.info["score"]),
            stop_reason,
            self.provenance,
        )


def play(
    episodes: Sequence[Episode],
    envs: Sequence[TextEnvironment],
    student: Student,
    sampler: Sampler,
    settings: PlaySettings,
) -> list[Trajectory]:
    """Plays each episode once, `len(envs)` at a time, and returns them in order.

    An environment whose episode ended takes the next one at once.

    Raises:
        ValueError: there is no environment.
        TaskNotFound: an episode names an unknown task.
    """
    if not envs:
        raise ValueError("play() needs at least one environment.")
    waiting = deque(enumerate(episodes))
    free = list(reversed(envs))
    live: list[_Live] = []
    finished: dict[int, Trajectory] = {}
    while waiting or live:
        while waiting and free:
            place, episode = waiting.popleft()
            env = free.pop()
            observation, info = env.reset(options={"task_id": episode.task_id})
            provenance = {**info["provenance"], **settings.provenance}
            live.append(_Live(place, episode, env, observation, info, provenance))
        still: list[_Live] = []
        ready: list[tuple[_Live, tuple[int, ...]]] = []
        for run in live:
            prompt_ids = student.prompt(run.view())
            if student.fits(prompt_ids):
                ready.append((run, prompt_ids))
            else:
                finished[run.place] = run.finish(CONTEXT_OVERFLOW)
                free.append(run.env)
        replies = sampler.generate([_request(run, ids, settings) for run, ids in ready])
        for (run, prompt_ids), reply in zip(ready, replies, strict=True):
            stop_reason = _step(run, student, prompt_ids, reply, settings)
            if stop_reason is None:
                still.append(run)
            else:
                finished[run.place] = run.finish(stop_reason)
                free.append(run.env)
        live = still
    return [finished[place] for place in range(len(episodes))]


def _request(run: _Live, prompt_ids: tuple[int, ...], settings: PlaySettings) -> GenerationRequest:
    e = run.episode
    stream = None
    if not settings.greedy:
        stream = rng.stream(e.seed, e.iteration, e.task, e.rollout, len(run.turns), e.purpose)
    return GenerationRequest(
        prompt_ids, stream, settings.max_new_tokens, settings.temperature, settings.greedy
    )


def _step(
    run: _Live,
    student: Student,
    prompt_ids: tuple[int, ...],
    reply: Generation,
    settings: PlaySettings,
) -> str | None:
    """Executes one reply, records the turn, and returns why the episode ended, if it did."""
    text = student.reply_text(reply.ids)
    parsed = student.template.parse(text)
    before = run.info
    if settings.snapshots:
        run.snapshots.append(agent_envs.snapshot(run.env))
    observation, reward, terminated, truncated, info = run.env.step(parsed.command)
    done = terminated or truncated
    # `terminated` alone would count a lost end as a win, and `truncated` may come with a win.
    stop_reason = (info["stop_reason"] or WRAPPER_LIMIT) if done else None
    run.turns.append(
        Turn(
            uid=run.episode.uid,
            tid=run.episode.tid,
            t=len(run.turns),
            task_id=info["task_id"],
            task_type=info["task_type"],
            goal=info["goal"],
            observation=run.observation,
            next_observation=observation,
            anchor=run.observation,
            admissible=before["admissible_actions"],
            command=parsed.command,
            reply=text,
            format_valid=parsed.format_valid,
            command_valid=bool(info["command_valid"]),
            parse_reason=parsed.reason,
            reward=float(reward),
            task_score=float(info["score"]),
            success=bool(info["success"]),
            done=done,
            stop_reason=stop_reason,
            prompt_ids=prompt_ids,
            response_ids=reply.ids,
            logprobs=reply.logprobs,
            temperature=settings.temperature,
            policy_version=settings.policy_version,
            steps_left=before["steps_left"],
            history=tuple(run.history.last(student.template.history_length)),
            action_templates=before["action_templates"],
            next_admissible=info["admissible_actions"] if done else (),
            finish_reason=reply.finish_reason,
            provenance=run.provenance,
        )
    )
    run.history = run.history.append(run.observation, parsed.command, bool(info["command_valid"]))
    run.observation, run.info = observation, info
    return stop_reason
