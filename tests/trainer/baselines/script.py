"""An agent that reads the possible commands from a prompt and plays by rules; it has no memory.

It stands behind a real server (`Server`) or in the place of a policy (`ScriptSampler`).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes import ByteTokenizer
from trainer.generation.base import Generation, GenerationRequest

Messages = list[dict[str, str]]


def answer(messages: Messages) -> str:
    """A reply in the form that the prompt asks for."""
    first, last = messages[0]["content"], messages[-1]["content"]
    if "In at most four sentences" in last:
        return "I looked in too few places.\nNext time I open more of them."
    if "<action>" in last:
        listed = last.rpartition("Commands that are possible now: [")[2].partition("].\n")[0]
        commands = re.findall(r"'([^'\n]+)'", listed)
        done = re.search(r"you have sent (\d+) command", last)
        command = choose(first, commands, int(done.group(1)) if done else 0)
        return f"<think>so be it</think><action>{command}</action>"
    commands = last.rpartition("Commands that are possible now: ")[2].split(", ")
    command = choose(first.rpartition("Now it is your turn.")[2], commands, len(messages) // 2)
    return f"> think: {command} may help\n> {command}\nYou arrive at a place that I made up."


def choose(text: str, commands: Sequence[str], step: int) -> str:
    """Takes what the task names, brings it where it belongs, else looks elsewhere."""
    task = re.search(r"(?:task is to|The task): (.*?)\.", text)
    words = task.group(1).split() if task else []
    target = words[-1] if words else ""
    wanted = [c for c in commands if c.startswith("move ") and f"to {target}" in c]
    held = any(c.startswith("move ") for c in commands)
    if not held:
        takes = [c for c in commands if c.startswith("take ") and f"from {target}" not in c]
        wanted += [c for c in takes if c.split()[1] in words]
        wanted += [c for c in commands if c.startswith("open ")]
    else:
        wanted += [c for c in commands if c.startswith("use ")]
        wanted += [c for c in commands if c.startswith(f"go to {target}")][step % 2 :]
    if wanted:
        return wanted[0]
    ways = [c for c in commands if c.startswith("go to ")]
    return ways[step % len(ways)] if ways else commands[0]


class ScriptSampler:
    """Tokens of what `say` answers to the conversation in a prompt; greedy or not."""

    def __init__(self, say: Callable[[Messages], str] = answer) -> None:
        self.say = say
        self.prompts: list[Messages] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        result = []
        for request in requests:
            messages = conversation(ByteTokenizer().decode(list(request.prompt_ids)))
            self.prompts.append(messages)
            ids = (*self.say(messages).encode(), 256)[: request.max_new_tokens]
            result.append(Generation(ids, (0.0,) * len(ids), "stop"))
        return result


def conversation(text: str) -> Messages:
    """The messages that `ByteTokenizer`'s chat template made a text of."""
    parts = re.split(r"\[(user|assistant)\]", text)[1:-2]
    return [
        {"role": role, "content": content.removesuffix("\n")}
        for role, content in zip(parts[::2], parts[1::2], strict=True)
    ]


class Server:
    """What a stand-in server does: for each request `plan` gives a status, a body and a delay."""

    def __init__(self, plan: Callable[[int, dict[str, Any]], Any]) -> None:
        self.plan = plan
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.lock = threading.Lock()
        self.url = ""


def completion(text: str | None) -> bytes:
    """The body of a chat completion."""
    return json.dumps(
        {
            "model": "scripted-1",
            "choices": [{"message": {"content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        }
    ).encode()


def plays(_: int, body: dict[str, Any]) -> tuple[int, bytes]:
    return 200, completion(answer(body["messages"]))


@contextmanager
def serving(plan: Callable[[int, dict[str, Any]], Any] = plays) -> Iterator[Server]:
    """A server on a free port of this machine.

    `plan` gets the number of the request and its body, and returns (status, body) with headers as a
    third and seconds to wait before each byte of the body as a fourth entry, if there are any.
    """
    state = Server(plan)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state.lock:
                number = len(state.requests)
                state.requests.append(body)
                state.headers.append(dict(self.headers))
                state.paths.append(self.path)
            status, data, *more = state.plan(number, body)
            headers = more[0] if more else {}
            pause = more[1] if len(more) > 1 else 0.0
            try:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if not pause:
                    self.wfile.write(data)
                    return
                for byte in data:
                    time.sleep(pause)
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
            except OSError:
                pass  # the client has given up

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
