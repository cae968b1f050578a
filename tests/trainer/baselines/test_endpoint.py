from __future__ import annotations

import json
from typing import Any

import pytest

from tests.trainer.baselines.script import completion, serving
from trainer.baselines.endpoint import EndpointError, EndpointModel, EndpointSettings
from trainer.baselines.models import TextReply, TextRequest

KEY = "SERO_TEST_KEY"
PROMPT = [{"role": "user", "content": "hello"}]


class Pauses:
    """Records how long the model would have waited, and waits not at all."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False


def _request(**options: Any) -> TextRequest:
    return TextRequest(PROMPT, 16, **options)  # type: ignore[arg-type]


def _ask(url: str, pauses: Pauses | None = None, **options: Any) -> list[tuple[int, TextReply]]:
    request = options.pop("request", _request())
    settings = EndpointSettings(url, "scripted", key_variable=KEY, **options)
    model = EndpointModel(settings, pauses or Pauses())
    try:
        model.submit(4, request)
        return model.collect()
    finally:
        model.close()


def test_a_reply_and_what_was_asked() -> None:
    with serving(lambda n, body: (200, completion("hi"))) as server:
        assert _ask(server.url + "/") == [(4, TextReply("hi", "stop"))]
        _ask(server.url, request=_request(temperature=0.4, top_p=0.9, seed=11))
    assert server.paths == ["/v1/chat/completions"] * 2
    greedy, sampled = server.requests
    assert greedy == {
        "model": "scripted", "messages": PROMPT, "max_tokens": 16, "temperature": 0.0,
        "stream": False,
    }  # fmt: skip
    assert (sampled["temperature"], sampled["top_p"], sampled["seed"]) == (0.4, 0.9, 11)


def test_status_429_is_tried_again_after_the_pause_that_it_asks_for() -> None:
    def plan(number: int, _: Any) -> Any:
        return (429, b"{}", {"Retry-After": "3"}) if number < 2 else (200, completion("done"))

    pauses = Pauses()
    with serving(plan) as server:
        assert _ask(server.url, pauses)[0][1].text == "done"
    assert len(server.requests) == 3
    assert pauses.seconds == [3.0, 3.0]


def test_status_500_for_ever_is_given_up() -> None:
    pauses = Pauses()
    with serving(lambda n, body: (500, b"broken \x1b[2J inside")) as server:
        with pytest.raises(EndpointError, match=r"status 500: 'broken \?\[2J inside'") as caught:
            _ask(server.url, pauses, retries=3, backoff_s=1.0)
        assert caught.value.status == 500
        assert caught.value.url == server.url + "/chat/completions"
        assert server.url in str(caught.value)
        assert "Given up after 4 attempts" in str(caught.value)
    assert len(server.requests) == 4
    assert pauses.seconds == [1.0, 2.0, 4.0]


def test_pauses_are_bounded() -> None:
    pauses = Pauses()
    plan = (503, b"", {"Retry-After": "86400"})
    with serving(lambda n, body: plan) as server, pytest.raises(EndpointError):
        _ask(server.url, pauses, retries=2)
    assert pauses.seconds == [30.0, 30.0]


@pytest.mark.parametrize(
    "data",
    [
        b"<html>no server of models</html>", b"[1]", b"null", b"{}", b'{"choices": []}',
        b'{"choices": [{"message": {"content": 3}}]}', b"[" * 50_000, b"\xff\xfe", b"",
    ],
)  # fmt: skip
def test_what_is_no_completion_is_said_at_once(data: bytes) -> None:
    told = pytest.raises(EndpointError, match="status 200, but with no chat completion")
    with serving(lambda n, body: (200, data)) as server, told:
        _ask(server.url)
    assert len(server.requests) == 1


def test_an_empty_reply_is_a_reply() -> None:
    with serving(lambda n, body: (200, completion(None))) as server:
        assert _ask(server.url) == [(4, TextReply("", "stop"))]


@pytest.mark.parametrize("pause", [0.02, 5.0])
def test_a_slow_server_runs_into_the_deadline(pause: float) -> None:
    """Byte by byte no single read takes long, but the whole does; or nothing comes at all."""
    plan = (200, completion("much too late" * 10), {}, pause)
    told = pytest.raises(EndpointError, match="cannot be reached")
    with serving(lambda n, body: plan) as server, told as caught:
        _ask(server.url, timeout_s=0.3, retries=1)
    assert caught.value.status is None
    assert len(server.requests) == 2


def test_nobody_listens() -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(EndpointError, match="cannot be reached"):
        _ask(url, retries=0)


def test_a_prompt_that_is_too_long_is_no_error() -> None:
    data = json.dumps({"error": {"code": "context_length_exceeded"}}).encode()
    with serving(lambda n, body: (400, data)) as server:
        assert _ask(server.url) == [(4, TextReply(None, "prompt_too_long"))]
    told = pytest.raises(EndpointError, match="status 400")
    with serving(lambda n, body: (400, b"bad field")) as server, told:
        _ask(server.url)


def test_redirects_are_not_followed() -> None:
    with serving() as elsewhere:
        plan = (302, b"", {"Location": elsewhere.url})
        told = pytest.raises(EndpointError, match="Redirects are not followed")
        with serving(lambda n, body: plan) as server, told:
            _ask(server.url)
    assert not elsewhere.requests


def test_the_key_goes_nowhere_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "top-secret")
    with serving(lambda n, body: (200, completion("hi"))) as server:
        _ask(server.url)
    assert "Authorization" not in server.headers[0], "a loopback address needs no key"
    with pytest.raises(EndpointError, match="in the clear") as caught:
        EndpointModel(EndpointSettings("http://models.example/v1", "m", key_variable=KEY))
    assert "top-secret" not in str(caught.value)
    model = EndpointModel(EndpointSettings("https://models.example/v1", "m", key_variable=KEY))
    assert "top-secret" not in json.dumps(dict(model.identity))
    assert "top-secret" not in str(model._refused(401, b"the key top-secret is wrong"))
    model.close()
    monkeypatch.setenv(KEY, "line\nbreak")
    with pytest.raises(EndpointError, match="cannot carry"):
        EndpointModel(EndpointSettings("https://models.example/v1", "m", key_variable=KEY))


def test_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "top-secret")
    monkeypatch.setattr("trainer.baselines.endpoint._key", lambda settings: "top-secret")
    told = pytest.raises(EndpointError, match=f"status 401.*{KEY}")
    with serving(lambda n, body: (401, b"no: top-secret")) as server, told as caught:
        _ask(server.url)
    assert server.headers[0]["Authorization"] == "Bearer top-secret"
    assert "top-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://127.0.0.1/v1", {}),
        ("127.0.0.1:8000/v1", {}),
        ("http://127.0.0.1:port/v1", {}),
        ("http://me:secret@127.0.0.1/v1", {}),
        ("http://127.0.0.1/v1?key=secret", {}),
        ("http://127.0.0.1/v1", {"timeout_s": 0.0}),
        ("http://127.0.0.1/v1", {"timeout_s": float("inf")}),
        ("http://127.0.0.1/v1", {"retries": -1}),
        ("http://127.0.0.1/v1", {"concurrency": 0}),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(EndpointError) as caught:
        EndpointSettings(url, "m", **options).check()
    assert "secret" not in str(caught.value)


def test_requests_are_under_way_together_and_counted() -> None:
    import threading

    together = threading.Barrier(3, timeout=20)

    def plan(number: int, body: Any) -> Any:
        together.wait()  # breaks, and the server with it, unless three are there at once
        return 200, completion(f"reply {number}")

    with serving(plan) as server:
        model = EndpointModel(EndpointSettings(server.url, "scripted", concurrency=3))
        for key in (7, 8, 9):
            model.submit(key, _request())
        with pytest.raises(ValueError, match="pending already"):
            model.submit(8, _request())
        found: dict[int, TextReply] = {}
        while len(found) < 3:
            found.update(model.collect())
        assert model.collect() == []
        model.close()
    assert sorted(found) == [7, 8, 9]
    identity = model.identity
    assert identity["usage"] == {
        "requests": 3, "retries": 0, "prompt_tokens": 21, "completion_tokens": 9,
    }  # fmt: skip
    assert identity["served_model"] == "scripted-1"
    assert identity["token_ids_recorded"] is False


def test_a_connection_that_is_lost_in_an_answer_is_tried_again() -> None:
    whole = completion("done")

    def plan(number: int, _: Any) -> Any:
        if number == 0:
            return (200, whole[:30], {"X": f"1\r\nContent-Length: {len(whole)}"})
        return (200, whole)

    pauses = Pauses()
    with serving(plan) as server:
        assert _ask(server.url, pauses, timeout_s=5.0)[0][1].text == "done"
        assert len(server.requests) == 2
    assert pauses.seconds == [0.5]

    cut = (200, whole[:30], {"X": f"1\r\nContent-Length: {len(whole)}"})
    with serving(lambda n, body: cut) as server:
        told = rf"broke off after 30 of {len(whole)} bytes"
        with pytest.raises(EndpointError, match=told):
            _ask(server.url, retries=1)


def test_a_prompt_that_is_too_long_for_llama_cpp_is_no_error() -> None:
    said = b"""{"error": {"code": 400, "type": "exceed_context_size_error", "message":
        "the request exceeds the available context size, try increasing it"}}"""
    with serving(lambda n, body: (400, said)) as server:
        assert _ask(server.url) == [(4, TextReply(None, "prompt_too_long"))]


def test_a_refused_key_is_told_by_whether_one_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-right")
    with serving(lambda n, body: (401, b"who?")) as server:
        with pytest.raises(EndpointError, match="A loopback address is sent no key") as caught:
            _ask(server.url)
        assert "Authorization" not in server.headers[0]
    assert KEY not in str(caught.value)
