"""Plug-in files into this process, after a child has shown that importing them comes back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from moeguard.backends import registry
from moeguard.core.errors import PluginError
from moeguard.engine.probe import ask

#: Seconds that the import of all plug-ins may take.
IMPORT_TIMEOUT = 120.0
#: Children that are asked: one that is killed was not necessarily killed by the plug-in.
TRIES = 3


def load_plugins(files: Iterable[Path | str] | None) -> list[str]:
    """Import plug-in files and return the names that they register, in order.

    A file that ends the process or does not come back does so in a child first. Raises PluginError with one sentence.
    """
    paths = [str(file) for file in files or ()]
    if not paths:
        return []
    for _ in range(TRIES):
        answer = ask("names", paths, timeout=IMPORT_TIMEOUT)
        if "SIGKILL" not in (answer.failure or ""):
            break
    if answer.failure is not None and not answer.usage:
        raise PluginError(f"--plugin: importing {', '.join(paths)} {answer.failure}")
    return [name for path in paths for name in registry.load_plugin(path)]
