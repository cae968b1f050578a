"""Plays episodes with a model that speaks text: `trainer.rollouts.rollout` without token ids.

A reply depends on its own stream, keyed by (seed, trial, task, turn), so neither the number of
environments nor the order of replies changes an outcome of a local policy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium

from agent_envs.prompting import History, ParsedReply, PromptView
from trainer import rng
from trainer.baselines.models import Prompt, ReplyModel, TextReply, TextRequest
from trainer.evaluation.outcomes import Outcome
from trainer.generation.base import SamplerError
from trainer.rollouts.data import CONTEXT_OVERFLOW, WRAPPER_LIMIT

__all__ = [
    "Agent",
    "Situation",
    "TextEpisode",
    "TextSettings",
    "TextTrajectory",
    "Told",
    "play_text",
]


@dataclass(frozen=True, slots=True)
class Told:
    """One finished step of a conversation: the reply as it is kept, and what was shown next."""

    said: str
    shown: str


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a prompt may be made of: what the student has seen, said and noted."""

    view: PromptView
    first_observation: str
    told: tuple[Told, ...] = ()
    notes: tuple[str, ...] = ()


class Agent(Protocol):
    """A way of prompting: from a situation to a prompt, from a reply to a command."""

    @property
    def name(self) -> str: ...

    @property
    def hash(self) -> str:
        """SHA-256 (hex) of all that decides a prompt's text."""
        ...

    @property
    def history_length(self) -> int | None:
        """Past steps that are shown; None: all of them."""
        ...

    @property
    def context(self) -> str: ...

    def prompt(self, situation: Situation) -> Prompt: ...

    def parse(self, reply: str) -> ParsedReply: ...

    def said(self, reply: str, parsed: ParsedReply) -> str:
        """A reply as later prompts show it."""
        ...

    def shown(self, reply: str, observation: str) -> str:
        """The observation that followed a reply, as later prompts show it."""
        ...


@dataclass(frozen=True, slots=True)
class TextSettings:
    """How replies are drawn; a temperature of 0 is greedy."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class TextEpisode:
    """One episode to play; `seed` and `trial` key its draws, `notes` go into its prompts."""

    task_id: str
    seed: int = 0
    trial: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextTrajectory:
    """One finished episode."""

    episode: TextEpisode
    outcome: Outcome
    situation: Situation
    """As it was when the episode ended."""
    commands: tuple[str, ...] = ()


def play_text(
    episodes: Sequence[TextEpisode],
    envs: Sequence[gymnasium.Env[str, str]],
    agent: Agent,
    model: ReplyModel,
    settings: TextSettings,
) -> list[TextTrajectory]:
    """Plays each episode once, `len(envs)` at a time, and returns them in order.

    Raises:
        ValueError: there is no environment.
        SamplerError: the model returned nothing although it was asked.
        EndpointError: a server cannot be used.
    """
    if not envs:
        raise ValueError("play_text() needs at least one environment.")
    waiting, free = deque(enumerate(episodes)), list(envs)[::-1]
    live: dict[int, _Live] = {}
    finished: dict[int, TextTrajectory] = {}
    try:
        while waiting or live:
            while waiting and free:
                place, episode = waiting.popleft()
                live[place] = _Live.start(episode, free.pop(), agent)
                model.submit(place, live[place].request(settings))
            replies = model.collect()
            if not replies:
                raise SamplerError(
                    f"{type(model).__name__}.collect() returned nothing while {len(live)} requests "
                    "are pending; it must wait for one of them."
                )
            for place, reply in replies:
                run = live[place]
                stop_reason = run.take(reply)
                if stop_reason is None:
                    model.submit(place, run.request(settings))
                    continue
                finished[place] = run.finish(stop_reason)
                free.append(run.env)
                del live[place]
    except BaseException:
        model.drop()
        raise
    return [finished[place] for place in sorted(finished)]


@dataclass(slots=True)
class _Live:
    """A running episode."""

    episode: TextEpisode
    env: gymnasium.Env[str, str]
    agent: Agent
    first: str
    observation: str
    info: Mapping[str, Any]
    history: History = field(default_factory=History)
    told: list[Told] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    refused: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    overflow_tokens: int = 0

    @classmethod
    def start(cls, episode: TextEpisode, env: gymnasium.Env[str, str], agent: Agent) -> _Live:
        observation, info = env.reset(options={"task_id": episode.task_id})
        return cls(episode, env, agent, observation, observation, info)

    def situation(self) -> Situation:
        info = self.info
        view = self.history.view(
            info["goal"], self.observation, info["admissible_actions"], info["action_templates"]
        )
        return Situation(view, self.first, tuple(self.told), self.episode.notes)

    def request(self, settings: TextSettings) -> TextRequest:
        e = self.episode
        key = (e.seed, 0, e.task_id, e.trial, len(self.commands), rng.EVALUATE)
        sampled = settings.temperature > 0
        return TextRequest(
            self.agent.prompt(self.situation()),
            settings.max_new_tokens,
            settings.temperature,
            settings.top_p,
            rng.stream(*key) if sampled else None,
            rng.stream_key(*key) % 2**31 if sampled else None,
        )

    def take(self, reply: TextReply) -> str | None:
        """Executes a reply; returns why the episode ended, if it did."""
        if reply.text is None:
            self.overflow_tokens = reply.overflow_tokens
            return CONTEXT_OVERFLOW
        parsed = self.agent.parse(reply.text)
        if not parsed.format_valid:
            reason = parsed.reason or "malformed"
            self.malformed[reason] = self.malformed.get(reason, 0) + 1
        before = self.observation
        self.observation, _, terminated, truncated, self.info = self.env.step(parsed.command)
        valid = bool(self.info["command_valid"])
        self.refused += not valid
        self.commands.append(parsed.command)
        self.told.append(
            Told(
                self.agent.said(reply.text, parsed), self.agent.shown(reply.text, self.observation)
            )
        )
        self.history = self.history.append(before, parsed.command, valid)
        if terminated or truncated:
            return str(self.info["stop_reason"] or WRAPPER_LIMIT)
        return None

    def finish(self, stop_reason: str) -> TextTrajectory:
        outcome = Outcome(
            task_id=self.episode.task_id,
            task_type=self.info["task_type"],
            success=bool(self.info["success"]) and stop_reason != CONTEXT_OVERFLOW,
            score=float(self.info["score"]),
            steps=len(self.commands),
            stop_reason=stop_reason,
            refused=self.refused,
            malformed=self.malformed,
            provenance=dict(self.info["provenance"]),
            trials=self.episode.trial + 1,
            overflow_tokens=self.overflow_tokens,
        )
        return TextTrajectory(self.episode, outcome, self.situation(), tuple(self.commands))
