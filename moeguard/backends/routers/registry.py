"""Where routers come from: built-ins, and ``moeguard.register``, for example in a plug-in file."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from moeguard.backends.routers.protocol import Router
from moeguard.core.errors import PluginError, UnknownNameError

BUILTINS: dict[str, str] = {
    "torch_scores": "moeguard.backends.routers.torch_routers:TorchScores",
    "torch_argmax": "moeguard.backends.routers.torch_routers:TorchArgmax",
    "flashinfer_topk_deepseek": "moeguard.backends.routers.flashinfer:FlashInferTopkDeepseek",
}
#: Names in the order of their registration, and by plug-in file.
registered: list[str] = []
from_files: dict[Path, tuple[str, ...]] = {}
_routers: dict[str, Router] = {}


def register_router(router: Router) -> Router:
    """Make ``router`` known under its name; a name that exists is replaced. Raises PluginError when the name is not valid."""
    name = getattr(router, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9_]+", name):
        raise PluginError(f"{type(router).__name__}.name: {name!r}; allowed: one or more of a-z, 0-9, _")
    _routers[name] = router
    registered.append(name)
    return router


def names() -> list[str]:
    """Names of all routers that are known."""
    return list(dict.fromkeys([*BUILTINS, *_routers]))


def get(name: str) -> Router:
    """The router called ``name``. Raises UnknownNameError."""
    if name in _routers:
        return _routers[name]
    if name not in BUILTINS:
        raise UnknownNameError("--router", name, names(), "a router of your own needs --plugin FILE.py")
    module, _, attribute = BUILTINS[name].partition(":")
    router = getattr(importlib.import_module(module), attribute)()
    assert isinstance(router, Router)
    _routers[name] = router
    return router


def unavailable(name: str) -> str | None:
    """Why the router called ``name`` cannot run on this machine, None when it can. What it raises is a reason."""
    try:
        availability = get(name).availability()
    except UnknownNameError:
        raise
    except Exception as error:
        return f"availability() raised {type(error).__name__}: {error}"
    return None if availability.available else availability.reason or "not available"
