"""Replies from verl's inference servers, as our sampler protocol has them.

Public API of verl 0.9: `LLMServerManager.get_client()` gives an `LLMServerClient`, whose coroutine
`generate(request_id, prompt_ids=..., sampling_params=...)` returns token ids, log-probs and a stop
reason. It balances load between the servers, and requests of one id go to one server, which then
has the prefix in its cache: an episode's session is that id.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol
from uuid import uuid4

from trainer.generation.base import (
    FinishReason,
    Generation,
    GenerationRequest,
    SamplerError,
    answer_all,
    check_request,
)

__all__ = ["ServerClient", "ServerSampler"]


class ServerClient(Protocol):
    """The part of verl's `LLMServerClient` that is used."""

    def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]: ...


class ServerSampler:
    """Sends requests as they come, from an event loop in a thread of its own.

    Every request carries a seed from its own stream if `seeded`; what a seed draws is up to the
    server, so runs are alike and not equal bit for bit.

    Args:
        client: of verl's servers, made in this process.
        stop_ids: tokens that end a reply.
        seeded: vLLM takes a seed for a request, other servers may not.
    """

    def __init__(self, client: ServerClient, stop_ids: Sequence[int], seeded: bool = True) -> None:
        self._client = client
        self._stop_ids = tuple(stop_ids)
        self._seeded = seeded
        self._done: queue.SimpleQueue[tuple[object, int, Generation | BaseException]]
        self._done = queue.SimpleQueue()
        self._pending: set[int] = set()
        self._round = object()  # replies of a round that was dropped are recognised and left
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="verl-sampler", daemon=True
        )
        self._thread.start()

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        return answer_all(self, requests)

    def submit(self, key: int, request: GenerationRequest) -> None:
        check_request(request)
        if key in self._pending:
            raise ValueError(f"key {key} is pending already; collect it first")
        self._pending.add(key)
        parameters = self._parameters(request)
        asyncio.run_coroutine_threadsafe(
            self._ask(self._round, key, request, parameters), self._loop
        )

    def collect(self) -> list[tuple[int, Generation]]:
        found: list[tuple[int, Generation]] = []
        while self._pending and not found:
            arrived = [self._done.get()]
            while not self._done.empty():
                arrived.append(self._done.get())
            for number, key, reply in arrived:
                if number is not self._round:
                    continue
                if isinstance(reply, BaseException):
                    raise SamplerError(
                        f"verl's server did not answer a request: {reply!r}. Its own log says why; "
                        "a prompt longer than rollout.max_model_len is a frequent reason."
                    ) from reply
                self._pending.discard(key)
                found.append((key, reply))
        return found

    def drop(self) -> None:
        self._pending.clear()
        self._round = object()

    def refresh(self) -> None:
        """Nothing: verl's checkpoint engine brings new weights to its servers."""

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _parameters(self, request: GenerationRequest) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "temperature": 0.0 if request.greedy else request.temperature,
            "top_p": request.top_p,
            "top_k": -1,
            "logprobs": True,
            "max_tokens": request.max_new_tokens,
        }
        if self._seeded and not request.greedy and request.rng is not None:
            parameters["seed"] = int(request.rng.integers(1 << 31))
        return parameters

    async def _ask(
        self, number: object, key: int, request: GenerationRequest, parameters: dict[str, Any]
    ) -> None:
        try:
            output = await self._client.generate(
                request.session or uuid4().hex,
                prompt_ids=list(request.prompt_ids),
                sampling_params=parameters,
            )
            self._done.put((number, key, self._generation(output, request)))
        except Exception as error:  # raised where the reply is collected
            self._done.put((number, key, error))

    def _generation(self, output: Any, request: GenerationRequest) -> Generation:
        ids = tuple(int(i) for i in output.token_ids)
        logprobs = tuple(float(x) for x in output.log_probs or ())
        if not ids or len(ids) > request.max_new_tokens or len(ids) != len(logprobs):
            raise ValueError(
                f"expected 1 to {request.max_new_tokens} ids with a log-prob each, found "
                f"{len(ids)} ids and {len(logprobs)} log-probs "
                f"(stop reason {output.stop_reason!r})"
            )
        finish: FinishReason = "stop" if ids[-1] in self._stop_ids else "length"
        return Generation(ids, logprobs, finish)


async def _end_tasks() -> None:
    """Cancels what else the loop has to do, and waits until it is over."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
