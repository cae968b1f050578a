"""Downloads over HTTP that can be interrupted at any byte and go on from there.

The bytes of an unfinished download lie beside its target as ``<name>.part``, and what identifies
them (address, validator, size) as ``<name>.part.json``. To go on, the rest is asked for with
``Range`` and, where the server gave a validator, ``If-Range`` (RFC 9110, sections 13 and 14), so
that pieces of two versions are never joined. Every wait for the network ends after a time-out;
what may pass is tried again after growing pauses, as long as new bytes arrive.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import punctuation
from typing import Any
from urllib.parse import quote, urlsplit

from agent_envs.errors import DataError

TIMEOUT_S = 30.0
ATTEMPTS = 5
"""Attempts in a row that bring no new byte, before giving up."""
UNREACHABLE_ATTEMPTS = 3
"""The same while the server has not answered at all."""
MAX_BYTES = 16 << 30
MAX_PAUSE_S = 60.0
_PIECE = 1 << 16
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))

Progress = Callable[[int, int | None], None]
"""Called with the bytes there are and the size of the whole, if known."""


class DownloadError(DataError):
    """Base of what can go wrong with a download."""


class DownloadStopped(DownloadError):
    """The network or the server failed; what came is kept and the next try goes on from there."""

    def __init__(self, message: str, got: int, total: int | None) -> None:
        super().__init__(message)
        self.got, self.total = got, total


class DownloadRefused(DownloadError):
    """The address cannot be used, or the server says that there is nothing to get."""


class CorruptDownload(DownloadError):
    """What came is not what was expected: another size, another checksum, a damaged archive."""


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A finished file and what identifies it."""

    path: Path
    size: int
    sha256: str


