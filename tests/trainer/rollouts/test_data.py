"""Promises of turns, segments and files of turns:

1. A file gives back equal turns: floats bit for bit, None apart from empty, any Unicode.
2. A file that cannot be trusted is an error that says what is wrong; none is read in part.
3. Trained tokens are exactly the sampled ones.
"""

from __future__ import annotations

import os
import struct
from dataclasses import fields, replace

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import ByteTokenizer, make_turn
from trainer.rollouts.data import (
    MissingTurnFile,
    Segment,
    Turn,
    TurnFileError,
    make_segment,
    read_turns,
    segments_from_turns,
    write_turns,
)
from trainer.rollouts.tokens import decode

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_IDS = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)
_REAL = st.floats(allow_nan=False, width=64)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | _REAL | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def _turns(draw) -> Turn:
    ids = draw(_IDS)
    return make_turn(
        uid=draw(_TEXT),
        observation=draw(_TEXT),
        next_observation=draw(_TEXT),
        admissible=tuple(draw(st.lists(_TEXT, max_size=3))),
        reply=draw(_TEXT),
        parse_reason=draw(st.none() | _TEXT),
        reward=draw(_REAL),
        task_score=draw(_REAL),
        stop_reason=draw(st.none() | _TEXT),
        prompt_ids=draw(_IDS),
        response_ids=ids,
        logprobs=tuple(draw(st.lists(_REAL, min_size=len(ids), max_size=len(ids)))),
        temperature=draw(_REAL),
        steps_left=draw(st.none() | st.integers(0, 100)),
        snapshot=draw(st.none() | st.binary(max_size=20)),
        history=tuple(draw(st.lists(st.tuples(_TEXT, _TEXT, st.booleans()), max_size=3))),
        provenance=draw(st.dictionaries(_TEXT, _JSON, max_size=3)),
    )


def _bits(turn: Turn) -> list[bytes]:
    reals = [turn.reward, turn.task_score, turn.temperature, *turn.logprobs]
    return [struct.pack("<d", x) for x in reals]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_turns(), max_size=4))
def test_turns_round_trip(tmp_path, turns):
    path = tmp_path / "turns.parquet"
    write_turns(path, turns)
    back = read_turns(path)
    assert back == turns
    assert [_bits(t) for t in back] == [_bits(t) for t in turns]
    for turn in back:  # a list where a tuple was would compare unequal later, or not hash
        assert {f.name for f in fields(Turn) if isinstance(getattr(turn, f.name), list)} == set()


def test_awkward_values_round_trip(tmp_path):
    nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000123))[0]  # NaN with a payload
    turn = make_turn(
        reward=-0.0,
        task_score=nan,
        logprobs=(5e-324, -1e308),
        stop_reason="",
        steps_left=0,
        snapshot=b"",
        observation="\x00\u2028\U0001f600",
    )
    path = tmp_path / "turns.parquet"
    write_turns(path, [turn])
    (back,) = read_turns(path)
    assert _bits(back) == _bits(turn)
    assert (back.stop_reason, back.steps_left, back.snapshot) == ("", 0, b"")
    assert back.parse_reason is None
    assert back.observation == turn.observation


def test_missing_file_names_path_and_setting(tmp_path):
    with pytest.raises(MissingTurnFile, match=r"none\.parquet.*save_turns"):
        read_turns(tmp_path / "none.parquet")


def _written(tmp_path):
    path = tmp_path / "turns.parquet"
    write_turns(path, [make_turn(t=i, observation=f"text {i} " * 50) for i in range(50)])
    return path


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path):
    path = _written(tmp_path)
    good, data = read_turns(path), path.read_bytes()
    noticed = 0
    places = range(0, len(data), max(1, len(data) // 150))
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        try:
            assert read_turns(path) == good
        except TurnFileError:
            noticed += 1
    assert noticed > len(places) // 3


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_truncated_file_is_an_error(tmp_path, keep):
    path = _written(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TurnFileError, match="damaged"):
        read_turns(path)


def test_other_versions_and_other_files_are_named(tmp_path):
    path = _written(tmp_path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"sero.turns": b"99"}), path)
    with pytest.raises(TurnFileError, match="turn format 99, this version reads 2"):
        read_turns(path)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(TurnFileError, match="holds no turns"):
        read_turns(path)
    fewer = table.drop_columns(["reward"]).replace_schema_metadata({b"sero.turns": b"2"})
    pq.write_table(fewer, path)
    with pytest.raises(TurnFileError, match=r"missing \['reward'\]"):
        read_turns(path)


