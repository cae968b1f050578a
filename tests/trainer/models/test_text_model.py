"""Asking a model for text: what it is shown, in how many calls, and which draws it uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from agent_envs.prompting import get_template
from oracles.base import PlanStatus
from oracles.text_model import Seen, TextModelOracle
from tests.fakes import ByteTokenizer, ScriptedSampler
from tests.trainer import small
from trainer import rng
from trainer.config import ConfigError
from trainer.generation.base import Generation, GenerationRequest
from trainer.generation.hf import HFSampler
from trainer.models.text_model import (
    Chat,
    ExternalTextModel,
    PolicyTextModel,
    as_function,
    encode_chat,
    load_text_model,
)
from trainer.rollouts.rollout import Student


def _chat(text: str) -> Chat:
    return [{"role": "user", "content": text}]


def _streams(count: int, first: int = 0) -> list[np.random.Generator]:
    return [rng.stream(0, turn=i, purpose="test") for i in range(first, first + count)]


class _Recorder:
    """A sampler that keeps the requests of each call."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[list[GenerationRequest]] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.calls.append(list(requests))
        return list(self.inner.generate(requests))


def _model(script: Callable[[str], str], **options: Any) -> tuple[PolicyTextModel, _Recorder]:
    student = small.student()
    sampler = _Recorder(ScriptedSampler(student.tokenizer, script))
    limits = {"max_new_tokens": 100, "max_prompt_tokens": 1000, **options}
    return PolicyTextModel(sampler, student, **limits), sampler


def test_a_tokenizer_without_chat_template_gets_plain_text() -> None:
    tokenizer = small.tokenizer()
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what now?"}]
    assert tokenizer.decode(encode_chat(tokenizer, chat)) == "be brief\n\nwhat now?\n"
    byte = ByteTokenizer()
    assert byte.decode(encode_chat(byte, chat)) == "[system]be brief\n[user]what now?\n[assistant]"


def test_all_chats_are_asked_in_one_call_each_with_its_own_stream() -> None:
    model, sampler = _model(lambda prompt: f"said {prompt.strip()}", temperature=0.5)
    streams = _streams(3)
    assert model.answers([_chat("a"), _chat("b"), _chat("c")], streams) == [
        "said a", "said b", "said c",
    ]  # fmt: skip
    (requests,) = sampler.calls
    assert [request.rng for request in requests] == streams
    assert {(r.temperature, r.greedy, r.max_new_tokens) for r in requests} == {(0.5, False, 100)}


def test_temperature_zero_is_greedy() -> None:
    model, sampler = _model(lambda prompt: "yes", temperature=0.0)
    model.answers([_chat("a")], _streams(1))
    ((request,),) = sampler.calls
    assert (request.greedy, request.temperature) == (True, 1.0)


def test_a_chat_that_is_too_long_is_not_asked() -> None:
    chat = _chat("look")
    size = len(encode_chat(small.tokenizer(), chat))
    long = _chat("look at everything in the room and then at the rest")
    model, sampler = _model(lambda prompt: "seen", max_prompt_tokens=size)
    assert model.answers([long, chat], _streams(2)) == [None, "seen"]
    assert [len(call) for call in sampler.calls] == [1]
    assert model.answers([long], _streams(1)) == [None]
    assert len(sampler.calls) == 1, "with nobody to ask, nobody is asked"


def test_an_answer_does_not_depend_on_the_other_chats() -> None:
    student, policy = small.student(), small.model()
    sampler = HFSampler(policy, student.stop_ids, pad_id=student.pad_id)
    model = PolicyTextModel(sampler, student, max_new_tokens=12, max_prompt_tokens=100)
    chats = [_chat("go to shelf 1"), _chat("take"), _chat("you see a mug on the shelf")]
    together = model.answers(chats, _streams(3))
    alone = [model.answers([c], _streams(1, i))[0] for i, c in enumerate(chats)]
    assert together == alone
    assert len(set(together)) == 3


def test_a_policy_that_is_a_chat_model_is_asked_as_one() -> None:
    tokenizer = ByteTokenizer()
    student = Student(small.student().template, tokenizer, (256,), 1000)
    sampler = ScriptedSampler(tokenizer, lambda prompt: prompt)
    model = PolicyTextModel(sampler, student, max_new_tokens=100, max_prompt_tokens=100)
    assert model.answers([_chat("hi")], _streams(1)) == ["[user]hi\n[assistant]"]


