"""Promises of `trainer.rollouts.chat`: what stands between turns, which templates can be used."""

from __future__ import annotations

import pytest

from agent_envs.prompting import Message
from tests.fakes import ByteTokenizer
from tests.trainer import small
from tests.trainer.chat import templates, world
from trainer.config import ConfigError
from trainer.rollouts.chat import NOTHING_SAID, ChatFormat, ChatTemplateError, Conversation
from trainer.rollouts.tokens import encode_text


def _format(template: str) -> ChatFormat:
    tok = world.tokenizer(template)
    return ChatFormat(tok, (tok.eos_token_id,))


def _talk(made: ChatFormat, replies: list[str], *, cut: bool = False) -> Conversation:
    tok, said = made.tokenizer, NOTHING_SAID
    for number, reply in enumerate(replies):
        message: Message = {"role": "user", "content": f"You see shelf {number}."}
        ids = encode_text(tok, reply) + ([] if cut else [tok.eos_token_id])
        answer: Message = {"role": "assistant", "content": reply}
        prompt = made.prompt(said, message)
        said = Conversation((*said.messages, message, answer), (*prompt, *ids))
    return said


@pytest.mark.parametrize("template", [templates.CHATML, templates.HEADERS])
@pytest.mark.parametrize("cut", [False, True])
def test_o30_an_append_only_template_is_added_to_and_equals_its_own_rendering(template, cut):
    made = _format(template)
    assert made.append_only
    replies = ["<think>hm</think><action>look</action>", "<action>go to shelf 1</action>"]
    said = _talk(made, replies, cut=cut)
    message: Message = {"role": "user", "content": "You see a mug 1."}
    ids = made.prompt(said, message)
    assert ids[: len(said.ids)] == said.ids
    # A reply that was cut gets the end-of-turn token all the same, one that ended has it once.
    tok = made.tokenizer
    text = tok.apply_chat_template(
        [*said.messages, message], tokenize=False, add_generation_prompt=True
    )
    assert tok.decode(ids) == text
    assert list(ids) == encode_text(tok, text)
    assert ids[len(said.ids)] == made.end_id if cut else ids[len(said.ids)] != made.end_id


def test_the_begin_token_stands_once_at_the_front():
    made = _format(templates.HEADERS)
    said = _talk(made, ["<action>look</action>"] * 3)
    ids = made.prompt(said, {"role": "user", "content": "And now?"})
    begin = made.tokenizer.convert_tokens_to_ids("<|begin|>")
    assert ids[0] == begin
    assert ids.count(begin) == 1


def test_another_stop_token_stays_and_the_end_of_turn_follows():
    made = _format(templates.CHATML)
    other = made.tokenizer.pad_token_id
    said = _talk(made, ["<action>look</action>"], cut=True)
    said = Conversation(said.messages, (*said.ids, other))
    ids = made.prompt(said, {"role": "user", "content": "And now?"})
    assert ids[len(said.ids) - 1 : len(said.ids) + 1] == (other, made.end_id)


@pytest.mark.parametrize("template", [templates.DROPS_THOUGHTS, templates.OPENS_A_THOUGHT])
def test_a_template_that_drops_thoughts_is_found_and_rendered_anew(template):
    made = _format(template)
    assert not made.append_only
    opening = "" if template == templates.OPENS_A_THOUGHT else "<think>\n"
    said = _talk(made, [f"{opening}a long thought\n</think>\n\n<action>look</action>"])
    ids = made.prompt(said, {"role": "user", "content": "And now?"})
    text = made.tokenizer.decode(ids)
    assert "long thought" not in text
    assert "<|im_start|>assistant\n<action>look</action><|im_end|>" in text
    assert ids[: len(said.ids)] != said.ids


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "has none"),
        (templates.KEEPS_LAST, "does not show all that was said"),
        (templates.OTHER_END, "not among the tokens that end one"),
        (templates.ONE_TURN, "one message only"),
    ],
)
def test_a_template_that_makes_no_conversation_is_refused(template, reason):
    with pytest.raises(ChatTemplateError, match=reason):
        _format(template)
    assert issubclass(ChatTemplateError, ConfigError)


class _Stripping(ByteTokenizer):
    """Drops a line end behind the first token of a text; \x01 ends a reply."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return super().encode(text[:1] + text[1:].removeprefix("\n"))

    def apply_chat_template(self, messages, add_generation_prompt=False, **_):
        text = "".join(f"{m['role'][:1]}:{m['content']}\x01\n" for m in messages)
        return text + ("a:" if add_generation_prompt else "")


def test_a_tokenizer_that_encodes_a_part_otherwise_than_the_whole_is_refused():
    with pytest.raises(ChatTemplateError, match="to other ids than within a conversation"):
        ChatFormat(_Stripping(), (1,))


@pytest.mark.parametrize("template", [templates.CHATML, templates.HEADERS])
def test_another_first_message_leaves_the_rest_as_it_was(template):
    made = _format(template)
    said = _talk(made, ["<think>hm</think><action>look</action>", "<action>go</action>"], cut=True)
    told = made.retold(said, "You know where it is.\nYou see shelf 0.")
    assert told.messages[1:] == said.messages[1:]
    before = made.prompt(NOTHING_SAID, said.messages[0])
    after = made.prompt(NOTHING_SAID, told.messages[0])
    assert before != after
    assert told.ids == (*after, *said.ids[len(before) :])
    assert made.retold(told, said.messages[0]["content"]) == said
    message: Message = {"role": "user", "content": "And now?"}
    ids = made.prompt(told, message)
    assert ids[len(after) :] == made.prompt(said, message)[len(before) :]


def test_a_conversation_of_another_template_cannot_be_retold():
    one, other = _format(templates.CHATML), _format(templates.HEADERS)
    said = _talk(one, ["<action>look</action>"])
    with pytest.raises(ValueError, match="do not begin with those of its first message"):
        other.retold(said, "other")
    with pytest.raises(ValueError, match="needs a first message"):
        one.retold(NOTHING_SAID, "other")


@pytest.mark.parametrize(
    "name",
    ["serl", "rlsd", "seed", "sdar", "skill_sd", "opid", "opsd", "opsd_legacy", "sdpo"],
)
def test_every_teacher_goes_with_conversations(name):
    section = {"skills": "skills.json"} if name in ("sdar", "skill_sd") else {}
    assert world.config(**{f"auxiliary__{name}": section}).prompt.context == "chat"


@pytest.mark.parametrize("mode", ["none", "sampled", "empty", "template"])
def test_think_modes_go_with_conversations(mode):
    made = world.config(auxiliary__sero={"think_mode": mode})
    assert made.prompt.context == "chat"


@pytest.mark.parametrize("key", ["prompt__history_length", "prompt__layout"])
def test_settings_without_effect_are_refused(key):
    value = 4 if key.endswith("length") else "instruction_first"
    with pytest.raises(ConfigError, match=key.replace("__", ".")):
        world.config(**{key: value, "prompt__template": "field"})


def test_react_has_no_tags_to_put_a_thought_between():
    with pytest.raises(ConfigError, match="think_mode=template"):
        small.small_config(prompt__template="react", auxiliary__sero={"think_mode": "template"})
