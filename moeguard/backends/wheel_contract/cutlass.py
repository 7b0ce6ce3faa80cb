"""The calls of ``flashinfer_cutlass`` and its variant, which reach kernels through a compiled module: stand-ins answer for it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from moeguard.autotune.runner_class import unbuilt_runner_class
from moeguard.backends.flashinfer_cutlass import backend as adapter
from moeguard.backends.flashinfer_cutlass import interleaving, library, tuning
from moeguard.backends.flashinfer_cutlass.backend import FlashInferCutlass
from moeguard.backends.flashinfer_cutlass.layouts import prepare
from moeguard.backends.flashinfer_cutlass.tactics import DEFAULT
from moeguard.backends.wheel_contract.recorder import Mismatch
from moeguard.core.case import Case
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

_INTERLEAVE = "interleave_moe_weights_for_sm90_mixed_gemm"
_PREPARE, _HUMMING = "flashinfer.fused_moe.prepare", "preprocess_moe_weights_for_sm90_mixed_gemm_humming"


@dataclass(frozen=True, slots=True)
class Bindings:
    """Functions whose calls bind to the real signatures. called, executed: names of those that were called, that ran."""

    release: str
    called: set[str] = field(default_factory=set)
    executed: set[str] = field(default_factory=set)

    def of(self, function: Any, answer: Callable[..., Any] | None = None) -> Any:
        """``function`` with its calls bound; ``answer`` is called in its place, by the names of its parameters."""
        name = function.__qualname__.split(".<locals>.")[-1].removesuffix(".__init__")

        def call(*args: Any, **named: Any) -> Any:
            try:
                given = inspect.signature(inspect.unwrap(function)).bind(*args, **named)
            except TypeError as error:
                raise Mismatch(f"{name} of FlashInfer {self.release}: {error}") from None
            self.called.add(name)
            if answer is not None:
                return answer(**given.arguments)
            self.executed.add(name)
            return function(*args, **named)

        return call


def bound(backend: FlashInferCutlass, case: Case) -> tuple[set[str], set[str]]:
    """Names of the functions that the calls of ``case`` were bound to, and of the helpers that ran. Raises Mismatch."""
    one = library.load()
    bindings = Bindings(one.release.version)
    stood: Any = _stood_in(one, bindings)
    problem = build_problem(case, WeightBank())
    with _interleaving(bindings), patch.object(adapter, "load", lambda: stood):
        prepared = prepare(problem.weights, case, stood)
        out = torch.empty(problem.output_shape, dtype=problem.output_dtype)
        tuning.call(stood, prepared, problem.batch, out, DEFAULT, fused=backend.fused,
                    workspace=torch.empty(8, dtype=torch.uint8))
        if case.recipe != "fp8_block":
            tuning.runner(stood, prepared, case.shape.top_k, fused=backend.fused)
        backend.workspace_bytes(prepared, problem.batch)
    return bindings.called, bindings.executed


def _stood_in(one: library.Library, bindings: Bindings) -> Any:
    """The library with functions that bind, and a runner class that makes nothing."""
    real: Any = unbuilt_runner_class("90")

    class Runner:
        __init__ = bindings.of(real.__init__, lambda **given: None)

    Runner.__name__ = "MoERunner"
    sizes = getattr(one.core, "cutlass_fused_moe_workspace_size", None)
    module = SimpleNamespace(MoERunner=Runner, cutlass_fused_moe_workspace_size=sizes and bindings.of(sizes, lambda **given: 8))
    core = SimpleNamespace(
        ActivationType=one.core.ActivationType, get_cutlass_fused_moe_module=lambda arch: module,
        cutlass_fused_moe=bindings.of(one.core.cutlass_fused_moe, lambda **given: None))
    if hasattr(one.core, _INTERLEAVE):
        setattr(core, _INTERLEAVE, bindings.of(getattr(one.core, _INTERLEAVE), _interleaved))
        core.interleave_moe_scales_for_sm90_mixed_gemm = bindings.of(one.core.interleave_moe_scales_for_sm90_mixed_gemm)
    return SimpleNamespace(release=one.release, core=core, tuner=one.tuner, autotune=one.autotune, module=module)


def _interleaved(weight: torch.Tensor, quant_type: str = "fp4") -> torch.Tensor:
    return (interleaving.int4_weights if quant_type == "int4" else interleaving.mxfp4_weights)(weight)


def _humming(weight: torch.Tensor, raw_scale: torch.Tensor, **more: Any) -> tuple[torch.Tensor, ...]:
    """What the preparation of MXFP4 x FP8, which needs a GPU, returns: weights, folded scales, a factor an expert."""
    return weight, interleaving.scales(raw_scale, 32), torch.ones(weight.shape[0])


@contextmanager
def _interleaving(bindings: Bindings) -> Iterator[None]:
    """Within, the preparation that the adapter imports by name is bound and stood in for, where the release has it."""
    try:
        module = importlib.import_module(_PREPARE)
        real = getattr(module, _HUMMING)
    except (ImportError, AttributeError):
        yield
        return
    with patch.object(module, _HUMMING, bindings.of(real, _humming)):
        yield