class _Batched:
    """A model with a `batch`, which answers all chats at once."""

    def __init__(self, drop: int = 0) -> None:
        self.drop = drop

    def __call__(self, chat: Chat) -> str:
        raise AssertionError("asked one by one")

    def batch(self, chats: list[Chat]) -> list[str]:
        return [f"{len(chats)}: {chat[0]['content']}" for chat in chats][self.drop :]


def test_models_of_others_are_asked_one_by_one_or_in_a_batch() -> None:
    chats = [_chat("a"), _chat("b")]
    plain = ExternalTextModel(lambda chat: chat[0]["content"].upper())
    assert plain.answers(chats, _streams(2)) == ["A", "B"]
    assert ExternalTextModel(_Batched()).answers(chats, _streams(2)) == ["2: a", "2: b"]
    with pytest.raises(ValueError, match="asked 2 chats in one batch and gave 1"):
        ExternalTextModel(_Batched(drop=1)).answers(chats, _streams(2))


def test_a_model_by_name() -> None:
    place = "tests.trainer.methods.toy_analysers"
    model = load_text_model(f"{place}:useless", "here")
    assert model.answers([_chat("a")], _streams(1)) == ['{"episode_skill": "..."}']
    for name in (f"{place}:missing", "no_such_module:x", ":x"):
        with pytest.raises(ConfigError, match=f"here='{name}': there is no such text model"):
            load_text_model(name, "here")
    with pytest.raises(ConfigError, match=r"here=.* made a int; expected a function"):
        load_text_model(f"{place}:not_a_function", "here")


# -------------------------------------------------------------------------- for oracles


def _oracle(model: Any, retries: int = 1) -> TextModelOracle:
    def sees(view: Any, history: Any, observation: str) -> Seen:
        return Seen("put a mug on a shelf", ("inventory", "look"))

    function = as_function(model, 3, "oracle")
    return TextModelOracle(
        function, get_template("compact"), sees=sees, privileged=False, retries=retries
    )


def test_the_policy_answers_an_oracle() -> None:
    replies = iter(["go on", "<think>where am I</think><action>look</action>"])
    model, sampler = _model(lambda prompt: next(replies))
    decision, _ = _oracle(model).act((), None, "You are in a room.")
    assert (decision.status, decision.action, decision.thought) == (
        PlanStatus.FOUND, "look", "where am I",
    )  # fmt: skip
    (first,), (second,) = sampler.calls
    shown = [small.tokenizer().decode(list(r.prompt_ids)) for r in (first, second)]
    assert "You are in a room." in shown[0]
    assert "That reply cannot be used" not in shown[0]
    assert "That reply cannot be used" in shown[1]


def test_an_oracles_chat_that_is_too_long_is_an_unusable_reply() -> None:
    model, sampler = _model(lambda prompt: "never", max_prompt_tokens=5)
    assert as_function(model, 0, "oracle")([{"role": "user", "content": "much too long"}]) == ""
    decision, _ = _oracle(model).act((), None, "You are in a room.")
    assert (decision.status, decision.action) == (PlanStatus.TIMEOUT, None)
    assert sampler.calls == []


def test_answers_to_an_oracle_depend_on_seed_purpose_and_chat_alone() -> None:
    class Draws:
        def answers(self, chats: Sequence[Chat], streams: Sequence[Any]) -> list[str | None]:
            return [str(stream.integers(1 << 40)) for stream in streams]

    def ask(function: Any, text: str, role: str = "user") -> str:
        return str(function([{"role": role, "content": text}]))

    function = as_function(Draws(), 0, "oracle")
    first = ask(function, "a")
    others = [
        ask(function, "b"),
        ask(function, "a", "system"),
        ask(as_function(Draws(), 1, "oracle"), "a"),
        ask(as_function(Draws(), 0, "judge"), "a"),
    ]
    assert len({first, *others}) == 5
    assert ask(function, "a") == first
    assert ask(as_function(Draws(), 0, "oracle"), "a") == first
