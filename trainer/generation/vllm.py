"""Sampling from a vLLM server of its own, by HTTP.

Start it so that it samples as the trainer counts, e.g.

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --logprobs-mode processed_logprobs \\
        --generation-config vllm --enable-prefix-caching

- Token ids go in and come back (`return_token_ids`); no text is decoded on the way.
- `--logprobs-mode processed_logprobs` makes log-probs those of the tempered distribution. The
  first request that would tell the difference is preceded by a probe, which refuses a server
  that reports others.
- Every request carries a seed from its own stream. What a seed draws is up to vLLM: its kernels
  round differently in batches of other sizes, so replies need not repeat bit for bit.
- `refresh` writes the weights into a folder that the server can read and has it load them from
  there (`/collective_rpc` with `reload_weights`, then `/reset_prefix_cache`; vLLM offers both in
  development mode only). That mode lets anyone who reaches the server run what they like, so the
  server belongs on this machine or in a closed network.

The server's arithmetic is not the trainer's: train with `optim.old_logprobs: recompute`.
"""

from __future__ import annotations

import http.client
import json
import math
import operator
import queue
import shutil
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import nn

from trainer.generation.base import (
    Generation,
    GenerationRequest,
    SamplerError,
    answer_all,
    check_request,
)

__all__ = ["ServerError", "VLLMSampler"]

_LOOPBACK = "http://127.0.0.1:8000"
_SAME = 1e-6
# What rounding may add to a log-probability of 0.
_ROUNDED = 1e-3


class ServerError(SamplerError):
    """A server that does not answer, or not as it should.

    Attributes:
        url: what was asked.
        status: of the answer; None: there was none.
    """

    def __init__(self, url: str, status: int | None, reason: str) -> None:
        self.url, self.status = url, status
        answer = "no answer" if status is None else f"status {status}"
        super().__init__(f"{url}: {answer}: {reason}")


