"""Plug-in files into this process, after a child has shown that importing them comes back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from moeguard.backends import registry
from moeguard.backends.routers import registry as router_registry
from moeguard.core.errors import PluginError
from moeguard.engine.probe import ask

#: Seconds that the import of all plug-ins may take.
IMPORT_TIMEOUT = 120.0
#: Children that are asked: one that is killed was not necessarily killed by the plug-in.
TRIES = 3


def load_plugins(files: Iterable[Path | str] | None, *, routers: bool = False) -> list[str]:
    """Import plug-in files and return the names of the backends, or else of the routers, that they register, in order.

    A file that ends the process or does not come back does so in a child first. Raises PluginError with one sentence, also
    for a file that registers none of them.
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
    names: list[str] = []
    for path in paths:
        backends = registry.load_plugin(path)
        found = router_registry.from_files[Path(path).resolve()] if routers else backends
        if not found:
            wanted, has = ("router", "backends (moeguard run)") if routers else ("backend", "routers (moeguard router)")
            raise PluginError(f"--plugin: {path} registers no {wanted}, only {has}")
        names += found
    return names
