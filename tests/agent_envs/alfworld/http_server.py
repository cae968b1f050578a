"""A web server on the loopback interface that misbehaves on request."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """What the server has, and what it is going to do wrong, one answer after another."""

    files: dict[str, bytes] = field(default_factory=dict)
    faults: deque[dict[str, Any]] = field(default_factory=deque)
    """Each: `cut` or `stall` after so many bytes of the body, `flip` the byte at a place, claim a
    `length`, answer a `status` with `headers`, or start a range at a wrong place (`shift`)."""
    ranges: bool = True
    validators: bool = True
    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range of every request."""
    sent: int = 0
    """Bytes of bodies."""
    closing: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        site = self.site
        asked = self.headers.get("Range") if site.ranges else None
        site.asked.append((self.path, self.headers.get("Range")))
        fault = site.faults.popleft() if site.faults else {}
        if "status" in fault:
            self.send_response(fault["status"])
            for name, value in {"Content-Length": "0", **fault.get("headers", {})}.items():
                self.send_header(name, value)
            self.end_headers()
            return
        body = site.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        etag = f'"{hash(body):x}"'
        if self.headers.get("If-Range", etag) != etag:
            asked = None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if asked and start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        rest = bytearray(body[start:])
        if "flip" in fault:
            rest[fault["flip"]] ^= 1
        self.send_response(206 if asked else 200)
        if asked:
            told = start + fault.get("shift", 0)
            self.send_header("Content-Range", f"bytes {told}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(fault.get("length", len(rest))))
        if site.validators:
            self.send_header("ETag", etag)
        self.end_headers()
        stop = fault.get("cut", fault.get("stall", len(rest)))
        site.sent += len(rest[:stop])  # before the client has it all and looks
        self.wfile.write(rest[:stop])
        self.wfile.flush()
        if "stall" in fault:
            site.closing.wait(30)
        if stop < len(rest) or "length" in fault:
            self.close_connection = True

    def log_message(self, *words: Any) -> None:
        pass


@contextmanager
def serve() -> Iterator[Site]:
    """A running server."""
    site = Site()
    handler = type("Handler", (_Handler,), {"site": site})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.closing.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
