"""Plays episodes with a policy: many environments, each with one reply on its way.

Promises (tests/trainer/rollouts/test_rollout.py):

1. No episode waits for another: a reply is acted on when it arrives, the next prompt is sent at
   once, and an environment whose episode ended takes the next one. A sampler that works in rounds
   gets every live episode in every round, and no finished one.
2. A reply depends on its own stream, keyed by (seed, iteration, task, rollout, turn), so the
   number of environments, the order of episodes and the order in which replies arrive change
   nothing.
3. The prompt shows what the student saw: goal, observations, its own commands (refused ones
   included), admissible commands. Nothing else reaches it.
4. Token ids and log-probs are recorded as sampled; nothing is encoded again.
5. Running out of steps is never a success. A prompt that outgrows its limit ends the episode
   with `context_overflow`. Its length is that of the ids that would be sent.
6. In a conversation (`prompt.context: chat`) earlier replies are in the prompt as sampled, see
   `trainer.rollouts.chat`, and requests of an episode share a session of the sampler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium

from agent_envs import Snapshot
from agent_envs.prompting import History, PromptView
from trainer import rng
from trainer.generation.base import (
    Generation,
    GenerationRequest,
    Sampler,
    SamplerError,
    StreamingSampler,
    streaming,
)
from trainer.pools.base import Stepped, step_envs
from trainer.rollouts.chat import NOTHING_SAID, Conversation
from trainer.rollouts.data import CONTEXT_OVERFLOW, WRAPPER_LIMIT, Turn
from trainer.rollouts.student import Student

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

    `provenance` is added to what the env says about itself in every turn. `top_p` below 1 is for
    evaluation only, see `trainer.generation.base`.
    """

    max_new_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    policy_version: int = 0
    snapshots: bool = False  # keep the state before every turn, for branches
    provenance: Mapping[str, object] = field(default_factory=dict)
    top_p: float = 1.0
    sessions: bool = False  # prompts of an episode begin with each other: keep keys and values


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
        overflow_tokens: length of the prompt that did not fit and so ended it; 0: all did.
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
    overflow_tokens: int = 0

    def history_before(self, t: int) -> History:
        """What the student remembered when it took turn `t`."""
        return History(self.history.items[:t])


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
    said: Conversation = NOTHING_SAID
    turns: list[Turn] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)

    def view(self) -> PromptView:
        return self.history.view(
            self.info["goal"],
            self.observation,
            self.info["admissible_actions"],
            self.info["action_templates"],
        )

    def finish(self, stop_reason: str, overflow_tokens: int = 0) -> Trajectory:
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
            overflow_tokens,
        )


def play(
    episodes: Sequence[Episode],
    envs: Sequence[TextEnvironment],
    student: Student,
    sampler: Sampler,
    settings: PlaySettings,
) -> list[Trajectory]:
    """Plays each episode once, `len(envs)` at a time, and returns them in order.

    Raises:
        ValueError: there is no environment.
        TaskNotFound: an episode names an unknown task.
        SamplerError: the sampler cannot go on.
    """
    if not envs:
        raise ValueError("play() needs at least one environment.")
    stream = streaming(sampler)
    try:
        return _Stage(list(episodes), list(envs), student, stream, settings).play()
    except BaseException:
        # Or the next ones who play with this sampler would get these replies.
        stream.drop()
        raise


class _Stage:
    """The running episodes of one call of `play`, by their place in its list."""

    def __init__(
        self,
        episodes: list[Episode],
        envs: list[TextEnvironment],
        student: Student,
        sampler: StreamingSampler,
        settings: PlaySettings,
    ) -> None:
        self.waiting = deque(enumerate(episodes))
        self.free = envs[::-1]
        if student.context == "chat":
            settings = replace(settings, sessions=True)
        self.student, self.sampler, self.settings = student, sampler, settings
        self.live: dict[int, tuple[_Live, tuple[int, ...]]] = {}
        self.finished: dict[int, Trajectory] = {}

    def play(self) -> list[Trajectory]:
        self.fill()
        while self.live:
            replies = self.sampler.collect()
            if not replies:
                raise SamplerError(
                    f"{type(self.sampler).__name__}.collect() returned nothing while "
                    f"{len(self.live)} requests are pending; it must wait for one of them."
                )
            arrived = [(*self.live.pop(key), reply) for key, reply in replies]
            texts = [self.student.reply_text(reply.ids) for _, _, reply in arrived]
            moved = step_envs(
                [run.env for run, _, _ in arrived],
                [self.student.template.parse(text).command for text in texts],
                snapshots=self.settings.snapshots,
            )
            for (run, prompt_ids, reply), text, found in zip(arrived, texts, moved, strict=True):
                stop_reason = _step(
                    run, self.student, prompt_ids, reply, text, found, self.settings
                )
                if stop_reason is None:
                    self.ask(run)
                else:
                    self.end(run, stop_reason)
            self.fill()
        return [self.finished[place] for place in sorted(self.finished)]

    def fill(self) -> None:
        """Starts waiting episodes in free environments."""
        while self.waiting and self.free:
            place, episode = self.waiting.popleft()
            env = self.free.pop()
            observation, info = env.reset(
                seed=env_seed(episode), options={"task_id": episode.task_id}
            )
            provenance = {**info["provenance"], **self.settings.provenance}
            self.ask(_Live(place, episode, env, observation, info, provenance))

    def ask(self, run: _Live) -> None:
        """Sends the next prompt of an episode, or ends it where the prompt does not fit."""
        prompt_ids = self.student.prompt(run.view(), run.said)
        if not self.student.fits(prompt_ids):
            self.end(run, CONTEXT_OVERFLOW, len(prompt_ids))
            return
        self.live[run.place] = (run, prompt_ids)
        self.sampler.submit(run.place, _request(run, prompt_ids, self.settings))

    def end(self, run: _Live, stop_reason: str, overflow_tokens: int = 0) -> None:
        self.finished[run.place] = run.finish(stop_reason, overflow_tokens)
        self.free.append(run.env)


def env_seed(episode: Episode) -> int:
    """Seed of what an environment draws in an episode: the rollouts of a group begin alike."""
    e = episode
    return rng.stream_key(e.seed, e.iteration, e.task, 0, 0, f"{e.purpose}-env") % (1 << 63)


def _request(run: _Live, prompt_ids: tuple[int, ...], settings: PlaySettings) -> GenerationRequest:
    e = run.episode
    stream = None
    if not settings.greedy:
        stream = rng.stream(e.seed, e.iteration, e.task, e.rollout, len(run.turns), e.purpose)
    session = f"{e.purpose}/{e.seed}/{e.iteration}/{e.task}/{e.rollout}/{e.tid}"
    return GenerationRequest(
        prompt_ids,
        stream,
        settings.max_new_tokens,
        settings.temperature,
        settings.greedy,
        session if settings.sessions else None,
        settings.top_p,
    )


def _step(
    run: _Live,
    student: Student,
    prompt_ids: tuple[int, ...],
    reply: Generation,
    text: str,
    found: Stepped,
    settings: PlaySettings,
) -> str | None:
    """Records the turn of an executed reply, and returns why the episode ended, if it did."""
    parsed = student.template.parse(text)
    before = run.info
    run.said = student.answered(run.said, run.view(), prompt_ids, reply.ids)
    if found.before is not None:
        run.snapshots.append(found.before)
    observation, reward, info = found.observation, found.reward, found.info
    done = found.terminated or found.truncated
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
