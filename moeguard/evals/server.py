"""An OpenAI-compatible server: one that runs somewhere, or one that is started for an arm and always stopped."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
import urllib.error
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from moeguard.core.errors import MoeguardError
from moeguard.evals.connection import opened

KEEPER = Path(__file__).with_name("keeper.py")
#: Stands in a command for a free port of this machine.
PORT = "{port}"
#: What a request raises when what is at its other end is no such server.
FAULTS = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError)
#: Lines of a log that are shown when a server does not start.
SHOWN = 5
#: Texts whose numbers of tokens tell tokenizers apart.
PROBES = ("The quick brown fox jumps over the lazy dog.", "1234567890 + 9876543210 = 11111111100", "    def f(x):\n\treturn x",
          "\u6df7\u5408\u4e13\u5bb6\u6a21\u578b",
          "na\u00efve caf\u00e9 \u2014 \u03c0\u22483.14159", "supercalifragilisticexpialidocious")


class ServerLost(Exception):
    """The server cannot be reached, did not start or ended; one clause."""


class Server:
    """One arm's server while it is entered.

    arm: ``baseline`` or ``candidate``. url: of a server that runs, with or without ``/v1``; or where that of ``command``
    listens. command: for a shell; ``{port}`` stands for a free port. log: file for its output. start_timeout: seconds until it
    must answer. Raises MoeguardError when neither says where to go.
    """

    def __init__(self, arm: str, url: str | None, command: str | None, log: Path, start_timeout: float = 1800.0) -> None:
        if url is None and (command is None or PORT not in command):
            needs = f"--{arm}-url, or --{arm}-cmd with {PORT}" if command is None else f"{PORT} in it, or --{arm}-url beside it"
            raise MoeguardError(f"--{arm}-cmd: where its server listens is not said; allowed: {needs}")
        if url is not None:
            _check_url(f"--{arm}-url", url)
        self.arm, self._given, self.command, self.log, self.start_timeout = arm, url, command, log, start_timeout
        self.url, self._before = "", 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        port = _free_port()
        self.url = (self._given or f"http://127.0.0.1:{port}").rstrip("/").removesuffix("/v1")
        if self.command is not None:
            with self.log.open("ab") as output:
                self._before = output.tell()
                self._process = subprocess.Popen([sys.executable, str(KEEPER), self.command.replace(PORT, str(port))],
                                                 stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True)
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def ended(self) -> str | None:
        """How the server that was started here has ended; None while it runs, and for one that runs somewhere."""
        code = None if self._process is None else self._process.poll()
        return None if code is None else f"the server of the {self.arm} ended with exit code {code}"

    def models(self) -> list[str]:
        """Names that it serves. Raises ServerLost."""
        try:
            return [str(one["id"]) for one in _request(f"{self.url}/v1/models")["data"]]
        except FAULTS as error:
            raise ServerLost(f"{self.url}/v1/models of the {self.arm} gives no list of models ({_why(error)})") from None

    def tokens(self, model: str) -> tuple[Any, ...]:
        """For each of PROBES its token ids, or where the server does not tell them their number; None for neither."""
        found: list[Any] = []
        for text in PROBES:
            try:
                found.append(_request(f"{self.url}/tokenize", {"model": model, "prompt": text})["tokens"])
            except FAULTS:
                with contextlib.suppress(*FAULTS):
                    body = {"model": model, "prompt": text, "max_tokens": 1, "temperature": 0}
                    found.append(_request(f"{self.url}/v1/completions", body)["usage"]["prompt_tokens"])
                    continue
                return (None,) * len(PROBES)
        return tuple(found)

    def _wait(self) -> None:
        """Until it answers. Raises ServerLost."""
        until = time.monotonic() + (self.start_timeout if self._process is not None else 10.0)
        while True:
            ended = self.ended()
            if ended is not None:
                raise ServerLost(f"{ended} before it answered: {self._tail()}")
            try:
                self.models()
                return
            except ServerLost as error:
                if time.monotonic() > until:
                    raise ServerLost(str(error) if self._process is None else
                                     f"the server of the {self.arm} does not answer after {self.start_timeout:g} s: "
                                     f"{self._tail()}") from None
            time.sleep(0.2)

    def _tail(self) -> str:
        """What this server printed last; an earlier one, with the same log, may have printed questions."""
        lines = self.log.read_bytes()[self._before:].decode(errors="replace").split("\n") if self.log.exists() else []
        return " / ".join([line.strip() for line in lines if line.strip()][-SHOWN:]) or "it printed nothing"

    def _stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def _check_url(option: str, url: str) -> None:
    """Raise MoeguardError unless ``url`` says where a server listens. A user name is refused: reports would show its password."""
    try:
        parts = urlsplit(url)
        named, good = parts.username is not None, bool(parts.hostname) and parts.port != 0
    except ValueError:
        named, good = "@" in url, False
    if named:
        raise MoeguardError(f"{option}: holds a user name; allowed: http://HOST:PORT")
    if not good or parts.scheme not in ("http", "https") or any(one.isspace() or not one.isprintable() for one in url):
        raise MoeguardError(f"{option}: {url!r}; allowed: http://HOST:PORT")


def _request(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with opened(url, data, {"Content-Type": "application/json"}, 60.0) as response:
        return json.loads(response.read())


def _why(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    return str(getattr(error, "reason", "") or type(error).__name__)


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port
