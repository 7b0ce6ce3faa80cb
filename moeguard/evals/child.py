"""lm-evaluation-harness as a process of its own: started with an interpreter that has it, asked over pipes, always ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from moeguard.core.errors import MoeguardError

HARNESS = Path(__file__).with_name("harness.py")
#: The version that everything here was written for.
VERSION = "0.4.13"
#: Answers from the user's files alone, and quietly.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1",
         "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "LMEVAL_LOG_LEVEL": "ERROR"}


class HarnessFailed(Exception):
    """lm-eval could not do a job; its own words."""


class Child:
    """The process while it is entered.

    python: interpreter, None for this one. log: file for its output, None for nowhere. offline: whether it may not reach the hub.
    Raises MoeguardError when the interpreter or lm-eval is missing.
    """

    def __init__(self, python: str | None, log: Path | None, *, offline: bool) -> None:
        self.python, self.log, self.offline = python or sys.executable, log, offline
        self.version = ""

    def __enter__(self) -> Child:
        read, write = os.pipe()
        output = self.log.open("ab") if self.log is not None else None
        try:
            self._process = subprocess.Popen(
                [self.python, str(HARNESS), str(write)], stdin=subprocess.PIPE, stdout=output or subprocess.DEVNULL,
                stderr=output or subprocess.DEVNULL, pass_fds=(write,), start_new_session=True, text=True,
                env=os.environ | QUIET | _direct() | (OFFLINE if self.offline else {}))
        except OSError as error:
            os.close(read)
            raise MoeguardError(f"--python: {self.python} cannot be started ({error.strerror})") from None
        finally:
            os.close(write)
            if output is not None:
                output.close()
        self._results = os.fdopen(read, encoding="utf-8")
        hello = self._read()
        if "version" not in hello:
            self.__exit__(None, None, None)
            raise MoeguardError(f"lm-eval is missing in {self.python} ({hello.get('missing', 'it does not start')}); allowed: "
                                f"pip install 'moeguard[eval]', or --python with an interpreter that has lm-eval {VERSION}")
        self.version = str(hello["version"])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30 if kind is None else 3)
        except subprocess.TimeoutExpired:
            self._end()
        self._results.close()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def job(self, job: str, /, **arguments: Any) -> Any:
        """Have a job of ``harness.py`` done. Raises HarnessFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"job": job, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise HarnessFailed("lm-eval's process is gone") from None
        answer = self._read()
        if "ok" not in answer:
            raise HarnessFailed(str(answer.get("error", "lm-eval's process is gone")))
        return answer["ok"]

    def _read(self) -> Mapping[str, Any]:
        line = self._results.readline()
        data: Mapping[str, Any] = json.loads(line) if line.endswith("\n") else {}  # half a line: it was killed while it wrote
        return data


def _direct() -> dict[str, str]:
    """The relay is on this machine, and is not asked through a proxy."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    hosts = ",".join([*([known] if known else []), "127.0.0.1"])
    return {"no_proxy": hosts, "NO_PROXY": hosts}
