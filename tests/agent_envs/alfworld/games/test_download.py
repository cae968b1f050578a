"""Downloads that are cut off, lied to, stalled and damaged, against a server on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_envs.alfworld.games import download as module
from agent_envs.alfworld.games.download import (
    CorruptDownload,
    DownloadRefused,
    DownloadStopped,
    check_url,
    download,
)
from agent_envs.errors import DataError
from tests.agent_envs.alfworld.http_server import Site, serve

BODY = bytes(number * 7 % 251 for number in range(400_000))
OTHER = BODY[::-1]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve() as site:
        site.files["/f"] = BODY
        yield site


@pytest.fixture
def pauses() -> list[float]:
    return []


def get(site: Site, tmp_path: Path, pauses: list[float], **options: object) -> bytes:
    settings = {"timeout_s": 5.0, "sleep": pauses.append, **options}
    found = download(f"{site.url}/f", tmp_path / "f", **settings)  # type: ignore[arg-type]
    data = (tmp_path / "f").read_bytes()
    assert (found.size, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert [path.name for path in tmp_path.iterdir()] == ["f"]  # nothing else is left
    return data


def test_a_plain_download(site: Site, tmp_path: Path, pauses: list[float]) -> None:
    seen: list[tuple[int, int | None]] = []
    digest = hashlib.sha256(BODY).hexdigest()
    data = get(
        site,
        tmp_path,
        pauses,
        size=len(BODY),
        sha256=digest.upper(),
        progress=lambda got, total: seen.append((got, total)),
    )
    assert data == BODY
    assert site.asked == [("/f", None)]
    assert pauses == []
    assert seen[0] == (0, len(BODY))
    assert seen[-1] == (len(BODY), len(BODY))
    assert sorted(seen) == seen


def test_o34_a_cut_download_goes_on_with_the_missing_bytes_only(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    site.faults += [{"cut": 100_000}, {"cut": 50_000}]
    assert get(site, tmp_path, pauses) == BODY
    assert site.asked == [("/f", None), ("/f", "bytes=100000-"), ("/f", "bytes=150000-")]
    assert site.sent == len(BODY)
    assert pauses == [1.0, 1.0]  # each brought something


def test_another_process_goes_on_later(site: Site, tmp_path: Path, pauses: list[float]) -> None:
    site.faults += [{"cut": 100_000}, *[{"cut": 0}] * 5]
    with pytest.raises(DownloadStopped, match="300,000 bytes too early") as caught:
        get(site, tmp_path, pauses)
    assert (caught.value.got, caught.value.total) == (100_000, 400_000)
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert (tmp_path / "f.part").stat().st_size == 100_000
    assert not (tmp_path / "f").exists()
    site.faults.clear()
    site.asked.clear()
    assert get(site, tmp_path, pauses) == BODY
    assert site.asked == [("/f", "bytes=100000-")]
    assert site.sent == len(BODY)


def test_a_finished_part_is_not_asked_for_again(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    """The process was stopped between the last byte and the renaming."""
    (tmp_path / "f.part").write_bytes(BODY)
    note = {"url": f"{site.url}/f", "total": len(BODY), "validator": None}
    (tmp_path / "f.part.json").write_text(json.dumps(note))
    assert get(site, tmp_path, pauses) == BODY
    assert site.asked == []
    (tmp_path / "f").unlink()
    (tmp_path / "f.part").write_bytes(BODY)
    (tmp_path / "f.part.json").write_text(json.dumps({**note, "total": None}))
    assert get(site, tmp_path, pauses) == BODY  # the server says that nothing comes after
    assert site.asked == [("/f", f"bytes={len(BODY)}-")]
    assert site.sent == 0


def test_without_ranges_it_starts_anew(site: Site, tmp_path: Path, pauses: list[float]) -> None:
    site.ranges = False
    site.faults += [{"cut": 100_000}]
    assert get(site, tmp_path, pauses) == BODY
    assert site.asked == [("/f", None), ("/f", "bytes=100000-")]
    assert site.sent == len(BODY) + 100_000


@pytest.mark.parametrize("validators", [True, False])
def test_pieces_of_two_versions_are_never_joined(
    site: Site, tmp_path: Path, pauses: list[float], validators: bool
) -> None:
    """By the validator; without one at least by the size."""
    site.validators = validators
    site.faults += [{"cut": 100_000}, *[{"cut": 0}] * 5]
    with pytest.raises(DownloadStopped):
        get(site, tmp_path, pauses)
    site.files["/f"] = OTHER if validators else OTHER[:-1]
    site.faults.clear()
    assert get(site, tmp_path, pauses) == site.files["/f"]


def test_another_address_does_not_go_on_with_it(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    site.files["/g"] = OTHER
    site.faults += [{"cut": 100_000}, *[{"cut": 0}] * 5]
    with pytest.raises(DownloadStopped):
        download(f"{site.url}/g", tmp_path / "f", timeout_s=5, sleep=pauses.append)
    site.faults.clear()
    site.asked.clear()
    assert get(site, tmp_path, pauses) == BODY
    assert site.asked == [("/f", None)]


@pytest.mark.parametrize("note", ["", "{}", "[]", '{"url": 1}', "\xff"])
def test_a_part_that_nobody_can_place_is_not_used(
    site: Site, tmp_path: Path, pauses: list[float], note: str
) -> None:
    (tmp_path / "f.part").write_bytes(OTHER[:1000])
    (tmp_path / "f.part.json").write_text(note, encoding="latin-1")
    assert get(site, tmp_path, pauses) == BODY


def test_o34_a_stalled_connection_is_given_up_and_continued(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    site.faults += [{"stall": 100_000}]
    assert get(site, tmp_path, pauses, timeout_s=0.3) == BODY
    assert site.asked == [("/f", None), ("/f", "bytes=100000-")]


def test_o34_a_server_that_always_stalls_is_an_error_in_the_end(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    site.faults += [{"stall": 1000}, *[{"stall": 0}] * 5]
    with pytest.raises(DownloadStopped, match="time-out") as caught:
        get(site, tmp_path, pauses, timeout_s=0.1)
    assert caught.value.got == 1000
    assert len(site.asked) == 5


def test_a_server_that_never_answers(tmp_path: Path, pauses: list[float]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/f"
        with pytest.raises(DownloadStopped, match="time-out"):
            download(url, tmp_path / "f", timeout_s=0.1, sleep=pauses.append)
    assert len(pauses) == 2
    with pytest.raises(DownloadStopped, match="no connection"):
        download(url, tmp_path / "f", timeout_s=1, sleep=pauses.append)


def test_o34_a_corrupted_byte_is_found_and_nothing_kept(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    digest = hashlib.sha256(BODY).hexdigest()
    site.faults += [{"flip": 200_000}]
    with pytest.raises(CorruptDownload, match=digest):
        get(site, tmp_path, pauses, sha256=digest)
    assert list(tmp_path.iterdir()) == []
    assert get(site, tmp_path, pauses, sha256=digest) == BODY


def test_o34_a_wrong_length_is_found(site: Site, tmp_path: Path, pauses: list[float]) -> None:
    with pytest.raises(CorruptDownload, match="400,000 bytes long, expected 400,001"):
        get(site, tmp_path, pauses, size=400_001)
    assert site.sent < len(BODY) + 1
    assert list(tmp_path.iterdir()) == []
    site.faults += [{"length": 500_000}]  # it promises more than it has
    with pytest.raises(CorruptDownload, match="gave 400,000 bytes, expected 500,000"):
        get(site, tmp_path, pauses)
    assert list(tmp_path.iterdir()) == []


def test_a_short_promise_ends_in_a_short_file(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    site.faults += [{"length": 1000, "cut": 1000}]
    assert get(site, tmp_path, pauses) == BODY[:1000]  # only size or digest could tell


def test_a_wrong_place_is_not_believed(site: Site, tmp_path: Path, pauses: list[float]) -> None:
    site.faults += [{"cut": 100_000}, {"shift": 1}]
    assert get(site, tmp_path, pauses) == BODY


def test_a_server_that_is_wrong_for_ever_comes_to_an_end(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    site.faults += [{"cut": 100_000}, {"shift": 1}] * 20
    with pytest.raises(DownloadStopped):
        get(site, tmp_path, pauses)


def test_answers_that_pass_and_answers_that_do_not(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    site.faults += [
        {"status": 503, "headers": {"Retry-After": "7"}},
        {"status": 429, "headers": {"Retry-After": "99999"}},
        {"status": 500, "headers": {"Retry-After": "soon"}},
    ]
    assert get(site, tmp_path, pauses) == BODY
    assert pauses == [7.0, module.MAX_PAUSE_S, 4.0]
    for status in (401, 403, 404, 410):
        site.faults += [{"status": status}]
        with pytest.raises(DownloadRefused, match=str(status)):
            get(site, tmp_path / "x", pauses)
    assert len(pauses) == 3


def test_redirects_are_followed_to_the_same_kind_only(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    moved = {"status": 302, "headers": {"Location": "/elsewhere"}}
    site.files["/elsewhere"] = BODY
    site.faults += [moved, {"cut": 1000}, moved]
    assert get(site, tmp_path, pauses) == BODY
    assert site.asked[-1] == ("/elsewhere", "bytes=1000-")
    for place in ("file:///etc/passwd", "ftp://127.0.0.1/f"):
        site.faults += [{"status": 302, "headers": {"Location": place}}]
        with pytest.raises(DownloadRefused):
            get(site, tmp_path / "x", pauses)
    site.faults += [{"status": 302, "headers": {"Location": "/f"}}] * 30
    with pytest.raises(DownloadRefused):
        get(site, tmp_path / "x", pauses)


@pytest.mark.parametrize(
    "url",
    ["", "f", "file:///etc/passwd", "ftp://host/f", "http://", "http:///f", "http://a b/",
     "http://[", "data:,x", "http://h/\n", "javascript:1"],
)  # fmt: skip
def test_only_web_addresses(url: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadRefused, match="http"):
        check_url(url)
    with pytest.raises(DownloadRefused):
        download(url, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_an_endless_file_is_cut_off(
    site: Site, tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 300_000)
    with pytest.raises(CorruptDownload, match="no end"):
        get(site, tmp_path, pauses)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_network_error(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    with pytest.raises(DataError, match="Cannot write"):
        download(f"{site.url}/f", tmp_path / "no" / "f", sleep=pauses.append)
    assert pauses == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": "400000"},
        {"total": -1},
        {"total": True},
        {"validator": 5},
        {"validator": "a\r\nRange: bytes=0-"},
    ],
    ids=str,
)
def test_a_note_that_no_download_wrote_is_not_followed(
    site: Site, tmp_path: Path, pauses: list[float], wrong: dict[str, object]
) -> None:
    note = {"url": f"{site.url}/f", "total": None, "validator": None, **wrong}
    (tmp_path / "f.part").write_bytes(OTHER[:1000])
    (tmp_path / "f.part.json").write_text(json.dumps(note))
    assert get(site, tmp_path, pauses) == BODY
    assert site.asked == [("/f", None)]


def test_a_length_beyond_reason_is_no_length(
    site: Site, tmp_path: Path, pauses: list[float]
) -> None:
    site.faults += [{"length": "9" * 5000}]
    assert get(site, tmp_path, pauses) == BODY
