"""The HTTP server around the site."""

from __future__ import annotations

import http.client
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import quote

import pytest

from agent_envs.errors import InvalidOption
from agent_envs.webshop.engine import observe
from agent_envs.webshop.model import Page, Session
from agent_envs.webshop.site import server as site_server
from agent_envs.webshop.site.app import Site
from agent_envs.webshop.site.server import SiteServer, is_loopback
from tests.agent_envs.webshop import shops
from tests.agent_envs.webshop.site.reading import Read


def get(server: SiteServer, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def talk(server: SiteServer, request: bytes) -> bytes:
    """What the server answers to raw bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while piece := connection.recv(65536):
        parts.append(piece)
    return b"".join(parts)


def test_it_starts_answers_and_stops(site: Site) -> None:
    before = threading.active_count()
    with SiteServer(site) as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert get(server, "/fixed_0")[0] == 200
    with pytest.raises(ConnectionError):
        get(server, "/fixed_0")
    assert threading.active_count() <= before + 1  # a request thread may just be ending
    server.stop()  # twice is once


def test_it_listens_on_this_machine_alone(site: Site) -> None:
    with SiteServer(site) as server:
        assert get(server, "/fixed_0", Host="evil.example")[0] == 400
        name = socket.gethostname()
        try:
            outside = {info[4][0] for info in socket.getaddrinfo(name, None, socket.AF_INET)}
        except OSError:
            outside = set()
        for address in outside - {"127.0.0.1", "127.0.1.1"}:
            with pytest.raises(OSError):
                socket.create_connection((str(address), server.port), timeout=5)


def test_a_taken_port_is_named(site: Site) -> None:
    with SiteServer(site) as server, pytest.raises(InvalidOption, match=f"port {server.port}"):
        SiteServer(site, port=server.port)
    with pytest.raises(InvalidOption, match="Cannot listen on"):
        SiteServer(site, host="192.0.2.1")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_which_addresses_are_of_this_machine_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_1000_concurrent_requests_without_cross_talk(site: Site) -> None:
    """All are connected and have asked before the first answer is read; each gets their own."""
    queries = ["desk", "writing desk", "shelf", "odd lamp", "nothing of the kind"]
    goals, products = len(site.goals), len(site.shop.catalogue)
    asked = []
    for number in range(1_000):
        session = Session(Page.RESULTS, queries[number % 5], 1 + number % 3)
        if number % 2:
            session = Session(Page.ITEM, queries[number % 5], 1, number % products)
        asked.append((number % goals, session))

    def ask(connection: socket.socket, goal: int, session: Session) -> None:
        path = site.path(f"fixed_{goal}", session)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    with room_for_files(1_400), SiteServer(site) as server, ExitStack() as stack:
        connections = []
        for goal, session in asked:
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=120)
            connections.append(stack.enter_context(connection))
            ask(connection, goal, session)
        for connection, (goal, session) in zip(connections, asked, strict=True):
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
            assert b" 200 " in head.partition(b"\r\n")[0]
            expected = observe(site.shop, site.goals[goal], session, site.rules)
            assert Read(body.decode()).shown == expected
    assert len(site.visits) == goals


@contextmanager
def room_for_files(number: int) -> Iterator[None]:
    """Let this process have as many open files as that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < number:
        pytest.skip(f"needs {number} open files, {hard} are allowed")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_concurrent_purchases_stay_apart(site: Site) -> None:
    def shop_for(number: int) -> bool:
        visit = site.visits.begin(site.goals[number % len(site.goals)], "t")
        asin = shops.DESKS[number % 13]
        assert get(server, f"/item_page/{visit.sid}/{asin}/desk/1/%7B%7D")[0] == 200
        status, text = get(server, f"/done/{visit.sid}/{asin}/%7B%7D")
        after = site.visit(visit.sid)
        assert after.purchase is not None
        bought = site.shop.catalogue[after.purchase.product].asin
        return status == 200 and bought == asin and f"<pre>{asin}</pre>" in text

    with SiteServer(site) as server, ThreadPoolExecutor(20) as pool:
        assert all(pool.map(shop_for, range(200)))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /fixed_0 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /fixed_0 HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET /fixed_0 HTTP/1.1\r\n" + b"X: a\r\n" * 300 + b"\r\n", b"431"),
        (b"GET /fixed_0 HTTP/9.9\r\n\r\n", b"505"),
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"POST /fixed_0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b""),
        (
            b"POST /fixed_0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\nx",
            b"",
        ),
    ],
)
def test_odd_requests_get_an_answer_and_leave_the_server_alone(
    site: Site, request_: bytes, status: bytes
) -> None:
    with SiteServer(site) as server:
        answer = talk(server, request_)
        first = answer.partition(b"\r\n")[0]
        assert status in first
        assert b" 500 " not in first
        assert b"Werkzeug" not in answer
        assert b"Python/" not in answer
        assert get(server, "/fixed_0")[0] == 200


