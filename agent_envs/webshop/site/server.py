"""Serving the site: a small threaded HTTP server, for this machine unless told otherwise."""

from __future__ import annotations

import io
import ipaddress
import os
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agent_envs.errors import InvalidOption
from agent_envs.webshop.site.app import Site, create_app
from agent_envs.webshop.site.needs import needed

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

LOOPBACK = "127.0.0.1"
THREADS = 64
"""Requests answered at a time; more wait in the queue."""
QUEUE = 1024
"""Connections that wait to be accepted."""
REQUEST_S = 10.0
"""Seconds from the begin of a connection to the end of its request; then it is closed."""
WRITE_S = 30.0
"""Seconds that a client may take to receive a piece of its answer."""
BUSY_S = 5.0
"""Seconds without a free thread after which more requests are refused (503)."""

_REFUSAL = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 10\r\nCache-Control: no-store\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    b"The shop is full. Try again in a while.\n"
)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class SiteServer:
    """A running site: listens from the moment it is made, answers from `start` on.

    Also a context manager. Request threads never keep the process alive.

    Args:
        site: what it serves.
        host: address to listen on.
        port: 0 for any free one.

    Raises:
        InvalidOption: the port is taken, or the address is none of this machine.
        MissingExtra: Flask is not installed.
    """

    def __init__(self, site: Site, host: str = LOOPBACK, port: int = 0) -> None:
        self.site, self.host = site, host
        names = {"localhost", LOOPBACK, "[::1]", host} if is_loopback(host) else None
        app = create_app(site, names)
        listening = _listen(host, port)
        try:
            self._server = _wsgi_server(app, host, listening)
        finally:
            listening.close()  # the server has a duplicate
        self.port = int(self._server.server_address[1])
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @property
    def url(self) -> str:
        """Address of the site, without a slash at its end."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def start(self) -> SiteServer:
        """Answer requests, in a thread of its own."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._server.serve_forever, args=(0.1,), name="sero-site", daemon=True
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening, for good, whatever clients do. Requests being answered go on."""
        self._server.stopping.set()  # type: ignore[attr-defined]
        # A forked process has the socket, but not the thread: nobody would answer `shutdown`.
        if self._thread is not None and self._process == os.getpid():
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()

    def __enter__(self) -> SiteServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(QUEUE)
    except (OSError, OverflowError) as error:
        listening.close()
        raise InvalidOption(
            f"Cannot listen on {host} port {port}: {error}. Choose another port (0 takes any free "
            "one), or an address of this machine."
        ) from error
    return listening


class _Received(io.RawIOBase):
    """What a client sends, all of it within some seconds: a timeout of the socket's own would
    begin again with every byte."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        usual = self._connection.gettimeout()
        self._connection.settimeout(left)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(usual)


def _wsgi_server(app: Any, host: str, listening: socket.socket) -> BaseWSGIServer:
    serving = needed("werkzeug.serving")

    class Handler(serving.WSGIRequestHandler):  # type: ignore[misc, name-defined]
        timeout = WRITE_S
        # One request a connection: idle browsers would hold the threads otherwise.
        protocol_version = "HTTP/1.0"

        def setup(self) -> None:
            super().setup()
            self.rfile.close()  # type: ignore[has-type]
            self.rfile = io.BufferedReader(_Received(self.connection, REQUEST_S))

        def version_string(self) -> str:
            return "sero"

        def log(self, type: str, message: str, *args: Any) -> None:
            """Requests are logged by the site itself, if at all; errors by Flask."""

    class Server(serving.ThreadedWSGIServer):  # type: ignore[misc, name-defined]
        free = threading.BoundedSemaphore(THREADS)
        stopping = threading.Event()
        last_free = time.monotonic()

        def process_request(self, request: Any, client_address: Any) -> None:
            if not self.has_room():
                self.refuse(request)
                return
            try:
                super().process_request(request, client_address)
            except BaseException:
                self.free.release()
                raise

        def has_room(self) -> bool:
            """Take a free thread, once there is one; never waits for long."""
            room = self.free.acquire(blocking=False)
            while not (room or self.stopping.is_set()):
                # From the last free thread on, so that a queue of many is refused at once.
                if time.monotonic() > self.last_free + BUSY_S:
                    return False
                room = self.free.acquire(timeout=0.05)
            self.last_free = time.monotonic()
            return room

        def refuse(self, request: socket.socket) -> None:
            with suppress(OSError):
                request.settimeout(0.05)
                request.sendall(_REFUSAL)
                request.shutdown(socket.SHUT_WR)
                request.recv(1 << 16)  # closed unread, a connection loses its answer
            self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                self.free.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away or sent no HTTP is no error of ours."""

    port = listening.getsockname()[1]
    server: BaseWSGIServer = Server(host, port, app, Handler, fd=listening.fileno())
    return server
