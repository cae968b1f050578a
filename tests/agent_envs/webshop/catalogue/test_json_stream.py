"""Reading one huge JSON value piece by piece gives what `json.load` gives."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_envs.errors import CorruptData, MissingData
from agent_envs.webshop.catalogue import json_stream
from agent_envs.webshop.catalogue.json_stream import entries_of_list, entries_of_object
from tests.support import full_count

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(params=[1, 7, 1 << 20])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", request.param)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json") / "file.json"


@pytest.mark.usefixtures("chunk")
@settings(max_examples=full_count(30, 300))
@given(st.lists(values, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_lists(file: Path, entries: list[Any], indent: int | None, is_ascii: bool) -> None:
    text = json.dumps(entries, indent=indent, ensure_ascii=is_ascii)
    file.write_text(f" \n{text}\r\n", encoding="utf-8", errors="surrogatepass")
    assert list(entries_of_list(file)) == entries


@pytest.mark.usefixtures("chunk")
@settings(max_examples=full_count(30, 300))
@given(st.dictionaries(st.text(), values, max_size=5))
def test_objects(file: Path, entries: dict[str, Any]) -> None:
    file.write_text(json.dumps(entries), encoding="utf-8")
    assert list(entries_of_object(file)) == list(entries.items())


def test_repeated_keys_come_twice(file: Path) -> None:
    file.write_text('{"a": 1, "a": 2}', encoding="utf-8")
    assert list(entries_of_object(file)) == [("a", 1), ("a", 2)]


def test_a_byte_order_mark_is_no_text(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf[1]")
    assert list(entries_of_list(file)) == [1]


@pytest.mark.usefixtures("chunk")
def test_a_file_that_is_cut_off_anywhere_is_an_error(file: Path) -> None:
    whole = json.dumps([{"a": 'é\\"', "b": [1.5e3, True, None]}, "x", -12, {}], ensure_ascii=False)
    data = whole.encode()
    for end in range(len(data)):
        file.write_bytes(data[:end])
        with pytest.raises(CorruptData) as caught:
            list(entries_of_list(file))
        assert str(file) in str(caught.value)
    file.write_bytes(b'{"a": 1')
    with pytest.raises(CorruptData, match="cut off"):
        list(entries_of_object(file))


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        "3",
        "[1 2]",
        "[1,, 2]",
        "[1,]",
        "[1] x",
        "[1][2]",
        "['a']",
        "[1, {'a': 2}, 3]" + " " * 100,
        '["a\nb"]',
        "[" * 100_000,
        "[tru]" + " " * 50,
        "[01]",
    ],
)
def test_what_is_no_list_is_an_error(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CorruptData, match=r"cannot be read as JSON: .+ near character [\d,]+\."):
        list(entries_of_list(file))


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("text", ["[1]", '{"a" 1}', '{"a": 1 "b": 2}', "{3: 4}", '{"a": 1,}'])
def test_what_is_no_object_is_an_error(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CorruptData, match="cannot be read as JSON"):
        list(entries_of_object(file))


def test_bytes_that_are_no_utf8(file: Path) -> None:
    file.write_bytes(b'["caf\xe9"]')
    with pytest.raises(CorruptData, match="UTF-8"):
        list(entries_of_list(file))


def test_an_error_far_from_the_end_does_not_read_on(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 1000)
    file.write_text('[{"a": 1}, {"b" 2}' + ', {"a": 1}' * 10_000 + "]", encoding="utf-8")
    seen: list[int] = []
    with pytest.raises(CorruptData, match=r"near character 1\d\."):
        list(entries_of_list(file, lambda done, total: seen.append(done)))
    assert len(seen) == 1


def test_an_endless_entry_is_not_swallowed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 1000)
    monkeypatch.setattr(json_stream, "MAX_ENTRY", 5000)
    file.write_text('["' + "x" * 100_000, encoding="utf-8")
    with pytest.raises(CorruptData, match="more than 5,000 characters"):
        list(entries_of_list(file))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"nowhere\.json"):
        list(entries_of_list(tmp_path / "nowhere.json"))


def test_progress_ends_at_the_size_of_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 100)
    file.write_text(json.dumps(list(range(1000))), encoding="utf-8")
    told: list[tuple[int, int]] = []
    list(entries_of_list(file, lambda done, total: told.append((done, total))))
    size = file.stat().st_size
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.usefixtures("chunk")
def test_a_number_of_too_many_digits_names_file_and_place(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_text('[{"a": 1}, {"ignored": [' + "7" * 5000 + "]}]")
    with pytest.raises(CorruptData) as caught:
        list(entries_of_list(path))
    for part in (str(path), "digits", "near character 11"):
        assert part in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "items.json")
    with pytest.raises(MissingData, match=r"items\.json: it is no regular file"):
        list(entries_of_list(tmp_path / "items.json"))