class VLLMSampler:
    """`StreamingSampler` over an OpenAI-compatible vLLM server.

    Args:
        stop_ids: tokens that end a reply; they stay in the ids.
        model: whose weights the server shall have; None: the server keeps its own.
        url: of the server, without a path.
        name: of the served model; None: the first that the server lists.
        weights_dir: a folder that both sides reach by this path; needed to `refresh`.
        timeout_s: longest wait for one answer.
        concurrency: requests under way at once.

    Raises:
        ValueError: no stop id, or a URL that is not http(s)://host[:port].
    """

    def __init__(
        self,
        stop_ids: Collection[int],
        *,
        model: nn.Module | None = None,
        url: str = _LOOPBACK,
        name: str | None = None,
        weights_dir: str | Path | None = None,
        timeout_s: float = 600.0,
        concurrency: int = 128,
    ) -> None:
        if not stop_ids:
            raise ValueError("stop_ids is empty; every reply would run to max_new_tokens")
        self.stop_ids = frozenset(int(i) for i in stop_ids)
        self.model, self.name, self.timeout_s = model, name, timeout_s
        self.server = _Server(url, timeout_s)
        self.weights_dir = None if weights_dir is None else Path(weights_dir)
        self.concurrency = concurrency
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[int, tuple[GenerationRequest, dict[str, Any]]] = {}
        self._unsent: list[int] = []
        # Answers of requests that were dropped still arrive: they belong to an older round.
        self._round = 0
        self._arrived: queue.SimpleQueue[tuple[int, int, Generation | Exception]]
        self._arrived = queue.SimpleQueue()
        self._probed = False
        self._version = 0

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Sample one reply for each request, in their order.

        Raises:
            ValueError: a request that cannot be served.
            ServerError: the server failed.
            SamplerError: replies are pending.
        """
        if self._pending:
            raise SamplerError("Replies are pending. Collect or drop them before generate().")
        return answer_all(self, requests)

    def submit(self, key: int, request: GenerationRequest) -> None:
        """Send a request; does not wait.

        Raises:
            ValueError: it cannot be served, or `key` is pending already.
            ServerError: the server cannot be asked, or reports log-probs of another kind.
        """
        check_request(request)
        if key in self._pending:
            raise ValueError(f"key {key} is pending already; collect it first")
        if request.greedy and (request.temperature != 1 or request.top_p != 1):
            raise ValueError(
                "vLLM reports log-probs of greedy replies at temperature 1 and top_p 1, found "
                f"temperature {request.temperature} and top_p {request.top_p}."
            )
        if not request.greedy and (request.temperature != 1 or request.top_p != 1):
            self._probe()
        # The seed is drawn once: what has to be sent again asks for the same reply.
        self._pending[key] = (request, self._body(request))
        self._send(key)

    def collect(self) -> list[tuple[int, Generation]]:
        """Replies that have arrived: at least one, unless nothing is pending.

        Raises:
            ServerError: the server failed on a request and no reply has arrived. Everything
                stays pending, and what failed is sent again by the next call.
        """
        if not self._pending:
            return []
        unsent, self._unsent = self._unsent, []
        for key in unsent:
            self._send(key)
        done: list[tuple[int, Generation]] = []
        failure: Exception | None = None
        while not done and (failure is None or not self._arrived.empty()):
            answers = [self._arrived.get()]
            while not self._arrived.empty():
                answers.append(self._arrived.get())
            for number, key, answer in answers:
                if number != self._round:
                    continue
                if isinstance(answer, Generation):
                    done.append((key, answer))
                    del self._pending[key]
                else:
                    self._unsent.append(key)
                    failure = answer
        if not done and failure is not None:
            raise failure
        return done

    def drop(self) -> None:
        """Forget what is pending; what the server still answers is thrown away."""
        self._round += 1
        self._pending.clear()
        self._unsent.clear()

    def refresh(self) -> None:
        """Gives the server the model's weights.

        Raises:
            SamplerError: there is no model or folder, or replies are pending.
            ServerError: the server did not load them.
        """
        if self.model is None or self.weights_dir is None:
            raise SamplerError(
                "The server cannot be given new weights: set sampler.weights_dir to a folder "
                "that it and the trainer reach by the same path."
            )
        if self._pending:
            raise SamplerError(
                "The weights changed while replies are running. Collect or drop them first."
            )
        folder = self._write_weights(self.model, self.weights_dir)
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            self.server.post("/collective_rpc", body)
            self.server.post("/reset_prefix_cache", {})
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Ends the threads; the server goes on."""
        self.drop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, key: int) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="vllm")
        self._pool.submit(self._ask, self._round, key, *self._pending[key])

    def _ask(
        self, number: int, key: int, request: GenerationRequest, body: Mapping[str, Any]
    ) -> None:
        """In a thread: one request, and its answer or what went wrong into the queue."""
        answer: Generation | Exception
        try:
            answer = self._generation(request, self.server.post("/v1/completions", body))
        except Exception as error:  # whatever it is, `collect` has to hear of it
            answer = error
        self._arrived.put((number, key, answer))

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._served(),
            "prompt": [int(i) for i in request.prompt_ids],
            "max_tokens": request.max_new_tokens,
            "temperature": 0.0 if request.greedy else request.temperature,
            "top_p": request.top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "n": 1,
            "logprobs": 1,
            "return_token_ids": True,
            # The stop tokens are ours alone, and they stay in the ids.
            "stop_token_ids": sorted(self.stop_ids),
            "ignore_eos": True,
            "skip_special_tokens": False,
        }
        if not request.greedy and request.rng is not None:
            body["seed"] = int(request.rng.integers(1 << 31))
        return body

    def _served(self) -> str:
        if self.name is None:
            answer = self.server.get("/v1/models")
            try:
                self.name = str(answer["data"][0]["id"])
            except (KeyError, IndexError, TypeError) as error:
                raise ServerError(
                    self.server.url + "/v1/models", 200, f"no model is listed: {answer!r}"
                ) from error
        return self.name

    def _generation(self, request: GenerationRequest, answer: Any) -> Generation:
        url = self.server.url + "/v1/completions"
        try:
            (choice,) = answer["choices"]
            # An id as 7.0 or "7" is no id: `index` takes neither.
            ids = tuple(operator.index(i) for i in choice["token_ids"])
            logprobs = tuple(float(v) for v in choice["logprobs"]["token_logprobs"])
            seen = choice.get("prompt_token_ids")
            seen = None if seen is None else list(seen)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerError(
                url, 200, f"no token ids and log-probs ({error!r}); vLLM 0.10.2 or newer has both"
            ) from error
        if not 0 < len(ids) == len(logprobs) <= request.max_new_tokens:
            raise ServerError(
                url,
                200,
                f"{len(ids)} ids and {len(logprobs)} log-probs for at most "
                f"{request.max_new_tokens} tokens",
            )
        if seen is not None and seen != [int(i) for i in request.prompt_ids]:
            raise ServerError(url, 200, "the prompt was changed on the way; it has other ids")
        if not all(-math.inf < value <= _ROUNDED for value in logprobs):
            raise ServerError(url, 200, f"log-probs that are none: {list(logprobs)!r:.100}")
        known = self._vocabulary()
        if not all(0 <= i < known for i in ids):
            raise ServerError(url, 200, f"ids that the model has not: {list(ids)!r:.100}")
        if not self.stop_ids.isdisjoint(ids[:-1]):
            raise ServerError(url, 200, "a reply went on after a stop token")
        stopped = ids[-1] in self.stop_ids
        if not stopped and len(ids) < request.max_new_tokens:
            raise ServerError(
                url, 200, f"a reply ended after {len(ids)} tokens without a stop token"
            )
        return Generation(ids, logprobs, "stop" if stopped else "length")

    def _vocabulary(self) -> float:
        """Ids that the model has; no bound where the server keeps its own model."""
        size = getattr(getattr(self.model, "config", None), "vocab_size", None)
        return size if isinstance(size, int) else math.inf

    def _probe(self) -> None:
        """Refuses a server whose log-probs know no temperature."""
        if self._probed:
            return
        stop = min(self.stop_ids)
        tables = []
        for temperature in (1.0, 2.0):
            answer = self.server.post(
                "/v1/completions",
                {
                    "model": self._served(), "prompt": [stop], "max_tokens": 1, "logprobs": 5,
                    "temperature": temperature, "top_p": 1.0, "top_k": -1, "seed": 0,
                },
            )  # fmt: skip
            try:
                tables.append(answer["choices"][0]["logprobs"]["top_logprobs"][0])
            except (KeyError, IndexError, TypeError) as error:
                raise ServerError(
                    self.server.url + "/v1/completions", 200, f"no log-probs: {error!r}"
                ) from error
        try:
            shared = tables[0].keys() & tables[1].keys()
            same = all(abs(tables[0][token] - tables[1][token]) < _SAME for token in shared)
        except (AttributeError, TypeError) as error:
            raise ServerError(
                self.server.url + "/v1/completions", 200, f"no log-probs: {error!r}"
            ) from error
        if same:
            raise ServerError(
                self.server.url + "/v1/completions",
                200,
                "log-probs do not change with the temperature. Start the server with "
                "--logprobs-mode processed_logprobs.",
            )
        self._probed = True

    def _write_weights(self, model: Any, parent: Path) -> Path:
        """The weights, adapters added to them, in a new folder, complete when it has its name."""
        from trainer.models.lora import has_adapters, merged
        from trainer.models.tiny import _no_progress_bar

        self._version += 1
        folder = parent.absolute() / f"weights-{self._version:06d}"
        partial = folder.with_suffix(".partial")
        for old in (folder, partial):
            shutil.rmtree(old, ignore_errors=True)
        partial.mkdir(parents=True)
        with _no_progress_bar():
            whole: Any = merged(model) if has_adapters(model) else model
            whole.save_pretrained(partial)
        return partial.rename(folder)


class _Server:
    """JSON over HTTP with a time limit, and errors that name the address."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"sampler.url={url!r} must be http(s)://host[:port], without a path")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.secure, self.host, self.port = parts.scheme == "https", parts.hostname, parts.port
        self.timeout_s = timeout_s

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("POST", path, json.dumps(body).encode())

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        url = self.url + path
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=self.timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(
                url, None, f"{error!r}. Is the server running, and sampler.timeout_s enough?"
            ) from error
        finally:
            connection.close()
        if response.status != 200:
            hint = ""
            if response.status == 404 and not path.startswith("/v1/"):
                hint = " Start the server with VLLM_SERVER_DEV_MODE=1."
            raise ServerError(url, response.status, text[:300].decode(errors="replace") + hint)
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError as error:
            raise ServerError(url, response.status, f"no JSON: {text[:100]!r}") from error
