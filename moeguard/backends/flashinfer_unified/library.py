"""The unified API, imported when it is first needed, and why it cannot be had.

Read off FlashInfer 0.7.4: ``fused_moe/api.py``, ``fused_moe/runners.py``, ``fused_moe/backends/frost_low_latency`` and
``cutile/cutile_common.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from packaging.version import InvalidVersion, Version

from moeguard.backends.flashinfer_cutlass.library import PACKAGE, does_not_import, installed, no_hopper

#: Releases whose unified API the adapters know. 0.6.18 names its formats otherwise, and 0.7.0 has no Frost.
RELEASES = ("0.7.4",)
#: What Frost compiles with, and the oldest version that its runner takes.
CUTLASS_DSL, OLDEST_DSL = "nvidia-cutlass-dsl", Version("4.8")


@dataclass(frozen=True, slots=True)
class Library:
    """FlashInfer, imported. api: ``fused_moe.api``. runners: ``fused_moe.runners``. tuner: the ``AutoTuner`` class."""

    version: str
    api: ModuleType
    runners: ModuleType
    tuner: Any
    autotune: Any


@lru_cache(maxsize=1)
def load() -> Library:
    """Import FlashInfer. Raises RuntimeError with one sentence when its version is unknown, or what its import raises."""
    found = unknown_release()
    if found is not None:
        raise RuntimeError(found)
    from flashinfer.autotuner import AutoTuner, autotune
    from flashinfer.fused_moe import api, runners

    return Library(str(installed()), api, runners, AutoTuner, autotune)


def frost_runner() -> Any:
    """The class ``FrostLowLatencyRunner``."""
    from flashinfer.fused_moe.backends.frost_low_latency.runner import FrostLowLatencyRunner

    return FrostLowLatencyRunner


def unknown_release() -> str | None:
    """A sentence when FlashInfer is not installed, or in a release without the API that the adapters drive."""
    found = installed()
    if found is None:
        return f"{PACKAGE} is not installed"
    if found not in RELEASES:
        return f"FlashInfer {found} does not have the unified MoE API that the adapter drives; known: {', '.join(RELEASES)}"
    return None


def refusal() -> str | None:
    """Why no runner can run on this machine; None when release, device and import are right."""
    reason = unknown_release() or no_hopper()
    if reason is not None:
        return reason
    try:
        load()
    except Exception as error:
        return does_not_import(installed(), error)
    return None


def cutile_refusal() -> str | None:
    """What cuTile lacks: the Python package, or a compiler ``tileiras`` that knows sm_90."""
    try:
        version("cuda-tile")
    except PackageNotFoundError:
        return "cuda-tile is not installed"
    from flashinfer.cutile import is_cuda_tile_available

    return None if is_cuda_tile_available() else "FlashInfer finds no cuTile compiler (tileiras) for this device"


def frost_refusal() -> str | None:
    """What Frost lacks: the compiler package in a version that its runner takes."""
    try:
        found = version(CUTLASS_DSL)
        return None if Version(found) >= OLDEST_DSL else f"{CUTLASS_DSL} {found} is too old; Frost takes {OLDEST_DSL} or newer"
    except PackageNotFoundError:
        return f"{CUTLASS_DSL} is not installed"
    except InvalidVersion:
        return f"{CUTLASS_DSL} has a version that cannot be read"
