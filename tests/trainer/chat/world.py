"""The small world of `tests.trainer.small` with a policy that has a chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.trainer import small
from tests.trainer.chat.templates import CHATML, SPECIAL
from trainer.config import Config
from trainer.generation.base import Generation, GenerationRequest
from trainer.methods.privileged import prompt_view
from trainer.models.tiny import TinyConfig, build_model, save_policy, train_tokenizer
from trainer.rollouts.data import Turn
from trainer.rollouts.rollout import Episode, PlaySettings, Student, Trajectory, play
from trainer.runs.folder import make_student, template_of
from trainer.supervised.demonstrations import demonstrate, demonstration_texts
from trainer.worlds.tasks import make_env, split_tasks, tasks_at


@lru_cache(maxsize=1)
def _texts() -> tuple[str, ...]:
    config = small.small_config()
    env = make_env(config.env, small.games(), "train")
    tasks = split_tasks(config.env, small.games(), "train")
    shown = [demonstrate(env, task, config.warmstart) for task in tasks]
    return tuple(demonstration_texts(shown, template_of(config)))


@lru_cache(maxsize=8)
def tokenizer(template: str = CHATML) -> Any:
    tok = train_tokenizer(_texts(), 400)
    tok.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": list(SPECIAL)})
    tok.chat_template = template
    return tok


def model(seed: int = 0, std: float = 0.3) -> Any:
    tok = tokenizer()
    return build_model(
        len(tok),
        TinyConfig(32, 48, 2, 2, 1, 4096, std),
        seed=seed,
        pad_id=tok.pad_token_id,
        end_id=tok.eos_token_id,
    )


def policy(folder: Path, template: str = CHATML) -> Path:
    """A folder with a policy that nobody trained."""
    if not folder.exists():
        save_policy(folder, model(), tokenizer(template))
    return folder


def config(path: Path | str = "some chat model", **overrides: Any) -> Config:
    chat = {"prompt__context": "chat", "prompt__max_prompt_tokens": 3000}
    return small.small_config(model__path=str(path), **(chat | overrides))


def student(template: str = CHATML, **overrides: Any) -> Student:
    return make_student(config(**overrides), None, tokenizer(template))


class Talker:
    """Replies with the text that `say` gives for (request, number of the call).

    Records every request. A reply is cut at `max_new_tokens` like a sampled one.
    """

    def __init__(self, say: Callable[[GenerationRequest], str], template: str = CHATML) -> None:
        self.say = say
        self.tok = tokenizer(template)
        self.requests: list[GenerationRequest] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        result = []
        for request in requests:
            self.requests.append(request)
            ids = self.tok.encode(self.say(request), add_special_tokens=False)
            ids = (*ids, self.tok.eos_token_id)[: request.max_new_tokens]
            stopped = ids[-1] == self.tok.eos_token_id
            reason = "stop" if stopped else "length"
            result.append(Generation(ids, (-0.5,) * len(ids), reason))
        return result


def scripted(commands: Sequence[str], thought: str = "") -> Callable[[GenerationRequest], str]:
    script = iter(commands)
    return lambda request: f"<think>{thought}</think><action>{next(script, 'look')}</action>"


def one_episode(
    talker: Any, learner: Student, *, max_new_tokens: int = 64, steps: int = 6, task: int = 0
) -> Trajectory:
    c = config(env__max_steps=steps)
    task_id = split_tasks(c.env, small.games(), "train")[task]
    (trajectory,) = play(
        [Episode(task_id, "g", "t", 0)],
        [make_env(c.env, small.games(), "train")],
        learner,
        talker,
        PlaySettings(max_new_tokens, snapshots=True),
    )
    return trajectory


def rollouts(c: Config, learner: Student, sampler: Any) -> list[Trajectory]:
    """One iteration's groups, as the loop collects them."""
    tasks = tasks_at(split_tasks(c.env, small.games(), "train"), c.rollout.tasks, c.run.seed, 0)
    episodes = [
        Episode(task, f"0.{i}", f"0.{i}.{j}", c.run.seed, 0, i, j)
        for i, task in enumerate(tasks)
        for j in range(c.rollout.rollouts)
    ]
    envs = [make_env(c.env, small.games(), "train") for _ in episodes]
    settings = PlaySettings(c.rollout.max_new_tokens, c.rollout.temperature, snapshots=True)
    return play(episodes, envs, learner, sampler, settings)


def turns_of(trajectories: Sequence[Trajectory]) -> list[Turn]:
    return [turn for trajectory in trajectories for turn in trajectory.turns]


class Planned:
    """The first rollout of every group follows the plan of its task, the others look around.

    Every other reply has a thought, so that templates which drop thoughts have something to drop.
    """

    def __init__(self, c: Config, template: str = CHATML) -> None:
        tasks = split_tasks(c.env, small.games(), "train")
        chosen = tasks_at(tasks, c.rollout.tasks, c.run.seed, 0)
        self.plans = [small.games().walkthrough(task) or () for task in chosen]
        self.talker = Talker(self.say, template)
        self.turn: dict[str, int] = {}

    def say(self, request: GenerationRequest) -> str:
        assert request.session is not None
        _, _, _, task, rollout, _ = request.session.split("/")
        t = self.turn.get(request.session, 0)
        self.turn[request.session] = t + 1
        plan = self.plans[int(task)]
        command = plan[t] if rollout == "0" and t < len(plan) else ("look", "inventory")[t % 2]
        thought = f"step {t} of {rollout}" if t % 2 else ""
        return f"<think>{thought}</think><action>{command}</action>"

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return self.talker.generate(requests)


def mixed(c: Config, template: str = CHATML) -> list[Trajectory]:
    """Rollouts of every group with the first one won and the others lost."""
    found = rollouts(c, student_of(c, template), Planned(c, template))
    assert [t.success for t in found] == [
        j == 0 for _ in range(c.rollout.tasks) for j in range(c.rollout.rollouts)
    ]
    return found


def student_of(c: Config, template: str = CHATML) -> Student:
    return make_student(c, None, tokenizer(template))


def rendered(
    learner: Student, turns: Sequence[Turn], t: int, change: Callable[[int, str], str]
) -> tuple[int, ...]:
    """The prompt of turn `t` as the tokenizer itself renders it from its messages.

    Args:
        turns: of one trajectory; every reply ended with the end-of-turn token.
        change: (number of a message of the user, its text) to the text that is shown.
    """
    messages = []
    for place, turn in enumerate(turns[: t + 1]):
        text = learner.template.message(prompt_view(turn))["content"]
        messages.append({"role": "user", "content": change(place, text)})
        messages.append({"role": "assistant", "content": turn.reply})
    whole = learner.tokenizer.apply_chat_template(
        messages[:-1], add_generation_prompt=True, tokenize=False
    )
    return tuple(learner.tokenizer.encode(whole, add_special_tokens=False))