def download(
    url: str,
    target: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    timeout_s: float = TIMEOUT_S,
    progress: Progress = lambda got, total: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Downloaded:
    """Get `url` into the file `target`, going on with what an earlier try left.

    Args:
        url: http or https.
        target: the file; its folder exists. It appears only when it is whole.
        size: expected bytes, if known.
        sha256: expected digest (hex), if known.
        timeout_s: longest wait for a connection and for each piece of data.
        progress: told how far it is.
        sleep: how to pause between two tries.

    Raises:
        DownloadStopped: network or server failed time and again; can be continued.
        DownloadRefused: not an http(s) address, or an answer such as 404.
        CorruptDownload: another size or digest than expected; what came is deleted.
    """
    check_url(url)
    part = _Part(target, url)
    failures, furthest = 0, part.got
    answered = False
    while True:
        try:
            for total in _fetch_rest(part, timeout_s, size):
                answered = True
                progress(part.got, total)
            break
        except _Passing as error:
            answered = answered or error.answered
            failures = 1 if part.got > furthest else failures + 1
            furthest = max(furthest, part.got)
            if failures >= (ATTEMPTS if answered else UNREACHABLE_ATTEMPTS):
                raise DownloadStopped(str(error), part.got, part.total) from error
            sleep(min(max(2.0 ** (failures - 1), error.pause_s), MAX_PAUSE_S))
    return part.finish(size, sha256)


def check_url(url: str) -> None:
    """Raise `DownloadRefused` unless `url` is a complete http or https address."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")  # refuses names that no host can have
        rest = f"{parts.port}{parts.path}{parts.query}"  # so does `port` with numbers
    except ValueError:
        scheme, host, rest = "", b"", ""
    else:
        scheme = parts.scheme
    if scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise DownloadRefused(f"{url!r} is no address to download from; give an http(s) URL.")
    if not rest.isascii():
        raise DownloadRefused(
            f"{url!r} has characters that no address can have; write them as %XX: "
            f"{quote(url, safe=punctuation)!r}."
        )


class _Passing(Exception):
    """A failure that may pass."""

    def __init__(self, reason: object, answered: bool = True, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.answered, self.pause_s = answered, pause_s


class _Part:
    """The unfinished file and its note."""

    def __init__(self, target: Path, url: str) -> None:
        self.target, self.url = target, url
        self.path = target.with_name(target.name + ".part")
        self.note = target.with_name(target.name + ".part.json")
        self.total: int | None = None
        self.validator: str | None = None
        self.got = 0
        try:
            note = json.loads(self.note.read_bytes())
            total, validator = note["total"], note["validator"]
            good = total is None or (type(total) is int and total >= 0)
            good = good and (validator is None or validator.isprintable())
            if good and note["url"] == url:
                self.total, self.validator = total, validator
                self.got = self.path.stat().st_size
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            pass  # nothing there that is known to be of use

    def begin(self, total: int | None, validator: str | None) -> None:
        """Note what is going to be written from the first byte on."""
        self.total, self.validator, self.got = total, validator, 0
        note = {"url": self.url, "total": total, "validator": validator}
        with _writing(self.path):
            self.note.unlink(missing_ok=True)  # it is not about what comes now
            self.path.write_bytes(b"")
            self.note.write_text(json.dumps(note), encoding="utf-8")

    def drop(self) -> None:
        """Forget everything."""
        self.note.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        self.total, self.validator, self.got = None, None, 0

    def finish(self, size: int | None, sha256: str | None) -> Downloaded:
        """Check the whole and give it its name."""
        with _writing(self.path):
            found, digest = self.path.stat().st_size, file_sha256(self.path)
        expected = self.total if size is None else size
        if expected is not None and found != expected:
            self.drop()
            raise CorruptDownload(
                f"{self.url} gave {found:,} bytes, expected {expected:,}. They were deleted; "
                "try again, or another mirror."
            )
        if sha256 is not None and digest != sha256.lower():
            self.drop()
            raise CorruptDownload(
                f"{self.url} gave a file with SHA-256 {digest}, expected {sha256.lower()}. It was "
                "deleted; try again, or another mirror."
            )
        with _writing(self.target):
            os.replace(self.path, self.target)
            self.note.unlink(missing_ok=True)
        return Downloaded(self.target, found, digest)


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_rest(part: _Part, timeout_s: float, size: int | None) -> Iterator[int | None]:
    """Append to `part` what is missing; yields the size of the whole after each piece."""
    if part.total is not None and part.got >= part.total > 0:
        if part.got > part.total:
            part.drop()
        else:
            yield part.total
            return
    with _opened(part, timeout_s) as response:
        if response.status == 416:  # nothing after what there is, or something else altogether
            if _total_of(response) == part.got > 0:
                return
            part.drop()
            raise _Passing("the server has less than what was there already; starting anew")
        if response.status == 206:
            whole = _total_of(response)
            if _start_of(response) != part.got or (part.total or whole) != (whole or part.total):
                part.drop()
                raise _Passing("the file on the server changed; starting anew")
            part.total = part.total or whole
        else:  # the server sends all of it: the first try, no Range there, or another version
            length = response.headers.get("Content-Length", "")
            part.begin(_number(length), _validator_of(response))
        if size is not None and part.total not in (size, None):
            found = part.total
            part.drop()
            raise CorruptDownload(
                f"{part.url} is {found:,} bytes long, expected {size:,}. It is another file; "
                "nothing was kept."
            )
        yield part.total
        with _writing(part.path), open(part.path, "ab", buffering=0) as file:
            while data := _piece(response):
                file.write(data)
                part.got += len(data)
                if part.got > MAX_BYTES:
                    break
                yield part.total
    if part.got > MAX_BYTES:
        part.drop()
        raise CorruptDownload(f"{part.url} has no end: more than {MAX_BYTES:,} bytes.")
    if part.total is not None and part.got < part.total:
        raise _Passing(f"the connection ended {part.total - part.got:,} bytes too early")


def _piece(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_PIECE)
    except TimeoutError as error:
        raise _Passing("no data came any more (time-out)") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Passing(f"the connection broke ({_words(error)})") from error


@contextlib.contextmanager
def _opened(part: _Part, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
    headers = {"User-Agent": "sero", "Accept-Encoding": "identity"}
    if part.got:
        headers["Range"] = f"bytes={part.got}-"
        if part.validator is not None:
            headers["If-Range"] = part.validator
    request = urllib.request.Request(part.url, headers=headers)
    try:
        response: Any = _opener().open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == 416 and part.got:
            response = error
        elif error.code in _PASSING:
            with error:
                pause = error.headers.get("Retry-After", "")
                raise _Passing(
                    f"the server answered {error.code} {error.reason}",
                    pause_s=float(pause) if pause.isdecimal() else 0.0,
                ) from error
        else:
            with error:
                raise DownloadRefused(
                    f"{part.url}: the server answered {error.code} {error.reason}."
                ) from error
    except urllib.error.URLError as error:
        raise _Passing(f"no connection ({_words(error.reason)})", answered=False) from error
    except TimeoutError as error:
        raise _Passing("no answer came (time-out)", answered=False) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Passing(f"the connection broke ({_words(error)})", answered=False) from error
    with response:
        yield response


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to another address, but not to other protocols or out of encryption."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        check_url(newurl)
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise DownloadRefused(f"{req.full_url} leads to {newurl}, which is not encrypted.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """HTTP and HTTPS, proxies of the environment, redirects; no files, no FTP."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _validator_of(response: http.client.HTTPResponse) -> str | None:
    etag = response.headers.get("ETag")
    if etag is not None and etag.startswith('"'):  # a weak one does not vouch for bytes
        return str(etag)
    modified = response.headers.get("Last-Modified")
    return None if modified is None else str(modified)


def _content_range(response: Any) -> tuple[str, str]:
    """``bytes 5-9/10`` as ("5", "10"), ``bytes */10`` as ("*", "10")."""
    words = str(response.headers.get("Content-Range", "")).removeprefix("bytes").strip()
    place, _, total = words.partition("/")
    return place.partition("-")[0], total


def _start_of(response: Any) -> int | None:
    return _number(_content_range(response)[0])


def _total_of(response: Any) -> int | None:
    return _number(_content_range(response)[1])


def _number(digits: str) -> int | None:
    """The number that a header names; None for what cannot be the size of a file."""
    return int(digits) if digits.isdecimal() and len(digits) < 19 else None


def _words(error: object) -> str:
    return str(error) or type(error).__name__


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What the disk refuses is no failure of the network."""
    try:
        yield
    except OSError as error:
        raise DataError(f"Cannot write {path}: {error}.") from error
