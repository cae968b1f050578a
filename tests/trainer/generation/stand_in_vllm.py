"""A server that speaks the routes of vLLM which the client uses, and really runs a model."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from trainer.generation.base import GenerationRequest
from trainer.generation.hf import HFSampler


class StandIn:
    """A running server; use as a context manager.

    Attributes:
        model: what answers.
        asked: bodies of the completions that were asked for.
        dies_after: completions that are answered before the server breaks off; None: all.
        processed: whether log-probs know the temperature.
        resets: how often the prefix cache was reset.
        change: applied to every answer of a completion.
    """

    def __init__(self, model: Any, port: int = 0) -> None:
        self.model = model
        self.asked: list[dict[str, Any]] = []
        self.dies_after: int | None = None
        self.processed, self.development = True, True
        self.resets = 0
        self.change: Any = lambda answer: answer
        self.lock = threading.Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stand_in.answer(self, b"")

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                stand_in.answer(self, self.rfile.read(size))

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.http.shutdown()
        self.http.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, raw: bytes) -> None:
        body = json.loads(raw) if raw else {}
        with self.lock:
            if handler.path == "/v1/completions":
                if self.dies_after is not None and len(self.asked) >= self.dies_after:
                    handler.connection.close()  # as a killed server leaves its clients
                    return
                self.asked.append(body)
            status, answer = self.route(handler.path, body)
        data = b"" if answer is None else json.dumps(answer).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def route(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny"}]}
        if path == "/v1/completions":
            return self.complete(body)
        if path == "/collective_rpc" and self.development:
            assert body["method"] == "reload_weights"
            folder = Path(body["kwargs"]["weights_path"])
            self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache" and self.development:
            self.resets += 1
            return 200, None
        return 404, {"detail": "Not Found"}

    def complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        if body["model"] != "tiny":
            return 404, {"error": f"The model {body['model']!r} does not exist."}
        greedy = body["temperature"] == 0
        request = GenerationRequest(
            body["prompt"],
            np.random.default_rng(body.get("seed", 0)),
            body["max_tokens"],
            1.0 if greedy else body["temperature"],
            greedy,
            top_p=body["top_p"],
        )
        stop = body.get("stop_token_ids") or [self.model.config.vocab_size]
        (reply,) = HFSampler(self.model, stop).generate([request])
        logprobs = reply.logprobs if self.processed else self.raw(request, reply.ids)
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([body["prompt"]])).logits[0, -1].double()
        divisor = request.temperature if self.processed else 1.0
        top = torch.log_softmax(logits / divisor, -1).topk(5)
        named = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        choice = {
            "index": 0,
            "finish_reason": reply.finish_reason,
            "logprobs": {
                "token_logprobs": list(logprobs),
                "top_logprobs": [{f"token {i}": v for i, v in named}],
            },
        }
        if body.get("return_token_ids"):
            choice |= {"token_ids": list(reply.ids), "prompt_token_ids": body["prompt"]}
        return 200, self.change({"choices": [choice]})

    def raw(self, request: GenerationRequest, ids: tuple[int, ...]) -> list[float]:
        """Log-probs before the temperature."""
        row = [*request.prompt_ids, *ids]
        with torch.no_grad():
            table = self.model(input_ids=torch.tensor([row])).logits[0].double().log_softmax(-1)
        start = len(request.prompt_ids) - 1
        return [float(table[start + i, token]) for i, token in enumerate(ids)]