def test_failed_write_leaves_the_former_file_and_no_rest(tmp_path):
    path = _written(tmp_path)
    before = path.read_bytes()
    for bad in (
        {"provenance": {"x": (1, 2)}},
        {"provenance": {"x": object()}},
        {"reply": "\ud800"},
    ):
        with pytest.raises(TurnFileError, match=r"cannot write turns"):
            write_turns(path, [make_turn(), make_turn(**bad)])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_turn_needs_a_logprob_for_each_id():
    with pytest.raises(ValueError, match="2 response ids but 1 log-probs"):
        make_turn(response_ids=(1, 2), logprobs=(-1.0,))


# --- segments


def test_o29_mask_is_one_exactly_on_sampled_tokens():
    tokenizer = ByteTokenizer()
    replies = ["<action>look</action>", "<action>go to shelf 1</action>", "?"]
    turns = []
    for t, reply in enumerate(replies):
        ids = (*tokenizer.encode(reply), 256)
        prompt = (*tokenizer.encode(f"prompt {t} "), 256, 65)  # the end id may occur in a prompt
        turns.append(
            make_turn(t=t, prompt_ids=prompt, response_ids=ids, logprobs=(-0.5,) * len(ids))
        )
    segments = segments_from_turns(turns)
    for index, (segment, turn, reply) in enumerate(zip(segments, turns, replies, strict=True)):
        trained = [i for i, m in zip(segment.ids, segment.loss_mask, strict=True) if m]
        assert tuple(trained) == turn.response_ids
        assert decode(tokenizer, trained) == reply
        places = {place for place, m in enumerate(segment.loss_mask) if m}
        first = len(turn.prompt_ids)
        assert places == set(range(first, first + len(turn.response_ids)))
        assert segment.trained == len(turn.response_ids)
        assert [i for i, turn_index in enumerate(segment.token_turn) if turn_index == index] == [
            *sorted(places)
        ]
        assert set(segment.token_turn) == {-1, index}


def test_o32_a_reply_cut_by_length_gets_no_end_token():
    turn = make_turn(response_ids=(7, 8, 9), logprobs=(-1.0,) * 3, finish_reason="length")
    (segment,) = segments_from_turns([turn])
    assert segment.ids == (1, 2, 3, 7, 8, 9)
    assert segment.trained == 3


def test_partial_mask_drops_turn_and_logprob_of_untrained_tokens():
    segment = make_segment(
        (1, 2), (3, 4, 5), mask=(False, True, True), logprobs=(-1.0, -2.0, -3.0), turn=7
    )
    assert segment.loss_mask == (False, False, False, True, True)
    assert segment.token_turn == (-1, -1, -1, 7, 7)
    assert segment.logprobs == (0.0, 0.0, 0.0, -2.0, -3.0)


def test_segments_refuse_what_cannot_be_trained():
    with pytest.raises(ValueError, match="first token"):
        make_segment((), (1, 2))
    with pytest.raises(ValueError, match="without tokens"):
        make_segment((), ())
    with pytest.raises(ValueError, match="mask of 1"):
        make_segment((1,), (2, 3), mask=(True,))
    good = make_segment((1,), (2,))
    with pytest.raises(ValueError, match="differ in length"):
        Segment(good.ids, good.loss_mask[:1], good.token_turn, good.logprobs)
    with pytest.raises(ValueError, match="differ in length"):
        replace(good, ids=(1, 2, 3))
