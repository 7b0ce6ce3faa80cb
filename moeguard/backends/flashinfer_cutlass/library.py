"""The library itself, imported when it is first needed: version, architecture, which recipes its module holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from moeguard.backends.flashinfer_cutlass import modules
from moeguard.backends.flashinfer_cutlass.versions import Release, release

PACKAGE = "flashinfer-python"
#: Recipes whose kernels a FlashInfer module that was built in part holds, separated by commas. A call into a missing one ends
#: the process, and the library cannot be asked.
BUILT = "MOEGUARD_FLASHINFER_RECIPES"
#: The compute capability that the adapter drives; other architectures have other tactic lists.
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class Library:
    """FlashInfer, imported. core: ``flashinfer.fused_moe.core``. tuner: the ``AutoTuner`` class. autotune: its context."""

    release: Release
    core: ModuleType
    tuner: Any
    autotune: Any

    @property
    def module(self) -> Any:
        """The namespace of the compiled SM90 module: ``MoERunner`` and the interleaving function."""
        return self.core.get_cutlass_fused_moe_module("90")


@lru_cache(maxsize=1)
def installed() -> str | None:
    """Version of the installed distribution, from its metadata alone, which is read once."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


def installed_release() -> Release | None:
    """The row of the installed release; None without one, or for one that is not in the table. Imports nothing."""
    found = installed()
    known = release(found) if found else None
    return known if isinstance(known, Release) else None


def refusal() -> str | None:
    """Why the adapter cannot run on this machine; None when it can. Imports FlashInfer only when all else says yes.

    A run does not compile: a first build takes far longer than any call may, and would be reported as a hang.
    """
    found = installed()
    if found is None:
        return f"{PACKAGE} is not installed"
    known = release(found)
    if isinstance(known, str):
        return known
    reason = no_hopper()
    if reason is not None:
        return reason
    try:
        load()
        return modules.missing()
    except Exception as error:
        return does_not_import(found, error)


def no_hopper() -> str | None:
    """Why this machine has no device for kernels of Hopper alone; None when it has."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability != HOPPER:
        return f"compute capability {capability[0]}.{capability[1]}; the adapter drives 9.0 only"
    return None


def does_not_import(found: str | None, error: Exception) -> str:
    """What an exception that FlashInfer ``found`` raised at its import comes to, in one sentence."""
    return f"FlashInfer {found} does not import: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def built_recipes() -> frozenset[str] | None:
    """Recipes that the loaded module holds by the variable BUILT; None when it holds all."""
    named = os.environ.get(BUILT, "")
    return frozenset(part.strip() for part in named.split(",") if part.strip()) or None


@lru_cache(maxsize=1)
def load() -> Library:
    """Import FlashInfer. Raises RuntimeError with one sentence when its version is unknown, or what its import raises."""
    found = installed()
    known = release(found) if found else f"{PACKAGE} is not installed"
    if isinstance(known, str):
        raise RuntimeError(known)
    from flashinfer.autotuner import AutoTuner, autotune
    from flashinfer.fused_moe import core

    return Library(known, core, AutoTuner, autotune)
