"""Demonstrations of an oracle: episodes it plays, and the same as chat messages for any trainer.

What it simplifies: an oracle that is privileged sees hidden objects, so some of its commands cannot
be inferred from the prompt. A plain demonstration never contains a refused command, and a policy
cloned from such demonstrations repeats inadmissible commands for ever; therefore some steps may be
replaced by random admissible and by inadmissible commands. These enter the history and are never
trained.

What is recorded is what the student would have seen: the privileged view goes to the oracle and
nowhere else. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium

from agent_envs.prompting import History, PromptTemplate, PromptView, command_verb
from agent_envs.prompting.chat import ChatTemplate, Conversational
from oracles.base import HistoryItem, Oracle, Planner, PlanStatus
from trainer import rng
from trainer.worlds.environments import PLANNER
from trainer.worlds.oracles import make_oracle

__all__ = [
    "Demonstration",
    "Noise",
    "chat_turns",
    "demonstrate",
    "demonstration_texts",
    "trajectory_chat",
]

Messages = list[dict[str, str]]


class Noise(Protocol):
    """What `demonstrate` reads of `WarmstartConfig`: shares of replaced steps, and the seed."""

    @property
    def random_share(self) -> float: ...

    @property
    def inadmissible_share(self) -> float: ...

    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstrated episode.

    Attributes:
        task_id: the task.
        decisions: (what the student would see, the oracle's command), one for each step that
            the oracle took. Injected steps are in the views' histories only.
        steps: all of the episode likewise, injected ones with the command that was sent.
        success: the episode was won.
        injected, refused: replaced steps, and how many of all steps the env refused.
        provenance: what the env says about itself.
    """

    task_id: str
    decisions: tuple[tuple[PromptView, str], ...]
    success: bool
    injected: int
    refused: int
    provenance: Mapping[str, object] = field(default_factory=dict)
    steps: tuple[tuple[PromptView, str], ...] = ()


def demonstrate(
    env: gymnasium.Env[str, str],
    task_id: str,
    config: Noise,
    index: int = 0,
    *,
    hidden: Collection[str] = (),
    planner: Oracle[Any] | None = None,
) -> Demonstration:
    """Plays one episode: the oracle's next command, with some steps replaced.

    The draws come from the stream (config.seed, task, index, "warmstart"). Refused replacements are
    never of the `hidden` verbs, which the prompt does not list; random ones are never `help`, whose
    long answer would only fill the window. Where nothing can be listed, as on WebShop's first page,
    no random command is drawn. An episode in which the oracle (None: the environment's own planner)
    has no way left, or not within the remaining steps, ends there.
    """
    replaced = config.random_share + config.inadmissible_share
    draws = rng.stream(config.seed, task=task_id, rollout=index, purpose=rng.WARMSTART)
    if planner is None:
        assert env.spec is not None, "made by gymnasium.make"
        planner = make_oracle(PLANNER, None, env.spec.id)
    observation, info = env.reset(options={"task_id": task_id})
    provenance = info["provenance"]
    guide = _Guide(planner)
    history = History()
    decisions: list[tuple[PromptView, str]] = []
    steps: list[tuple[PromptView, str]] = []
    offered: dict[str, None] = {}
    injected = refused = 0
    done = False
    while not done:
        admissible: tuple[str, ...] = info["admissible_actions"]
        wanted = guide.next(env, history, observation, info["steps_left"])
        if wanted is None:
            break
        listed = [command for command in admissible if command_verb(command) not in hidden]
        stale = [command for command in offered if command not in admissible]
        offered.update(dict.fromkeys(listed))
        # `help` answers with a page of text that no policy needs to read.
        choices = [command for command in admissible if command != "help"]
        view = history.view(info["goal"], observation, admissible, info["action_templates"])
        kind = draws.random()
        if kind < config.random_share and choices:
            command = choices[int(draws.integers(len(choices)))]
        elif config.random_share <= kind < replaced and stale:
            # Offered earlier in the episode and no longer: the refusals a policy really earns.
            command = stale[int(draws.integers(len(stale)))]
        else:
            command = wanted
            decisions.append((view, command))
        steps.append((view, command))
        following, _, terminated, truncated, info = env.step(command)
        if command != wanted:
            injected += 1
            guide.surprised()
        valid = bool(info["command_valid"])
        refused += not valid
        history = history.append(observation, command, valid)
        observation, done = following, terminated or truncated
    success = bool(info["success"])
    return Demonstration(
        task_id, tuple(decisions), success, injected, refused, provenance, tuple(steps)
    )


