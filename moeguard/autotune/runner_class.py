"""FlashInfer's real ``MoERunner`` without its compiled module, for questions about the tuner that launch nothing."""

from __future__ import annotations

import importlib
from typing import Any


class _NotBuilt:
    """Stands for a compiled module: what is read from it at definition time exists, and does nothing."""

    def build_and_load(self) -> _NotBuilt:
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **keywords: None


def unbuilt_runner_class(arch: str = "90") -> type:
    """A ``MoERunner`` class of the installed FlashInfer, as ``get_cutlass_fused_moe_module(arch)`` makes it.

    It is a new class each time, and not the one that calls of the library use. Its tuning configuration is real; making
    an instance of it, or running it, is not possible. Imports FlashInfer. Raises RuntimeError as ``runner_class_of``.
    """
    core = importlib.import_module("flashinfer.fused_moe.core")
    builder = f"gen_cutlass_fused_moe_sm{arch}_module"
    real = getattr(core, builder)
    setattr(core, builder, lambda *arguments: _NotBuilt())
    try:
        namespace = core.get_cutlass_fused_moe_module.__wrapped__(arch)  # past the cache, which is for built modules
    finally:
        setattr(core, builder, real)
    return runner_class_of(namespace)


def runner_class_of(namespace: Any) -> type:
    """``MoERunner`` of what ``get_cutlass_fused_moe_module`` returned; before 0.6.18 it is not handed out.

    Raises RuntimeError when it is not where the releases that are known keep it.
    """
    found = getattr(namespace, "MoERunner", None) or _from_closure(namespace.cutlass_fused_moe)
    if not isinstance(found, type):
        raise RuntimeError("flashinfer.fused_moe.core: MoERunner is not where it was in the releases 0.6.6 to 0.7.4")
    return found


def _from_closure(function: Any) -> Any:
    """The class that an op closes over."""
    function = getattr(function, "__wrapped__", function)
    for cell in getattr(function, "__closure__", None) or ():
        if getattr(cell.cell_contents, "__name__", "") == "MoERunner":
            return cell.cell_contents
    return None
