"""One question about this machine, answered in a process of its own: what ends that process ends nothing else.

The child writes one JSON object, of any length, to a nameless file; what the library prints goes nowhere.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Children that were not waited for yet, of any thread.
_running: set[subprocess.Popen[bytes]] = set()
_CODE = "from moeguard.engine.probe import main; main()"


@dataclass(frozen=True, slots=True)
class Answer:
    """data: what the child said. failure: why there is none: an exception, an exit or a signal, or the time-out.

    usage: whether the failure is the user's (a plug-in that does not import).
    """

    data: Any = None
    failure: str | None = None
    usage: bool = False


def ask(question: str, arguments: Sequence[str] = (), *, timeout: float = 120.0, first: Path | None = None) -> Answer:
    """Ask a child process. question: a name of QUESTIONS. timeout: seconds until the child is killed. first: a folder whose
    modules it finds before any other.
    """
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryFile() as file:
        child = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(file.fileno()), question, *arguments], pass_fds=(file.fileno(),),
            stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*([] if first is None else [str(first.resolve())]), *sys.path])})
        _running.add(child)
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            return Answer(failure=f"did not answer within {timeout:g} s")
        finally:
            _running.discard(child)
            _kill(child)
        file.seek(0)
        text = file.read()
    try:
        said = json.loads(text)
    except ValueError:
        return Answer(failure=f"ended the process ({exit_name(code)})")
    return Answer(said.get("data"), said.get("failure"), bool(said.get("usage")))


def exit_name(code: int | None) -> str:
    """``SIGSEGV``, or ``exit code 3``."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def end_all() -> None:
    """Kill every child of every thread; ``ask`` then returns there."""
    for child in tuple(_running):
        _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """The child, if it still runs, and whatever it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def main() -> None:
    """The child: answer the question of the command line."""
    writing, question, *arguments = sys.argv[1:]
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    said: dict[str, Any]
    try:
        said = {"data": QUESTIONS[question](*arguments)}
    except BaseException as error:
        from moeguard.core.errors import PluginError

        text = " ".join(str(error).split())[:300]
        usage = isinstance(error, PluginError)
        kind = "" if usage else type(error).__name__
        said = {"failure": ": ".join(part for part in (kind, text) if part), "usage": usage}
    with os.fdopen(int(writing), "wb") as file:
        file.write(json.dumps(said).encode())
    os._exit(0)  # no teardown of libraries


def end_with_parent(parent: int) -> None:
    """End this process, busy or not, when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _devices() -> dict[str, Any]:
    import torch

    return {"cuda": torch.cuda.is_available(), "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0}


def _fingerprint(device: str) -> dict[str, Any]:
    from moeguard.core.environment import fingerprint

    data = fingerprint(device)
    if device == "cuda":
        import torch

        data["gpu_memory_bytes"] = int(torch.cuda.get_device_properties(0).total_memory)
    return data


def _import(module: str) -> str | None:
    """The version that the imported module states."""
    version = getattr(importlib.import_module(module), "__version__", None)
    return None if version is None else str(version)


def _names(*plugins: str) -> dict[str, Any]:
    from moeguard.backends import registry

    loaded = [name for plugin in plugins for name in registry.load_plugin(plugin)]
    replaced = {name: file.name for name, file in registry.replaced(loaded).items()}
    return {"names": registry.names(), "from_plugins": loaded, "replaced": replaced,
            "own": [name for name in registry.BUILTINS if name not in replaced]}


def _backend(name: str, *plugins: str) -> dict[str, Any]:
    """Availability of a backend, and for each recipe None, or why no sample case is supported."""
    from moeguard.backends import registry
    from moeguard.core.recipe import RECIPES
    from moeguard.engine.samples import refusal

    for plugin in plugins:
        registry.load_plugin(plugin)
    backend = registry.get(name)
    availability = backend.availability()
    if not availability.available:
        return {"reason": availability.reason or "not available", "recipes": {}}
    return {"reason": None, "recipes": {recipe: refusal(backend, recipe) for recipe in RECIPES}}


def _backends(*names: str) -> dict[str, Any]:
    """The same for several that come with moeguard, by name."""
    return {name: _backend(name) for name in names}


def _contract() -> dict[str, Any]:
    from moeguard.backends.wheel_contract.examine import examine

    return examine()


QUESTIONS: dict[str, Callable[..., Any]] = {
    "devices": _devices, "fingerprint": _fingerprint, "import": _import, "names": _names, "backend": _backend,
    "backends": _backends, "contract": _contract}