class _Guide:
    """The oracle's next command: along a plan where it lays out the whole way, else one by one."""

    def __init__(self, oracle: Oracle[Any]) -> None:
        self._oracle = oracle
        self._plan: list[str] = []
        self._state: Any = None
        self._begun = False

    def next(
        self, env: gymnasium.Env[str, str], history: History, observation: str, steps_left: int
    ) -> str | None:
        """The command; None where the oracle has no way on."""
        unwrapped: Any = env.unwrapped
        oracle = self._oracle
        # A planner that is not privileged plans from what was seen: only `act` gives it that.
        if oracle.privileged and isinstance(oracle, Planner):
            if not self._plan:
                plan = oracle.plan(unwrapped.privileged(), steps_left, None)
                if plan.status is not PlanStatus.FOUND:
                    return None
                self._plan = list(plan.actions)
            return self._plan.pop(0)
        view = unwrapped.privileged() if oracle.privileged else None
        if not self._begun:
            past = tuple(HistoryItem(*item) for item in history.items)
            self._state, self._begun = oracle.start(view, past), True
        decision, self._state = oracle.act(self._state, view, observation)
        return decision.action if decision.status is PlanStatus.FOUND else None

    def surprised(self) -> None:
        """Another command was sent than the last one that was proposed."""
        self._plan, self._begun = [], False


# ------------------------------------------------------------------------------ as texts


def demonstration_texts(
    demonstrations: Sequence[Demonstration], template: PromptTemplate
) -> Iterator[str]:
    """Prompts and replies as the policy will see them: what a fresh tokenizer is trained on."""
    for demonstration in demonstrations:
        for messages in chat_turns(demonstration, template):
            yield from (message["content"] for message in messages)


def chat_turns(demonstration: Demonstration, template: PromptTemplate) -> Iterator[Messages]:
    """Of each step of the oracle: the turn's whole prompt, and the reply as assistant."""
    for view, command in demonstration.decisions:
        yield [*_prompt(view, template), _reply(command, template)]


def trajectory_chat(demonstration: Demonstration, template: PromptTemplate) -> Messages:
    """The episode as one growing chat: the first prompt, a reply, what came of it, a reply, ...

    The messages are those of a run in the context `chat`.

    Raises:
        ValueError: steps were replaced, which a chat would train as the assistant's; or the
            template speaks no conversations.
    """
    if demonstration.injected:
        raise ValueError(
            f"{demonstration.injected} steps of {demonstration.task_id} were replaced; a chat of "
            "the whole episode would train them. Demonstrate without replacements."
        )
    if not isinstance(template, Conversational):
        raise ValueError(f"the template {template.name!r} speaks no conversations")
    chat = ChatTemplate(template)
    messages: Messages = []
    for view, command in demonstration.decisions:
        said = chat.message(view)
        messages += [
            {"role": said["role"], "content": said["content"]},
            _reply(command, template),
        ]
    return messages


def _prompt(view: PromptView, template: PromptTemplate) -> Messages:
    if isinstance(template, ChatTemplate):  # what is new at this turn
        message = template.message(view)
        return [{"role": message["role"], "content": message["content"]}]
    rendered = template.render(view)
    if isinstance(rendered, str):
        return [{"role": "user", "content": rendered}]
    return [{"role": message["role"], "content": message["content"]} for message in rendered]


def _reply(command: str, template: PromptTemplate) -> dict[str, str]:
    return {"role": "assistant", "content": template.format_command(command).text}
