"""The calls of the adapters that drive one runner of FlashInfer's unified API."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from moeguard.backends.flashinfer_unified.backend import DEFAULT, FlashInferUnified
from moeguard.backends.flashinfer_unified.config import config
from moeguard.backends.flashinfer_unified.library import Library, load, unknown_release
from moeguard.backends.wheel_contract.recorder import Mismatch
from moeguard.core.case import Case
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank


def bound(backend: FlashInferUnified, case: Case) -> tuple[set[str], set[str]]:
    """Names of the functions that the calls of ``case`` were bound to, and of the preparations that ran. Raises Mismatch.

    Configuration and weight preparation are executed; a runner asks for a GPU when it is made: its methods are bound alone.
    """
    reason = unknown_release()
    if reason is not None:
        raise Mismatch(reason)
    library = load()
    candidate = backend.candidate(library, case)
    layer = config(library, case, backend.named_formats(case), candidate)
    executed = _prepared(backend, library, case)
    runner = backend.runner(library, case)
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "__init__": ((layer,), {"device": torch.device("cpu")}), "check_support": ((), {}), "build": ((), {}),
        "pack_inputs": ((None, None), {}), "launch_kwargs_for": ((None,), {}), "tuning_config_for": ((None,), {}),
        "forward": ((None,), {"tactic": DEFAULT})}
    for name, (args, named) in calls.items():
        try:
            inspect.signature(inspect.unwrap(getattr(runner, name))).bind(None, *args, **named)
        except (TypeError, AttributeError) as error:
            raise Mismatch(f"{runner.__name__}.{name} of FlashInfer {library.version}: {error}") from None
    prepared = f"weight preparation of {type(candidate).__name__}"
    return {runner.__name__, type(candidate).__name__, prepared}, {prepared} if executed else set()


def _prepared(backend: FlashInferUnified, library: Library, case: Case) -> bool:
    """Whether the weight preparation ran; Frost's was entered, and takes tensors of a GPU alone."""
    try:
        backend.view(library, build_problem(case, WeightBank()).weights, case)
    except ValueError as error:
        if "CUDA" not in str(error):
            raise
        return False
    return True
