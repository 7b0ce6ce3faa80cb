"""Children of the command line in this process come from a fork server, which has imported torch once for all of them.

Tests that start ``python -m moeguard`` see the children that a user gets; ``spawned`` of conftest.py gives them to others.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import SimpleNamespace
from typing import Any

from commandline import ROOT

#: What the children would import one after another; the first is found from the root of the repository.
PRELOAD = ["tests.lasting_server", "moeguard.engine.scenario", "moeguard.engine.samples", "moeguard.mutants.catalogue",
           "moeguard.cli.main", "moeguard.cli.campaign", "moeguard.fuzz.generation", "moeguard.report.html"]


class _Process(ForkServerProcess):
    """With the environment of its parent, and not of the server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._environment = dict(os.environ)

    def start(self) -> None:
        if forkserver._forkserver._forkserver_pid is None:  # type: ignore[attr-defined]
            with contextlib.chdir(ROOT):
                forkserver.ensure_running()
        super().start()

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class Context(ForkServerContext):
    """Processes from the fork server."""

    Process = _Process  # type: ignore[assignment]


class Popen:
    """A child as ``moeguard.engine.probe`` starts it: ``python -c CODE FD QUESTION ARGUMENT...``, without a terminal."""

    def __init__(self, command: Sequence[str], *, pass_fds: tuple[int], env: dict[str, str], start_new_session: bool,
                 stdin: int, stdout: int, stderr: int) -> None:
        assert start_new_session and stdin == stdout == stderr == subprocess.DEVNULL and command[1] == "-c"
        writing = Connection(os.dup(pass_fds[0]), readable=False)
        self._process = context().Process(target=_answer, args=(writing, command[4:], env), daemon=True)
        self._process.start()
        writing.close()
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("probe", timeout or 0.0)
        return self._process.exitcode


#: What ``moeguard.engine.probe`` needs of the module of this name.
SUBPROCESS = SimpleNamespace(Popen=Popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)


def context() -> Context:
    """The server starts with its first process."""
    made = Context()
    made.set_forkserver_preload(PRELOAD)
    return made


def _answer(writing: Connection, arguments: Sequence[str], environment: dict[str, str]) -> None:
    from moeguard.engine.probe import main

    os.setsid()
    for handle in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), handle)
    os.environ.update(environment)
    sys.argv = ["-c", str(os.dup(writing.fileno())), *arguments]
    main()
