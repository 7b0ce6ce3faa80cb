"""Where backends come from: built-ins, entry points (group ``moeguard.backends``), ``register`` and plug-in files."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from moeguard.backends.protocol import Backend
from moeguard.backends.routers import registry as routers
from moeguard.backends.routers.protocol import Router
from moeguard.core.errors import OWN_BACKEND, PluginError, UnknownNameError

ENTRY_POINT_GROUP = "moeguard.backends"
BUILTINS: dict[str, str] = {
    "torch_reference": "moeguard.backends.torch_reference:TorchReference",
    "emulated_cutedsl": "moeguard.backends.emulated_cutedsl.standard:EmulatedCuteDsl",
    "emulated_cutedsl_batched": "moeguard.backends.emulated_cutedsl.batched:EmulatedCuteDslBatched",
    "triton": "moeguard.backends.triton_moe.backend:Triton",
    "flashinfer_cutlass": "moeguard.backends.flashinfer_cutlass.backend:FlashInferCutlass",
    "flashinfer_cutlass_unfused": "moeguard.backends.flashinfer_cutlass.backend:FlashInferCutlassUnfused",
    "flashinfer_cutile": "moeguard.backends.flashinfer_unified.cutile:FlashInferCuTile",
    "flashinfer_frost": "moeguard.backends.flashinfer_unified.frost:FlashInferFrost",
    "flashinfer_cutedsl": "moeguard.backends.flashinfer_blackwell.cutedsl:FlashInferCuteDSL",
    "flashinfer_cutedsl_batched": "moeguard.backends.flashinfer_blackwell.cutedsl_batched:FlashInferCuteDSLBatched",
    "flashinfer_trtllm": "moeguard.backends.flashinfer_blackwell.trtllm:FlashInferTRTLLM",
    "flashinfer_trtllm_logits": "moeguard.backends.flashinfer_blackwell.trtllm:FlashInferTRTLLMLogits",
}

Plugged = TypeVar("Plugged", bound=Backend | Router)

_registered: dict[str, Backend] = {}
_plugins: dict[Path, tuple[ModuleType, tuple[str, ...]]] = {}
_collecting: list[str] = []


def register(plugged: Plugged) -> Plugged:
    """Make a backend or a router known under its name; one that exists is replaced. Raises PluginError when it is not valid."""
    if isinstance(plugged, Router):
        routers.register_router(plugged)
    else:
        _register(plugged)
    return plugged


def _register(backend: Backend) -> Backend:
    if not isinstance(backend, Backend):
        raise PluginError(f"register: expected an instance of moeguard.Backend or moeguard.Router, got {type(backend).__name__}")
    name = getattr(backend, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9_]+", name):
        raise PluginError(f"{type(backend).__name__}.name: {name!r}; allowed: one or more of a-z, 0-9, _")
    _registered[name] = backend
    _collecting.append(name)
    return backend


def load_plugin(path: Path | str) -> tuple[str, ...]:
    """Import a plug-in file once per process and return the names of the backends that it registered.

    A file that registers nothing itself, but defines subclasses of Backend or Router, gets each of them registered.
    Raises PluginError with one sentence when it does not import or defines neither.
    """
    file = Path(path).resolve()
    if file in _plugins:
        return _plugins[file][1]
    if not file.is_file():
        raise PluginError(f"--plugin: {path} is not a file")
    module_name = f"moeguard_plugin_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"--plugin: {path} is not a Python file (allowed: *.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    _collecting.clear()
    known = len(routers.registered)
    try:
        spec.loader.exec_module(module)
        if not _collecting and len(routers.registered) == known:
            for value in list(vars(module).values()):
                if isinstance(value, type) and issubclass(value, (Backend, Router)) and value.__module__ == module_name:
                    register(value())
    except PluginError as error:
        del sys.modules[module_name]
        raise PluginError(f"--plugin: {path}: {error}") from None
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, KeyboardInterrupt):
            raise
        text = " ".join(str(error).split())
        raise PluginError(f"--plugin: {path} failed to import: {type(error).__name__}: {text}") from error
    names = tuple(dict.fromkeys(_collecting))
    if not names and len(routers.registered) == known:
        del sys.modules[module_name]
        raise PluginError(f"--plugin: {path} registers no backend; call moeguard.register(MyBackend())")
    _plugins[file] = (module, names)
    routers.from_files[file] = tuple(dict.fromkeys(routers.registered[known:]))
    return names


def replaced(asked: Iterable[str]) -> dict[str, Path]:
    """Those of ``asked`` that are names of built-in backends, but come from a plug-in file, with that file."""
    return {name: file for file, (_, names) in _plugins.items() for name in names if name in BUILTINS and name in set(asked)}


def names() -> list[str]:
    """Names of all backends that are known: built-in, from entry points, and registered."""
    return list(dict.fromkeys([*BUILTINS, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)), *_registered]))


def get(name: str) -> Backend:
    """The backend called ``name``. Raises UnknownNameError or PluginError."""
    if name in _registered:
        return _registered[name]
    target = BUILTINS.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return _register(getattr(importlib.import_module(module), attribute)())
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            try:
                value = entry.load()
                return _register(value() if isinstance(value, type) else value)
            except PluginError:
                raise
            except Exception as error:
                raise PluginError(f"entry point {name!r} failed to load: {type(error).__name__}: {error}") from error
    raise UnknownNameError("--backend", name, names(), OWN_BACKEND)


def unavailable(name: str) -> str | None:
    """Why the backend called ``name`` cannot run on this machine, None when it can. What it raises is a reason."""
    try:
        availability = get(name).availability()
    except Exception as error:
        return f"availability() raised {type(error).__name__}: {error}"
    return None if availability.available else availability.reason or "not available"
