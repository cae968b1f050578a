"""Getting ALFWorld's archives: from the first byte to a tree that can be played."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_envs.alfworld.engine import step
from agent_envs.alfworld.games import GameSet
from agent_envs.alfworld.games.download import CorruptDownload, DownloadRefused, DownloadStopped
from agent_envs.alfworld.games.fetch import GAMES, OFFICIAL, TRAJECTORIES, Fetched, at_mirror, fetch
from agent_envs.alfworld.goals import won
from agent_envs.errors import DataError, InvalidOption
from tests.agent_envs.alfworld.household import payload
from tests.agent_envs.alfworld.http_server import Site, serve
from tests.agent_envs.alfworld.trees import GOOD, PICK, TREE, add, trajectory

IDS = tuple(f"{split}/{GOOD}" for split in ("train", "valid_seen", "valid_unseen"))


def zipped(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return raw.getvalue()


def game_files() -> dict[str, bytes]:
    game = json.dumps(payload(walkthrough=["go to desk 1"])).encode()
    return {f"{TREE}/{task_id}/game.tw-pddl": game for task_id in IDS}


def trajectory_files() -> dict[str, bytes]:
    told = {**trajectory(), "turk_annotations": {"anns": [{"task_desc": "Shelve a mug."}]}}
    data = json.dumps(told).encode()
    more = f"{TREE}/train/{PICK}-Mug-None-Shelf-1/trial_without_game/traj_data.json"
    return {f"{TREE}/{task_id}/traj_data.json": data for task_id in IDS} | {more: data}


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve() as site:
        site.files[f"/m/{GAMES.name}"] = zipped(game_files())
        site.files[f"/m/{TRAJECTORIES.name}"] = zipped(trajectory_files())
        yield site


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data" / "here"


def get(site: Site, out: Path, **options: Any) -> tuple[Fetched, ...]:
    options = {"timeout_s": 5.0, "sleep": lambda seconds: None, **options}
    return fetch(out, at_mirror(f"{site.url}/m"), **options)


def listed(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def test_o34_both_archives_give_a_tree_that_can_be_played(site: Site, out: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    games, trajectories = get(site, out, progress=lambda *words: seen.append(words))
    size = len(site.files[f"/m/{GAMES.name}"])
    digest = hashlib.sha256(site.files[f"/m/{GAMES.name}"]).hexdigest()
    assert games == Fetched(GAMES.name, f"{site.url}/m/{GAMES.name}", size, digest, 3, 0)
    assert (trajectories.games, trajectories.trajectories) == (0, 4)
    assert listed(out) == [".fetch.lock", "fetched.json", TREE.name]
    found = GameSet.from_path(out)
    assert found.task_ids() == IDS
    assert found.skip_counts() == {"no_game_file": 1}
    assert found.annotations(IDS[0]) == ("Shelve a mug.",)
    game = found.load(IDS[0])
    state = game.start
    for command in (
        "go to desk 1",
        "take mug 3 from desk 2",
        "go to shelf 1",
        "move mug 3 to shelf 1",
    ):
        state, _, accepted = step(game, state, command)
        assert accepted
    assert won(game, state)
    assert [what for what, done, total in seen if done == total] == [
        f"getting {GAMES.name}",
        f"getting {TRAJECTORIES.name}",
    ]
    assert {what for what, _, _ in seen} >= {f"unpacking {GAMES.name}"}


def test_what_is_there_is_not_fetched_again(site: Site, out: Path) -> None:
    first = get(site, out)
    site.asked.clear()
    second = get(site, out)
    assert site.asked == []
    assert [one.already_there for one in second] == [True, True]
    assert [one.sha256 for one in second] == [one.sha256 for one in first]
    (out / TREE / IDS[0] / "game.tw-pddl").unlink()
    again = get(site, out)
    assert [one.already_there for one in again] == [False, True]
    assert GameSet.from_path(out).task_ids() == IDS


def test_o34_an_interruption_is_continued_by_the_next_call(site: Site, out: Path) -> None:
    body = site.files[f"/m/{GAMES.name}"]
    half = len(body) // 2
    site.faults += [{"cut": half}, *[{"cut": 0}] * 4]
    with pytest.raises(DownloadStopped) as caught:
        get(site, out)
    message = str(caught.value)
    for part in (f"{half:,} of {len(body):,} bytes are there", "the same command", str(out)):
        assert part in message
    assert not (out / TREE).exists()
    site.asked.clear()
    get(site, out)
    assert site.asked[0] == (f"/m/{GAMES.name}", f"bytes={half}-")
    assert GameSet.from_path(out).task_ids() == IDS


def test_o34_without_internet_it_says_what_to_do_and_that_works(
    site: Site, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.getaddrinfo", lambda *a, **k: (_ for _ in ()).throw(OSError(-2)))
    pauses: list[float] = []
    with pytest.raises(DownloadStopped) as caught:
        fetch(out, sleep=pauses.append)
    message = str(caught.value)
    target = out / GAMES.name
    for part in (
        GAMES.url,
        "Nothing was received",
        f"put it here as {target}",
        "run the same command again",
        f"export SERO_ALFWORLD_DATA={target}",
        "unset SERO_ALFWORLD_DATA",
    ):
        assert part in message
    assert pauses == [1.0, 2.0]
    # Both ways out that it names:
    target.write_bytes(zipped(game_files()))
    assert GameSet.from_path(target).task_ids() == IDS
    with pytest.raises(DownloadStopped, match=r"The games can be played without it") as caught:
        fetch(out, sleep=pauses.append)
    assert TRAJECTORIES.url in str(caught.value)
    assert GameSet.from_path(out).task_ids() == IDS
    assert target.exists()  # not ours to delete


def test_o34_a_corrupted_byte_is_found_before_anything_is_unpacked(site: Site, out: Path) -> None:
    site.faults += [{"flip": 300}]
    with pytest.raises(CorruptDownload) as caught:
        get(site, out)
    assert "It was deleted; the same command gets it anew." in str(caught.value)
    assert listed(out) == [".fetch.lock"]
    get(site, out)
    assert GameSet.from_path(out).task_ids() == IDS


def test_every_corrupted_byte_of_a_small_archive_is_found_or_harmless(
    site: Site, tmp_path: Path
) -> None:
    name, data = next(iter(game_files().items()))
    body = zipped({name: data[:300]})
    site.files[f"/m/{GAMES.name}"] = body
    harmless = 0
    for place in range(0, len(body), 3):
        out = tmp_path / str(place)
        site.faults += [{"flip": place}]
        try:
            fetch(out, at_mirror(f"{site.url}/m")[:1], timeout_s=5, sleep=lambda seconds: None)
        except CorruptDownload:
            assert listed(out) == [".fetch.lock"]
            continue
        harmless += 1
        files = [path for path in (out / TREE).rglob("*") if path.is_file()]
        assert [path.read_bytes() for path in files] == [data[:300]]
    assert harmless < len(body) / 3 / 2  # dates, modes and the like


def test_o34_a_wrong_length_is_an_error(site: Site, out: Path) -> None:
    site.faults += [{"length": 2000, "cut": 2000}]
    with pytest.raises(CorruptDownload, match="not a zip file"):
        get(site, out)
    assert listed(out) == [".fetch.lock"]


def test_a_page_instead_of_an_archive(site: Site, out: Path) -> None:
    """As a network gives that wants one to log in first."""
    site.files[f"/m/{GAMES.name}"] = b"<html>Please log in</html>"
    with pytest.raises(CorruptDownload, match="not a zip file"):
        get(site, out)


def test_a_stalled_server_is_given_up(site: Site, out: Path) -> None:
    site.faults += [{"stall": 100}, *[{"stall": 0}] * 4]
    with pytest.raises(DownloadStopped, match="time-out"):
        get(site, out, timeout_s=0.1)


def test_what_is_not_there_says_what_to_do_as_well(site: Site, out: Path) -> None:
    del site.files[f"/m/{GAMES.name}"]
    with pytest.raises(DownloadRefused, match=r"404.*put it here as"):
        get(site, out)


def test_unsafe_archives_are_refused_whole(site: Site, out: Path) -> None:
    for name in ("../../x/game.tw-pddl", "/etc/game.tw-pddl", "a\\..\\game.tw-pddl"):
        site.files[f"/m/{GAMES.name}"] = zipped({**game_files(), name: b"{}"})
        with pytest.raises(CorruptDownload, match="not safe"):
            get(site, out)
        assert listed(out) == [".fetch.lock"]
    assert sorted(path.name for path in out.parent.parent.iterdir()) == ["data"]


def test_what_a_mac_adds_is_left_out(site: Site, out: Path) -> None:
    added = {f"__MACOSX/{TREE}/{IDS[0]}/game.tw-pddl": b"x", f"{TREE}/{IDS[0]}/._game.tw-pddl": b""}
    site.files[f"/m/{GAMES.name}"] = zipped({**game_files(), **added})
    get(site, out)
    assert GameSet.from_path(out).task_ids() == IDS
    assert "corrupt" not in GameSet.from_path(out).skip_counts()


def test_a_mirror_may_be_one_archive_of_any_kind(site: Site, out: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name, data in {**game_files(), **trajectory_files()}.items():
            add(tar, name, data)
    site.files["/all.tar.gz?token=1"] = (tmp_path / "a.tar.gz").read_bytes()
    archives = at_mirror(f"{site.url}/all.tar.gz?token=1")
    assert [one.name for one in archives] == ["all.tar.gz"]
    (one,) = fetch(out, archives, keep_archives=True)
    assert (one.games, one.trajectories) == (3, 4)
    assert (out / "all.tar.gz").exists()
    assert GameSet.from_path(out).annotations(IDS[2]) == ("Shelve a mug.",)
    assert fetch(out, archives)[0].already_there
    with pytest.raises(DownloadRefused, match="http"):
        at_mirror("/a/folder")


def test_a_known_digest_is_compared(site: Site, out: Path) -> None:
    (games, _) = at_mirror(f"{site.url}/m")
    wrong = dataclasses.replace(games, sha256="0" * 64)
    with pytest.raises(CorruptDownload, match="0" * 64):
        fetch(out, [wrong])
    digest = hashlib.sha256(site.files[f"/m/{GAMES.name}"]).hexdigest()
    fetch(
        out, [dataclasses.replace(games, sha256=digest, size=len(site.files["/m/" + games.name]))]
    )
    assert GameSet.from_path(out).task_ids() == IDS


def test_the_official_archives_are_https_and_unlike() -> None:
    assert len({one.name for one in OFFICIAL}) == 2
    for one in OFFICIAL:
        assert one.url.startswith("https://")
        assert one.url.endswith(f"/{one.name}")


def test_where_nothing_can_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="Cannot make the folder"):
        get(site, tmp_path / "file" / "data")
    assert site.asked == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_two_at_once_in_one_folder(site: Site, out: Path) -> None:
    import fcntl

    out.mkdir(parents=True)
    with open(out / ".fetch.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="Another process"):
            get(site, out)
    get(site, out)
    assert os.path.isdir(out / TREE)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_number_of_seconds(site: Site, out: Path, seconds: float) -> None:
    with pytest.raises(InvalidOption, match="time-out"):
        get(site, out, timeout_s=seconds)


def test_a_place_that_is_there_twice_in_an_archive_is_unpacked_once(site: Site, out: Path) -> None:
    files = game_files()
    other = json.dumps(payload(task="another")).encode()
    files |= {f"copy/{name}": other for name in game_files()}
    site.files[f"/m/{GAMES.name}"] = zipped(files)
    assert get(site, out)[0].games == len(IDS)
    found = {path.read_bytes() for path in out.rglob("game.tw-pddl")}
    assert found == set(game_files().values())  # the first one, as where the archive is played
    asked = len(site.asked)
    assert all(one.already_there for one in get(site, out))
    assert len(site.asked) == asked


@pytest.mark.parametrize(
    "url",
    [
        "http://a..b/x.zip",
        f"http://{'a' * 70}.b/x.zip",
        "http://127.0.0.1:abc/x.zip",
        "http://127.0.0.1:99999/x.zip",
        "http://127.0.0.1:9/p\u00e4.zip",
    ],
)
def test_addresses_that_cannot_be_asked_are_refused(out: Path, url: str) -> None:
    with pytest.raises(DownloadRefused, match=r"http"):
        fetch(out, at_mirror(url), sleep=lambda seconds: None)


def test_what_the_disk_refuses_is_a_typed_error(out: Path) -> None:
    long = at_mirror(f"http://127.0.0.1:9/{'a' * 300}.zip")
    with pytest.raises(DataError, match="or write into it"):
        fetch(out, long, sleep=lambda seconds: None)
    (out / ".fetch.lock").unlink()
    (out / ".fetch.lock").mkdir()
    with pytest.raises(DataError, match="or write into it"):
        fetch(out, sleep=lambda seconds: None)
    strange: Any = "5"
    with pytest.raises(InvalidOption, match="time-out is '5'"):
        fetch(out, timeout_s=strange)