def test_silent_clients_do_not_hold_the_server(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are threads: their time runs out, then others are served."""
    monkeypatch.setattr(site_server, "REQUEST_S", 0.5)
    monkeypatch.setattr(site_server, "THREADS", 4)
    with SiteServer(site) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
        for connection in silent[:4]:
            connection.sendall(b"GET /fixed_0 HTTP/1.1\r\nHost: ")
        try:
            assert get(server, "/fixed_0")[0] == 200
        finally:
            for connection in silent:
                connection.close()


BEGINNINGS = (
    b"GET /fixed_0 HTTP/1.1\r\nX: ",
    b"POST /fixed_0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\nsearch_query=",
)


@contextmanager
def dripping(server: SiteServer, number: int, beginning: bytes) -> Iterator[None]:
    """Clients that send a byte of their request now and then, and never the last one."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            while not over.wait(0.1):
                connection.sendall(b"a")

    with ExitStack() as stack:
        threads = []
        for _ in range(number):
            connection = socket.create_connection(("127.0.0.1", server.port))
            stack.enter_context(connection)
            connection.sendall(beginning)
            threads.append(threading.Thread(target=drip, args=(connection,)))
            threads[-1].start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_dripping_clients_do_not_hold_the_server(
    site: Site, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    """Their time runs out although they are never silent for as long."""
    monkeypatch.setattr(site_server, "REQUEST_S", 0.5)
    monkeypatch.setattr(site_server, "BUSY_S", 60.0)
    monkeypatch.setattr(site_server, "THREADS", 4)
    with SiteServer(site) as server, dripping(server, 8, beginning):
        assert get(server, "/fixed_0")[0] == 200


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_full_server_says_so_and_recovers(
    site: Site, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(site_server, "REQUEST_S", 600.0)
    monkeypatch.setattr(site_server, "BUSY_S", 0.2)
    monkeypatch.setattr(site_server, "THREADS", 4)
    with SiteServer(site) as server:
        with dripping(server, 4, beginning):
            for _ in range(2):
                status, text = get(server, "/fixed_0")
                assert status == 503
                assert "full" in text
        monkeypatch.setattr(site_server, "BUSY_S", 60.0)
        assert get(server, "/fixed_0")[0] == 200


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_full_server_stops(site: Site, monkeypatch: pytest.MonkeyPatch, beginning: bytes) -> None:
    monkeypatch.setattr(site_server, "REQUEST_S", 600.0)
    monkeypatch.setattr(site_server, "BUSY_S", 600.0)
    monkeypatch.setattr(site_server, "THREADS", 4)
    server = SiteServer(site).start()
    with dripping(server, 8, beginning):
        while sum("process_request_thread" in each.name for each in threading.enumerate()) < 4:
            time.sleep(0.05)
        time.sleep(0.5)  # the next one is accepted, and waits for a thread
        stopping = threading.Thread(target=server.stop, daemon=True)
        stopping.start()
        stopping.join(60)
        assert not stopping.is_alive()
        with pytest.raises(ConnectionError):
            get(server, "/fixed_0")


def test_a_query_travels_through_a_real_request(site: Site) -> None:
    query = "a/b 100% ../~ é🙂 search_results"
    path = site.path("fixed_1", Session(Page.RESULTS, query))
    with SiteServer(site) as server:
        status, text = get(server, path)
        assert status == 200
        expected = observe(site.shop, site.goals[1], Session(Page.RESULTS, query))
        assert Read(text).shown == expected
        # As scripts for the original write it: the slash is one of the path.
        status, text = get(server, f"/search_results/fixed_1/{quote(query)}/1")
        assert Read(text).shown == expected
