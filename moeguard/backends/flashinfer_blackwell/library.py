"""FlashInfer behind one call: every use of it by the adapters of this package goes through ``Library.call``.

So what a run passes to the library is what a probe binds to the signatures of a wheel: the probe is another ``Library``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from moeguard.backends.flashinfer_blackwell.entries import Entry, unknown
from moeguard.backends.flashinfer_cutlass.library import PACKAGE, does_not_import, installed
from moeguard.backends.protocol import Refused

DSL = "nvidia-cutlass-dsl"


class MissingEntry(Refused):
    """The installed release lacks an entry point; the text names it and the version."""


class Library:
    """The installed FlashInfer of ``release``."""

    def __init__(self, release: str) -> None:
        self.release = release

    def function(self, entry: Entry) -> Any:
        """The function behind ``entry``. Raises MissingEntry."""
        reason = entry.lacking(self.release)
        if reason is not None:
            raise MissingEntry(reason)
        try:
            return getattr(importlib.import_module(entry.module), entry.name)
        except (ImportError, AttributeError) as error:
            raise MissingEntry(absent(entry, self.release, error)) from error

    def call(self, entry: Entry, **arguments: Any) -> Any:
        """Call ``entry``. Raises MissingEntry where this release lacks it or a parameter, and what the function raises."""
        reason = entry.lacking(self.release, arguments)
        if reason is not None:
            raise MissingEntry(reason)
        return self.function(entry)(**arguments)

    @property
    def tuner(self) -> Any:
        """The ``AutoTuner`` class."""
        return importlib.import_module("flashinfer.autotuner").AutoTuner

    @property
    def autotune(self) -> Any:
        """The context manager in which calls tune."""
        return importlib.import_module("flashinfer.autotuner").autotune


def absent(entry: Entry, release: str, error: Exception) -> str:
    """The sentence for an entry point that the version table has and this installation has not."""
    hint = f": {DSL} is not installed" if entry.dsl and _dsl() is None else f" ({type(error).__name__}: {error})"
    return f"FlashInfer {release} has no {entry.path} here{hint}"


@lru_cache(maxsize=1)
def load() -> Library:
    """The installed release. Raises RuntimeError with one sentence when there is none, or none that the adapters know."""
    found = installed()
    reason = f"{PACKAGE} is not installed" if found is None else unknown(found)
    if reason is not None:
        raise RuntimeError(reason)
    assert found is not None
    return Library(found)


def refusal(entries: Iterable[Entry], capabilities: Sequence[tuple[int, int]]) -> str | None:
    """Why none of ``entries`` can run on this machine; None when one can. Imports FlashInfer only when all else says yes.

    capabilities: the compute capabilities that the kernels are for.
    """
    found = installed()
    if found is None:
        return f"{PACKAGE} is not installed"
    reason = unknown(found)
    if reason is not None:
        return reason
    there = [entry for entry in entries if entry.lacking(found) is None]
    if not there:
        return next(iter(entry.lacking(found) for entry in entries), None)
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    here = torch.cuda.get_device_capability()
    if here not in capabilities:
        wanted = ", ".join(f"{major}.{minor}" for major, minor in capabilities)
        return f"compute capability {here[0]}.{here[1]}; these kernels of FlashInfer {found} are for {wanted}"
    if all(entry.dsl for entry in there) and _dsl() is None:
        return f"FlashInfer {found} has no {there[0].path} here: {DSL} is not installed"
    try:
        load().function(there[0])
    except MissingEntry as error:
        return str(error)
    except Exception as error:
        return does_not_import(found, error)
    return None


@lru_cache(maxsize=1)
def _dsl() -> str | None:
    """Version of the compiler package, from its metadata alone."""
    try:
        return version(DSL)
    except PackageNotFoundError:
        return None
