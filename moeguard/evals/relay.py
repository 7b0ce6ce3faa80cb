"""A relay on loopback between lm-evaluation-harness and a server: it retries, counts why, and lets no fault pass for an answer.

lm-eval aborts when a request fails, and scores an answer that could not be parsed as wrong. Here a request that fails is sent
again; one that fails every time is answered with ``MISSING``, which is an error and no wrong answer.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from moeguard.evals.answer import MISSING
from moeguard.evals.connection import opened

#: Requests that fail every time, one after another, before the server counts as lost.
LOST = 3
#: Longest pause before a request is sent again, seconds.
LONGEST_PAUSE = 60.0
#: HTTP statuses after which nothing else can be expected, and those of a request that is itself at fault.
FATAL, REFUSED = (401, 403, 404, 405), (400, 413, 422)


class _Fault(Exception):
    """One attempt failed. kind: what is counted. pause: seconds the server asks for, None when it does not."""

    def __init__(self, kind: str, sentence: str, pause: float | None = None) -> None:
        super().__init__(sentence)
        self.kind, self.pause = kind, pause


class Relay:
    """Forwards POST requests to ``upstream`` while it is entered; ``url`` is its own address.

    attempts: how often one request is sent at most. timeout: seconds of one attempt. pause: seconds before the second attempt,
    doubled before each further one. answered: called after each request that came to its end. ended: why the server cannot
    answer any more, None while it may. retries: attempts that were repeated, by kind.
    failure: why the server is lost, None while it is not.
    """

    def __init__(self, upstream: str, *, timeout: float = 300.0, attempts: int = 5, pause: float = 1.0,
                 answered: Callable[[], None] = lambda: None, ended: Callable[[], str | None] = lambda: None) -> None:
        self.upstream, self.timeout, self.attempts, self.pause = upstream, timeout, attempts, pause
        self.answered, self.ended = answered, ended
        self.retries: Counter[str] = Counter()
        self.failure: str | None = None
        self._in_a_row, self._lock = 0, threading.Lock()
        self._server = _Listener(("127.0.0.1", 0), _handler(self))

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Relay:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.failure = self.failure or "stopped"
        self._server.shutdown()
        self._server.server_close()

    def forward(self, path: str, body: bytes, headers: dict[str, str]) -> bytes | None:
        """The server's answer to one request, or one that says that there is none; None once the server is lost."""
        fault = _Fault("none", "no attempt was made")
        for attempt in range(self.attempts):
            if self.failure is not None:
                return None
            try:
                answer = self._attempt(path, body, headers)
            except _Fault as one:
                fault = one
                if fault.kind == "refused" or self._lost(fault):
                    break
                if attempt + 1 < self.attempts:
                    with self._lock:
                        self.retries[fault.kind] += 1
                    time.sleep(min(self.pause * 2**attempt if fault.pause is None else fault.pause, LONGEST_PAUSE))
            else:
                with self._lock:
                    self._in_a_row = 0
                self.answered()
                return answer
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row >= LOST and self.failure is None:
                self.failure = f"{LOST} requests in a row failed every time, the last one: {fault}"
        if self.failure is not None:
            return None
        self.answered()
        return json.dumps({"choices": [{"index": 0, "text": MISSING, "finish_reason": "error",
                                        "message": {"role": "assistant", "content": MISSING}}]}).encode()

    def _lost(self, fault: _Fault) -> bool:
        """Whether no further attempt can help; then ``failure`` says why."""
        ended = self.ended()
        if ended is not None or fault.kind == "fatal":
            self.failure = ended or str(fault)
        return self.failure is not None

    def _attempt(self, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        try:
            with opened(self.upstream + path, body, headers, self.timeout) as response:
                answer: bytes = response.read()
        except urllib.error.HTTPError as error:
            raise _status(error) from None
        except TimeoutError:
            raise _Fault("timeout", f"no answer within {self.timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise _Fault("timeout", f"no answer within {self.timeout:g} s") from None
            raise _Fault("connection", f"the connection failed ({type(reason).__name__})") from None
        _check(answer)
        return answer


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 4096  # all requests of a chunk may come at once


def _status(error: urllib.error.HTTPError) -> _Fault:
    sentence = f"HTTP status {error.code}"
    if error.code in FATAL:
        return _Fault("fatal", sentence)
    if error.code in REFUSED:
        return _Fault("refused", sentence)
    asked = (error.headers.get("Retry-After") or "") if error.headers else ""
    kind = "429" if error.code == 429 else "5xx" if error.code >= 500 else str(error.code)
    return _Fault(kind, sentence, float(asked) if asked.isdigit() else None)


def _check(answer: bytes) -> None:
    """Raise _Fault unless it is a completion with a text."""
    try:
        choices = json.loads(answer)["choices"]
        texts: list[Any] = [one["text"] if "text" in one else one["message"]["content"] for one in choices]
        if not texts:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _Fault("malformed", "the answer is no completion") from None
    if not all(isinstance(text, str) for text in texts):
        raise _Fault("no_text", "the answer has no text")


def _handler(relay: Relay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept = {name: self.headers[name] for name in ("Content-Type", "Authorization") if self.headers[name]}
            answer = relay.forward(self.path, body, kept)
            self.send_response(200 if answer is not None else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer or b"")))
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
