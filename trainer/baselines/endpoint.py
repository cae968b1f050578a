"""A server that speaks the chat-completions protocol, as a model of text. Standard library only.

Promises (tests/trainer/baselines/test_endpoint.py):

1. Every request ends: each has a deadline, and retries (408, 409, 425, 429, 5xx, connections that
   fail or time out) are bounded and wait longer each time.
2. Whatever is wrong raises `EndpointError`, which names url and status.
3. The key comes from an environment variable, is in no error and no result, is not sent to a
   loopback address and to no other place over plain http, and follows no redirect.

Replies are text: token ids and log-probs are not recorded.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from agent_envs.errors import SeroError
from trainer.baselines.models import TextReply, TextRequest

__all__ = ["EndpointError", "EndpointModel", "EndpointSettings"]

_RETRIED = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_MOST_BYTES = 16 << 20
_LONGEST_WAIT_S = 30.0
_LONGEST_TIMEOUT_S = 86_400.0
# As servers say it; the last is llama.cpp's.
_TOO_LONG = ("context_length_exceeded", "context length", "available context size")


class EndpointError(SeroError, RuntimeError):
    """A server that cannot be used.

    Attributes:
        url: what was asked.
        status: of the last answer; None: there was none.
    """

    def __init__(self, message: str, url: str, status: int | None = None) -> None:
        super().__init__(message)
        self.url = url
        self.status = status


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """How a server is asked.

    Attributes:
        url: up to and with the version, e.g. `http://127.0.0.1:8000/v1`.
        model: name that the server knows it by.
        key_variable: environment variable with the key; unset: none is sent.
        timeout_s: of one attempt, from connecting to the last byte.
        retries: attempts after the first.
        backoff_s: wait before the first retry; doubles each time, 30 s at most.
        concurrency: requests on their way at once.
    """

    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    timeout_s: float = 120.0
    retries: int = 5
    backoff_s: float = 0.5
    concurrency: int = 8

    def check(self) -> None:
        """Raises `EndpointError` on what cannot be meant."""
        parts = _parts(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointError(
                f"The endpoint {_shown(self.url)} is no http address: expected something like "
                "http://127.0.0.1:8000/v1.",
                _shown(self.url),
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise EndpointError(
                f"The endpoint {_shown(self.url)} holds a user, a query or a fragment. Put the key "
                f"into the environment variable {self.key_variable} and give the bare address.",
                _shown(self.url),
            )
        if not self.model:
            raise EndpointError("The name of the model is empty.", _shown(self.url))
        if not 0 < self.timeout_s <= _LONGEST_TIMEOUT_S or self.retries < 0 or self.concurrency < 1:
            raise EndpointError(
                f"timeout={self.timeout_s} must be above 0 and at most {_LONGEST_TIMEOUT_S:g}, "
                f"retries={self.retries} at least 0, "
                f"concurrency={self.concurrency} at least 1.",
                _shown(self.url),
            )


class EndpointModel:
    """Asks a server; `concurrency` requests are on their way at once.

    Args:
        sleep: waits between attempts, in seconds; True ends the waiting and the request with it
            (the model was dropped). For tests.

    Raises:
        EndpointError: the settings cannot be meant, or the key would leave in the clear.
    """

    def __init__(
        self, settings: EndpointSettings, sleep: Callable[[float], bool] | None = None
    ) -> None:
        settings.check()
        self.settings = settings
        self.url = settings.url.rstrip("/") + "/chat/completions"
        self._key = _key(settings)
        self._stopped = threading.Event()
        self._sleep = sleep
        self._pool = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="endpoint")
        self._pending: dict[Future[TextReply], int] = {}
        self._opener = _opener(settings.url)
        self._lock = threading.Lock()
        self._said: dict[str, Any] = {}
        self._usage = {"requests": 0, "retries": 0, "prompt_tokens": 0, "completion_tokens": 0}

    @property
    def identity(self) -> Mapping[str, Any]:
        """Address, name, what the server says about itself, and what it counted so far."""
        with self._lock:
            return {
                "kind": "endpoint",
                "url": self.settings.url,
                "name": self.settings.model,
                **self._said,
                "usage": dict(self._usage),
                "token_ids_recorded": False,
            }

    def submit(self, key: int, request: TextRequest) -> None:
        """Takes a request.

        Raises:
            ValueError: `key` is pending already.
        """
        if key in self._pending.values():
            raise ValueError(f"key {key} is pending already; collect it first")
        self._pending[self._pool.submit(self._answer, request, self._stopped)] = key

    def collect(self) -> list[tuple[int, TextReply]]:
        """Finished replies; [] when nothing is pending.

        Raises:
            EndpointError: names url and status.
        """
        if not self._pending:
            return []
        done, _ = wait(self._pending, return_when=FIRST_COMPLETED)
        return [(self._pending.pop(future), future.result()) for future in done]

    def drop(self) -> None:
        """Forgets what is pending; requests on their way are not retried."""
        self._stopped.set()
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._stopped = threading.Event()

    def close(self) -> None:
        """Ends the threads, once their current requests have ended."""
        self.drop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    # -------------------------------------------------------------------------- one request

    def _answer(self, request: TextRequest, stopped: threading.Event) -> TextReply:
        body = json.dumps(_payload(self.settings.model, request)).encode()
        problem: EndpointError | None = None
        for attempt in range(self.settings.retries + 1):
            asked = 0.0
            try:
                status, headers, data = self._post(body)
                if status == 200:
                    return self._read(data, status)
                if status == 400 and _says_too_long(data):
                    return TextReply(None, "prompt_too_long")
                problem = self._refused(status, data)
                asked = _retry_after(headers)
                if status not in _RETRIED:
                    raise problem
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                what = type(reason).__name__ if not str(reason) else str(reason)
                problem = EndpointError(f"{self.url} cannot be reached: {what}.", self.url)
            if attempt == self.settings.retries or stopped.is_set():
                break
            pause = min(_LONGEST_WAIT_S, max(asked, self.settings.backoff_s * 2**attempt))
            with self._lock:
                self._usage["retries"] += 1
            if (stopped.wait if self._sleep is None else self._sleep)(pause):
                break
        assert problem is not None
        tries = self.settings.retries + 1
        raise EndpointError(f"{problem} Given up after {tries} attempts.", self.url, problem.status)

    def _post(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of one attempt."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        call = urllib.request.Request(self.url, data=body, headers=headers, method="POST")
        deadline = time.monotonic() + self.settings.timeout_s
        with self._lock:
            self._usage["requests"] += 1
        try:
            with self._opener.open(call, timeout=self.settings.timeout_s) as response:
                return response.status, dict(response.headers), self._body(response, deadline)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), self._body(error, deadline)

    def _body(self, response: Any, deadline: float) -> bytes:
        """All of it, unless it takes too long (a timeout of the socket is one of a single read)."""
        parts, size = [], 0
        while part := response.read1(1 << 16):
            parts.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise EndpointError(
                    f"{self.url} sent more than {_MOST_BYTES >> 20} MiB.", self.url, response.status
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"no whole answer within {self.settings.timeout_s:g} s")
        # `read1` takes a connection that is lost for the end of the body.
        promised = response.headers.get("Content-Length", "")
        chunked = "Transfer-Encoding" in response.headers
        if promised.isdecimal() and size < int(promised) and not chunked:
            raise ConnectionError(f"the answer broke off after {size} of {promised} bytes")
        return b"".join(parts)

    def _read(self, data: bytes, status: int) -> TextReply:
        try:
            answer = json.loads(data)
            choice = answer["choices"][0]
            text = choice["message"]["content"]
            if not isinstance(text, str | None):
                raise TypeError(f"content is of type {type(text).__name__}")
            usage = answer.get("usage") or {}
            counted = {
                name: int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")
            }
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as e:
            raise EndpointError(
                f"{self.url} answered status {status}, but with no chat completion "
                f"({type(e).__name__}: {e}): {_excerpt(data)}. Is the address that of an "
                "OpenAI-compatible server?",
                self.url,
                status,
            ) from e
        with self._lock:
            for name, count in counted.items():
                self._usage[name] += count
            for name in ("model", "system_fingerprint"):
                if isinstance(answer.get(name), str):
                    self._said[f"served_{name}"] = answer[name]
        return TextReply(text or "", str(choice.get("finish_reason") or "stop"))

    def _refused(self, status: int, data: bytes) -> EndpointError:
        hint = ""
        if status in (401, 403):
            hint = self._about_key()
        elif status == 404:
            hint = " Is the address right up to its version (.../v1), and the model's name?"
        elif 300 <= status < 400:
            hint = " Redirects are not followed; give the address itself."
        text = self._clean(_excerpt(data))
        return EndpointError(
            f"{self.url} answered status {status}: {text}.{hint}", self.url, status
        )

    def _about_key(self) -> str:
        name = self.settings.key_variable
        if self._key is not None:
            return f" Is the key in the environment variable {name} right?"
        if _is_loopback(self.settings.url):
            return (
                " A loopback address is sent no key: start the server without one, or reach it "
                "through https by another name."
            )
        return f" No key was sent: put it into the environment variable {name}."

    def _clean(self, text: str) -> str:
        """A server may quote the key that it was sent."""
        return text if self._key is None else text.replace(self._key, "[key]")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _payload(model: str, request: TextRequest) -> dict[str, Any]:
    prompt = request.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "stream": False,
    }
    if request.temperature > 0:
        body["top_p"] = request.top_p
        if request.seed is not None:
            body["seed"] = request.seed
    return body


def _key(settings: EndpointSettings) -> str | None:
    key = os.environ.get(settings.key_variable) or None
    if key is None or _is_loopback(settings.url):
        return None
    if not key.isascii() or not key.isprintable():
        raise EndpointError(
            f"The environment variable {settings.key_variable} holds no key: it has characters "
            "that a header cannot carry.",
            settings.url,
        )
    if _parts(settings.url).scheme != "https":
        raise EndpointError(
            f"{settings.url} is plain http, and {settings.key_variable} is set: the key would be "
            "sent in the clear. Use https, or name an unset variable.",
            settings.url,
        )
    return key


def _opener(url: str) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if _is_loopback(url):
        handlers.append(urllib.request.ProxyHandler({}))  # no proxy can reach it
    return urllib.request.build_opener(*handlers)


def _is_loopback(url: str) -> bool:
    host = _parts(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parts(url: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(url)
        parts.port  # noqa: B018  (checks that it is a number)
    except ValueError as error:
        raise EndpointError(f"The endpoint is no address: {error}.", "") from error
    return parts


def _shown(url: str) -> str:
    """An address without what may be secret in it."""
    parts = _parts(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _says_too_long(data: bytes) -> bool:
    text = data[:4096].decode(errors="replace").lower()
    return any(sign in text for sign in _TOO_LONG)


def _retry_after(headers: Mapping[str, str]) -> float:
    value = next((v for name, v in headers.items() if name.lower() == "retry-after"), "0")
    try:
        seconds = float(value)
    except ValueError:  # a date; the own pause will do
        return 0.0
    return seconds if 0 <= seconds <= _LONGEST_WAIT_S else _LONGEST_WAIT_S


def _excerpt(data: bytes) -> str:
    text = " ".join(data[:2000].decode(errors="replace").split())
    text = "".join(c if c.isprintable() else "?" for c in text)
    return repr(text[:200])
