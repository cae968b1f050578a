"""Promises of encoding:

1. A target's loss tokens are the command, the closing tag and the end token; its z tokens are
   the command alone. The thought and the opening tag are context.
2. A token that straddles a border counts, a token without characters never.
3. Chat prompts go through the tokenizer's own template, header of the reply included.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from agent_envs.prompting import CompactTemplate, FieldTemplate, PromptView
from tests.fakes import ByteTokenizer
from trainer.models.tiny import train_tokenizer
from trainer.rollouts.data import make_segment
from trainer.rollouts.student import Student
from trainer.rollouts.tokens import (
    command_mask,
    decode,
    encode_prompt,
    encode_reply,
    encode_text,
    end_of_turn,
    reply_text,
    span_mask,
    stop_ids_of,
    strip_stop,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "aux_objectives.json"
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
VIEW = PromptView("put a mug in shelf.", "You see a mug 1.", ("take mug 1 from desk 1", "look"))


@pytest.fixture(scope="module")
def tiny():
    return train_tokenizer(["go to shelf 1\ntake mug 1 from desk 1\n"] * 3, 400)


def picked(tokenizer, ids, mask) -> str:
    return decode(tokenizer, [i for i, m in zip(ids, mask, strict=True) if m])


@pytest.mark.parametrize("kind", ["tiny", "bytes"])
def test_target_masks(tiny, kind):
    tokenizer = tiny if kind == "tiny" else ByteTokenizer()
    target = encode_reply(
        CompactTemplate(), "take mug 1 from desk 1", tokenizer, tokenizer.eos_token_id
    )
    text = "<think></think><action>take mug 1 from desk 1</action>"
    assert reply_text(tokenizer, target.ids, [tokenizer.eos_token_id]) == text
    assert picked(tokenizer, target.ids, target.z_mask) == "take mug 1 from desk 1"
    loss = [i for i, m in zip(target.ids, target.loss_mask, strict=True) if m]
    assert loss[-1] == tokenizer.eos_token_id
    assert decode(tokenizer, loss[:-1]) == "take mug 1 from desk 1</action>"
    assert not target.z_mask[-1]


def test_target_of_the_tiny_tokenizer_by_hand(tiny):
    target = encode_reply(CompactTemplate(), "go to shelf 1", tiny, tiny.eos_token_id)
    # <think> </think> <action> go _to _shelf _1 </action> <end>
    assert len(target.ids) == 9
    assert target.loss_mask == (False,) * 3 + (True,) * 6
    assert target.z_mask == (False,) * 3 + (True,) * 4 + (False,) * 2
    segment = make_segment((1, 2), target.ids, mask=target.loss_mask)
    assert segment.trained == 6


def test_empty_command_is_no_target(tiny):
    with pytest.raises(ValueError, match="empty command"):
        encode_reply(CompactTemplate(), "  ", tiny, 0)


def _mask_cases() -> list[dict]:
    cases = json.loads(VECTORS.read_text())["cases"]
    return [c for c in cases if c["objective"] == "serl.spans" and c["fn"] == "token_mask"]


@pytest.mark.parametrize("case", _mask_cases(), ids=lambda c: c["id"])
def test_token_mask_vectors(case):
    mask = span_mask([tuple(o) for o in case["inputs"]["offsets"]], case["inputs"]["spans"])
    assert [int(m) for m in mask] == case["expected"]


@pytest.mark.parametrize(
    ("offset", "counts"),
    [
        ((0, 3), False),
        ((2, 4), True),  # straddles the opening border
        ((3, 6), True),
        ((5, 9), True),  # straddles the closing border
        ((0, 9), True),
        ((6, 7), False),
        ((4, 4), False),
        ((3, 3), False),
    ],
)
def test_overlap_with_the_span_from_3_to_6(offset, counts):
    assert span_mask([offset], [(3, 6)]) == (counts,)


def test_empty_span_selects_nothing():
    assert span_mask([(0, 9)], [(4, 4)]) == (False,)


def test_command_mask_of_a_sampled_reply(tiny):
    stop = [tiny.eos_token_id]
    ids = encode_text(tiny, "<think>go</think><action> go to shelf 1 </action>")
    mask = command_mask(CompactTemplate(), [*ids, *stop], tiny, stop)
    assert picked(tiny, [*ids, *stop], mask).strip() == "go to shelf 1"
    assert len(mask) == len(ids) + 1
    untagged = encode_text(tiny, "go to shelf 1")
    assert not any(command_mask(CompactTemplate(), untagged, tiny, stop))


@pytest.mark.parametrize(
    "command", ["search[café]", "search[\N{HOT BEVERAGE} mug]", "a\U0001f9d1b"]
)
def test_every_byte_of_a_command_is_in_its_mask(command):
    tokenizer = ByteTokenizer()
    head, close = "<think>\N{HOT BEVERAGE}</think><action>", "</action>"
    ids = [*encode_text(tokenizer, head + command + close), 256]
    mask = command_mask(CompactTemplate(), ids, tokenizer, [256])
    before, own = len(head.encode()), len(command.encode())
    assert mask == (False,) * before + (True,) * own + (False,) * (len(close) + 1)


def test_a_tokenizer_that_was_saved_cutting_and_padding_does_neither(tmp_path):
    own = train_tokenizer(["go to shelf 1\n"] * 3, 300)
    text = "go to shelf 1\n" * 20
    expected = encode_text(own, text), encode_text(own, "go")
    own(["a", "b"], padding="max_length", truncation=True, max_length=16)
    own.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.backend_tokenizer.truncation is not None, "or nothing is shown"
    for tokenizer in (loaded, own):
        assert (encode_text(tokenizer, text), encode_text(tokenizer, "go")) == expected


def test_the_end_of_a_turn_is_the_chat_templates(tiny):
    tokenizer = train_tokenizer(["go to shelf 1\n"] * 3, 300)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end_of_turn>"]})
    turn = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    stops = (tokenizer.eos_token_id, turn)
    compact = Student(CompactTemplate(), tokenizer, stops, 512)
    assert end_of_turn(tokenizer, stops) is None
    # As Gemma's: the tokenizer's end token is not what ends a turn.
    tokenizer.chat_template = CHAT.replace("<end>", "<end_of_turn>")
    assert end_of_turn(tokenizer, stops) == turn
    assert end_of_turn(tokenizer, stops[:1]) is None
    student = Student(FieldTemplate(), tokenizer, stops, 512)
    assert student.target("look").ids[-1] == student.end_id == turn
    assert compact.target("look").ids[-1] == stops[0]


@pytest.mark.parametrize("command", ["take café 1", "search[5.5″ ½]", "look 😀"])
def test_every_token_of_a_character_of_the_command_counts(tiny, command):
    """Bytes of one character are tokens of their own here; no prefix shows the later ones."""
    target = encode_reply(CompactTemplate(), command, tiny, tiny.eos_token_id)
    mask = command_mask(CompactTemplate(), target.ids, tiny, [tiny.eos_token_id])
    assert mask == target.z_mask
    assert picked(tiny, target.ids, mask) == command


def test_plain_prompt_is_encoded_as_it_is(tiny):
    ids = encode_prompt(CompactTemplate(), VIEW, tiny)
    assert decode(tiny, ids) == CompactTemplate().render(VIEW)


def test_o32_chat_prompt_holds_the_generation_header_and_only_sampled_ids_train(tiny):
    tiny.chat_template = CHAT
    try:
        ids = encode_prompt(FieldTemplate(), VIEW, tiny)
    finally:
        tiny.chat_template = None
    (message,) = FieldTemplate().render(VIEW)
    # Template newline, the end token of the user's turn and the header belong to the prompt.
    assert decode(tiny, ids) == f"<user>{message['content']}<end>\n<assistant>"
    sampled = encode_text(tiny, "<action>look</action>")
    segment = make_segment(ids, sampled)
    assert picked(tiny, segment.ids, segment.loss_mask) == "<action>look</action>"


def test_chat_prompt_needs_a_chat_template(tiny):
    with pytest.raises(ValueError, match=r"no chat template.*compact"):
        encode_prompt(FieldTemplate(), VIEW, tiny)


def test_only_a_trailing_stop_token_is_dropped():
    assert strip_stop([9, 1, 9], [9]) == [9, 1]
    assert strip_stop([9, 1], [9]) == [9, 1]
    assert strip_stop([9, 9], [9]) == [9]
    assert strip_stop([], [9]) == []


def test_stop_ids_of_tokenizer_and_generation_config(tiny):
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[7, tiny.eos_token_id]))
    assert stop_ids_of(tiny) == (tiny.eos_token_id,)
    assert stop_ids_of(tiny, model) == (tiny.eos_token_id, 7)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_round_trips(text):
    tokenizer = _shared()
    assert decode(tokenizer, encode_text(tokenizer, text)) == text


_CACHE: list = []


def _shared():
    if not _CACHE:
        _CACHE.append(train_tokenizer(["go to shelf 1"], 300))
    return _CACHE[0]
