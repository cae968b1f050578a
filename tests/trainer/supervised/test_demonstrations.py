"""Promises of demonstrations, and of warm-starting a model that was given:

1. Any oracle demonstrates, by name or as `module:factory`; one that is not privileged is given
   nothing but what the student saw.
2. Texts depend on what was seen alone: two worlds that differ in hidden things only give the same.
3. A given model of transformers with a chat template is trained through that template, in place,
   on command, closing tag and end token.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch

from agent_envs.prompting import get_template
from oracles.base import Decision, History, PlanStatus
from tests.trainer import small
from tests.trainer.test_no_leak import _commands, _config, _first_difference, _pairs
from trainer.config import ConfigError, WarmstartConfig
from trainer.runs.folder import make_student
from trainer.supervised.demonstrations import (
    Demonstration,
    chat_turns,
    demonstrate,
    demonstration_texts,
    trajectory_chat,
)
from trainer.supervised.warmstart import segments, warm_given
from trainer.worlds.oracles import make_oracle
from trainer.worlds.tasks import make_env, split_tasks

CLEAN = WarmstartConfig(random_share=0.0, inadmissible_share=0.0)
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def chat_tokenizer() -> Any:
    tokenizer = copy.deepcopy(small.tokenizer())
    tokenizer.chat_template = CHAT
    return tokenizer


def _world(**changes: Any) -> tuple[Any, Any, list[str]]:
    config = small.small_config(env__max_steps=30, **changes)
    env = make_env(config.env, small.games(), "train")
    return config, env, list(split_tasks(config.env, small.games(), "train"))


# ------------------------------------------------------------------------------ oracles


@pytest.mark.parametrize("name", ["planner", "explorer"])
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_every_oracle_by_name_demonstrates(name: str, noise: float) -> None:
    config, env, tasks = _world()
    oracle = make_oracle(name, None, config.env.id)
    settings = WarmstartConfig(random_share=noise, inadmissible_share=noise)
    shown = [demonstrate(env, task, settings, planner=oracle) for task in tasks[:4]]
    assert shown == [demonstrate(env, task, settings, planner=oracle) for task in tasks[:4]]
    assert sum(d.success for d in shown) >= 3
    assert sum(d.injected for d in shown) > 0 if noise else all(not d.injected for d in shown)
    for demonstration in shown:
        assert all(command in view.admissible for view, command in demonstration.decisions)


class _Watcher:
    """Not privileged; keeps what it is given."""

    privileged = False

    def __init__(self) -> None:
        self.given: list[Any] = []

    def start(self, view: Any, history: History) -> int:
        self.given.append((view, history))
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Decision, int]:
        self.given.append((view, observation))
        if state == 3:
            return Decision(PlanStatus.UNSOLVABLE, None), state
        return Decision(PlanStatus.FOUND, ("inventory", "look")[state % 2]), state + 1


def test_an_oracle_that_is_not_privileged_gets_no_view() -> None:
    _, env, tasks = _world()
    oracle = _Watcher()
    shown = demonstrate(env, tasks[0], CLEAN, planner=oracle)
    assert [command for _, command in shown.decisions] == ["inventory", "look", "inventory"]
    assert not shown.success
    assert all(view is None for view, _ in oracle.given)
    assert len(oracle.given) == 5, "begun once, asked four times"


def test_an_oracle_begins_anew_behind_a_command_that_was_not_its_own() -> None:
    _, env, tasks = _world()
    oracle = _Watcher()
    settings = WarmstartConfig(random_share=0.5, inadmissible_share=0.0)
    shown = demonstrate(env, tasks[0], settings, planner=oracle)
    begun = [told for _, told in oracle.given if isinstance(told, tuple)]
    assert shown.injected > 0
    assert len(begun) > 1
    assert [len(history) for history in begun] == sorted({len(history) for history in begun})
    # What it is told ends with the foreign command.
    own = {view.step for view, _ in shown.decisions}
    assert all(len(history) - 1 not in own for history in begun[1:])


# ------------------------------------------------------------------------------ texts


class _Script:
    """Privileged, with a script: the same commands in both worlds."""

    privileged = True

    def __init__(self, commands: list[str]) -> None:
        self.commands = commands

    def start(self, view: Any, history: History) -> int:
        assert view is not None
        return 0

    def act(self, state: int, view: Any, observation: str) -> tuple[Decision, int]:
        if state == len(self.commands):
            return Decision(PlanStatus.UNSOLVABLE, None), state
        return Decision(PlanStatus.FOUND, self.commands[state]), state + 1


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("whole", [False, True])
def test_texts_depend_on_what_was_seen_alone(number: int, whole: bool) -> None:
    pair = _pairs()[number]
    commands, template = _commands(pair), get_template("field")
    shown = [
        demonstrate(
            make_env(_config().env, games, "train"), pair.task_id, CLEAN, planner=_Script(commands)
        )
        for games in (pair.left, pair.right)
    ]
    left, right = (
        [trajectory_chat(d, template)[i : i + 2] for i in range(0, 2 * len(commands), 2)]
        if whole
        else list(chat_turns(d, template))
        for d in shown
    )
    opened = commands.index(f"open {pair.source}")
    # What is behind the door is in the prompt after it was opened, and in none before.
    assert _first_difference([str(m) for m in left], [str(m) for m in right]) == opened + 1


class _OneGoal(gymnasium.Wrapper[str, str, str, str]):
    """A shop in which every task is the same goal."""

    def __init__(self, env: Any, goal: dict[str, Any]) -> None:
        super().__init__(env)
        self.goal = goal

    def reset(self, **_: Any) -> tuple[str, dict[str, Any]]:
        return self.env.reset(options={"goal": self.goal})


@pytest.mark.parametrize("whole", [False, True])
def test_texts_of_a_shop_hold_nothing_of_the_goal_but_its_sentence(whole: bool) -> None:
    sentence = "Find me a white lamp, and price lower than 20.00 dollars"
    hidden = [
        {"attributes": ["easy clean"], "goal_options": {"color": "white"}},
        {"attributes": ["long lasting", "non slip"], "goal_options": {"size": "small"}},
    ]
    script = ["search[white lamp]", "click[next >]", "click[back to search]", "search[easy]"]
    template = get_template("field", pages="webshop")
    texts, views = [], []
    for kept in hidden:
        goal = {"instruction_text": sentence, "price_upper": 20.0, **kept}
        env = _OneGoal(gymnasium.make("SeroWebShop-v0", data="generated:small"), goal)
        shown = demonstrate(env, "any", CLEAN, planner=_Script(script))
        assert len(shown.decisions) == len(script)
        texts.append(
            trajectory_chat(shown, template) if whole else list(chat_turns(shown, template))
        )
        unwrapped: Any = env.unwrapped
        views.append(unwrapped.privileged().goal)
    assert views[0] != views[1], "the oracle can tell the goals apart"
    assert texts[0] == texts[1]


def test_a_turn_is_the_policys_own_prompt_and_reply() -> None:
    _, env, tasks = _world()
    template = get_template("field", history_length=2)
    shown = demonstrate(env, tasks[0], CLEAN)
    turns = list(chat_turns(shown, template))
    assert len(turns) == len(shown.decisions)
    for (view, command), messages in zip(shown.decisions, turns, strict=True):
        assert messages[:-1] == template.render(view)
        assert messages[-1]["role"] == "assistant"
        parsed = template.parse(messages[-1]["content"])
        assert (parsed.command, parsed.format_valid) == (command, True)
    texts = list(demonstration_texts([shown], template))
    assert texts == [message["content"] for messages in turns for message in messages]


@pytest.mark.parametrize("name", ["field", "compact"])
def test_a_chat_grows_by_what_is_new(name: str) -> None:
    _, env, tasks = _world()
    shown = next(d for d in (demonstrate(env, t, CLEAN) for t in tasks) if len(d.decisions) > 2)
    messages = trajectory_chat(shown, get_template(name))
    roles = ["user", "assistant"] * len(shown.decisions)
    assert [message["role"] for message in messages] == roles
    for (view, command), (user, assistant) in zip(
        shown.decisions, _pairs_of(messages), strict=True
    ):
        assert command in assistant["content"]
        # `compact` shortens the first observation; later ones stand there as they are.
        assert view.step == 0 or view.observation in user["content"]
        earlier = [text for text, _ in view.history if text not in view.observation]
        assert not any(text in user["content"] for text in earlier)


def _pairs_of(messages: list[dict[str, str]]) -> list[tuple[dict[str, str], dict[str, str]]]:
    return list(zip(messages[::2], messages[1::2], strict=True))


def test_a_chat_with_replaced_steps_is_refused() -> None:
    shown = Demonstration("t", (), success=True, injected=2, refused=1)
    with pytest.raises(ValueError, match="2 steps of t were replaced"):
        trajectory_chat(shown, get_template("field"))


# ------------------------------------------------------------------------------ a given model


def _given(**changes: Any) -> Any:
    return small.small_config(
        model__path="somewhere",
        warmstart__given_model=True,
        prompt__template="field",
        prompt__max_prompt_tokens=1000,
        **changes,
    )


def test_rows_of_a_chat_model_are_its_template_and_our_mask() -> None:
    config, tokenizer = _given(), chat_tokenizer()
    student = make_student(config, None, tokenizer)
    _, env, tasks = _world()
    shown = demonstrate(env, tasks[0], CLEAN)
    rows = segments([shown], student, config.warmstart.trained_tokens)
    assert len(rows) == len(shown.decisions)
    for row, (view, command) in zip(rows, shown.decisions, strict=True):
        said = tokenizer.apply_chat_template(
            student.template.render(view), tokenize=False, add_generation_prompt=True
        )
        text = tokenizer.decode(list(row.ids), clean_up_tokenization_spaces=False)
        assert text == f"{said}<think></think><action>{command}</action><end>"
        kept = [i for i, keep in zip(row.ids, row.loss_mask, strict=True) if keep]
        assert tokenizer.decode(kept) == f"{command}</action><end>"


@pytest.mark.parametrize("oracle", ["planner", "explorer"])
def test_a_given_model_learns_in_place_and_reproducibly(oracle: str) -> None:
    config = _given(
        warmstart__oracle=oracle,
        warmstart__demonstrations=3,
        warmstart__steps=8,
        warmstart__batch=4,
        warmstart__lr=1e-2,
        warmstart__warmup_steps=0,
    )
    left, right, tokenizer = small.model(std=0.02), small.model(std=0.02), chat_tokenizer()
    before, size = small.weights(left), len(tokenizer)
    state = torch.get_rng_state()
    report = warm_given(config, small.games(), left, tokenizer)
    assert torch.equal(torch.get_rng_state(), state)
    assert report == warm_given(config, small.games(), right, tokenizer)
    assert small.same(small.weights(left), small.weights(right))
    assert not small.same(before, small.weights(left))
    assert (len(tokenizer), report["vocabulary"]) == (size, size)
    assert (report["steps"], report["demonstrations"]) == (8, 3)
    assert report["last_loss"] < report["first_loss"]


def test_micro_batches_change_nothing_but_rounding() -> None:
    losses = []
    for tokens in (256, 100_000):
        config = _given(
            warmstart__demonstrations=2,
            warmstart__steps=3,
            optim__micro_batch_tokens=tokens,
            warmstart__lr=1e-3,
        )
        report = warm_given(config, small.games(), small.model(std=0.02), chat_tokenizer())
        losses.append(report["last_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_bfloat16_keeps_float32_weights() -> None:
    config = _given(
        warmstart__demonstrations=2,
        warmstart__steps=2,
        run__dtype="bfloat16",
        optim__old_logprobs="recompute",
        optim__gradient_checkpointing=True,
    )
    model = small.model(std=0.02)
    report = warm_given(config, small.games(), model, chat_tokenizer())
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert (report["steps"], report["nonfinite_steps"]) == (2, 0)


def test_a_tokenizer_without_chat_template_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"prompt\.template='field'.*no chat template"):
        warm_given(_given(), small.games(), small.model(), small.tokenizer())


def test_demonstrations_that_fit_nowhere_are_refused() -> None:
    config = _given().replace(**{"prompt.max_prompt_tokens": 20})
    with pytest.raises(ConfigError, match=r"raise prompt\.max_prompt_tokens"):
        warm_given(config, small.games(), small.model(), chat_tokenizer())


def test_an_oracle_that_finds_no_way_is_named() -> None:
    # It plans with what was seen, and at the start nothing was.
    config = _given(warmstart__oracle="as_seen", warmstart__demonstrations=2)
    with pytest.raises(ConfigError, match=r"warmstart\.oracle=as_seen .* none of 2 episodes"):
        warm_given(config, small.games(), small.model(), chat_tokenizer())


# ------------------------------------------------------------------------------ the settings


def test_defaults_follow_the_kind_of_model() -> None:
    fresh, given = WarmstartConfig(), WarmstartConfig(given_model=True)
    assert (fresh.peak_lr, fresh.trained_tokens) == (3e-3, "all")
    assert (given.peak_lr, given.trained_tokens) == (1e-5, "command_closing")
    said = replace(given, lr=1e-4, loss_tokens="all")
    assert (said.peak_lr, said.trained_tokens) == (1e-4, "all")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmstart__given_model": True}, r"given_model=true is about .*model\.path"),
        (
            {
                "warmstart__given_model": True,
                "model__path": "x",
                "warmstart__demonstrations": 0,
            },
            r"warmstart\.demonstrations=0 would train on nothing",
        ),
        ({"warmstart__oracle": "plannner"}, r"warmstart\.oracle='plannner' must be 'planner'"),
        ({"warmstart__lr": 0}, r"warmstart\.lr=0.* must be positive"),
        ({"warmstart__loss_tokens": "half"}, r"warmstart\.loss_tokens='half' must be one of"),
    ],
)
def test_settings_that_clash_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small.small_config(**changes)
