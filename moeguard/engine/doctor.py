"""What this machine can run: the environment, and each backend with each recipe. Libraries are imported elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from moeguard.core.environment import fingerprint
from moeguard.core.errors import MoeguardError, PluginError, UnknownNameError
from moeguard.core.recipe import RECIPES
from moeguard.engine.probe import Answer, ask, end_all
from moeguard.engine.wheels import told

#: Libraries by distribution, with the module that is imported to see whether it works.
LIBRARIES = {"torch": "torch", "triton": "triton", "flashinfer-python": "flashinfer", "nvidia-cutlass-dsl": "cutlass"}
#: Distributions that come without a module of their own.
COMPANIONS = ("flashinfer-cubin", "flashinfer-jit-cache")
#: nvidia-cutlass-dsl and the distributions that hold its native part.
CUTLASS_DSL = ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-core",
               "nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13")
DEVICES = ("cpu", "cuda")
#: Probes at a time: each imports a large library.
PARALLEL = 2


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """environment: JSON data. backends: ``{"name", "recipe", "available", "reason"}`` of each backend and recipe.

    ``flashinfer_contract`` of the environment: what the installed release was asked (``moeguard.backends.wheel_contract``), None
    without one.
    """

    environment: dict[str, Any]
    backends: tuple[dict[str, Any], ...]

    def to_data(self) -> dict[str, Any]:
        """The JSON object of ``moeguard doctor --json``."""
        return {"environment": self.environment, "backends": list(self.backends)}


def diagnose(plugins: Sequence[str] = (), device: str | None = None, *, timeout: float = 120.0,
             progress: Callable[[str], None] = lambda what: None) -> Diagnosis:
    """Probe everything. device: ``cpu``, ``cuda``, None for ``cuda`` where there is one. timeout: seconds of a probe.

    Raises UnknownNameError, PluginError when a plug-in does not import, MoeguardError when there is no such device.
    """
    if device is not None and device not in DEVICES:
        raise UnknownNameError("--device", device, list(DEVICES))
    progress("plug-ins and names")
    names = ask("names", plugins, timeout=timeout)
    if names.usage:
        raise PluginError(names.failure or "a plug-in does not import")
    if names.failure and plugins:
        raise PluginError(f"--plugin: {', '.join(plugins)} failed to import: {names.failure}")
    progress("devices and libraries")
    with _probing() as pool:
        devices = pool.submit(ask, "devices", timeout=timeout)
        libraries = {name: pool.submit(ask, "import", (module,), timeout=timeout)
                     for name, module in LIBRARIES.items() if _version(name)}
        chosen = _device(device, devices.result())
        machine = pool.submit(ask, "fingerprint", (chosen,), timeout=timeout)
        imports = {name: answer.result() for name, answer in libraries.items()}
        environment = _environment(chosen, machine.result(), devices.result(), imports)
        progress("backends")
        release = _version("flashinfer-python")
        contract = pool.submit(ask, "contract", timeout=timeout) if release else None
        known = names.data or {"names": [], "own": [], "replaced": {}}
        own = known["own"]
        together = pool.submit(ask, "backends", own, timeout=timeout)
        asked = {name: pool.submit(ask, "backend", (name, *plugins), timeout=timeout)
                 for name in known["names"] if name not in own}
        if (said := together.result()).failure is not None:  # one of them ended it: which one, each tells by itself
            asked |= {name: pool.submit(ask, "backend", (name,), timeout=timeout) for name in own}
        answers = {name: asked[name].result() if name in asked else Answer(said.data[name]) for name in known["names"]}
        rows = tuple(row for name, answer in answers.items() for row in _rows(name, answer))
        environment["flashinfer_contract"] = told(release, contract.result()) if release and contract else None
    if names.failure:
        environment["problems"].append(f"the list of backends: {names.failure}")
    environment["problems"] += [f"{file} replaces the built-in backend {name!r}"
                                for name, file in known["replaced"].items()]
    return Diagnosis(environment, rows)


@contextmanager
def _probing() -> Iterator[ThreadPoolExecutor]:
    """Threads that ask; an interrupt ends their children."""
    pool = ThreadPoolExecutor(PARALLEL)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        end_all()
        raise
    finally:
        pool.shutdown()


def _device(wanted: str | None, devices: Answer) -> str:
    there = bool(devices.data and devices.data["cuda"])
    if wanted == "cuda" and not there:
        raise MoeguardError("--device: cuda is not available on this machine; allowed: cpu")
    return wanted or ("cuda" if there else "cpu")


def _environment(device: str, machine: Answer, devices: Answer, imports: dict[str, Answer]) -> dict[str, Any]:
    data = machine.data or fingerprint("cpu")
    libraries = {}
    for name, module in LIBRARIES.items():
        answer = imports.get(name)
        libraries[name] = {
            "version": _version(name),
            "works": None if answer is None else answer.failure is None,
            "reason": "not installed" if answer is None else answer.failure and f"import {module}: {answer.failure}",
        }
    problems = [f"{name}: {entry['reason']}" for name, entry in libraries.items() if entry["works"] is False]
    problems += [f"{what}: {one.failure}" for what, one in (("device", machine), ("GPU", devices)) if one.failure]
    return data | {
        "device": device,
        "gpus": devices.data["gpus"] if devices.data else None,
        "libraries": libraries,
        "companions": {name: _version(name) for name in COMPANIONS},
        "cutlass_dsl": cutlass_dsl(),
        "problems": problems,
    }


def cutlass_dsl() -> dict[str, Any]:
    """Installed distributions of nvidia-cutlass-dsl with their versions, and the flavour that they amount to.

    flavour: ``cu13``, ``cu12``, ``cu12+cu13`` (both), ``base`` (neither), None when nothing is installed.
    """
    found = {name: there for name in CUTLASS_DSL if (there := _version(name))}
    special = [part for part in ("cu12", "cu13") if f"nvidia-cutlass-dsl-libs-{part}" in found]
    return {"flavour": "+".join(special) or ("base" if found else None), "distributions": found}


def _rows(name: str, answer: Answer) -> list[dict[str, Any]]:
    refused: dict[str, str | None]
    if answer.failure is not None or answer.data["reason"] is not None:
        reason = answer.data["reason"] if answer.failure is None else f"its probe failed: {answer.failure}"
        refused = dict.fromkeys(RECIPES, reason)
    else:
        refused = answer.data["recipes"]
    return [{"name": name, "recipe": recipe, "available": refused[recipe] is None, "reason": refused[recipe]}
            for recipe in RECIPES]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
