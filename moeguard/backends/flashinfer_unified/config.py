"""From a case to FlashInfer's configuration of one runner: formats, activation, sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moeguard.backends.flashinfer_unified.library import Library
from moeguard.core.case import Activation, Case

#: Tokens up to which FlashInfer plans by default (``ExecutionConfig.tune_max_num_tokens``); a runner raises above it.
CAP = 8192
#: Name of each activation's class in ``fused_moe.api``; swiglu_oai is SwiGLU with parameters.
ACTIVATIONS = {"swiglu": "SwiGLU", "swiglu_oai": "SwiGLU", "geglu": "GeGLU", "geglu_tanh": "GeGLUTanh", "relu2": "ReLU2",
               "silu": "SiLU", "gelu": "GELU"}


@dataclass(frozen=True, slots=True)
class Formats:
    """Names in ``QuantFormat`` of what the two GEMMs multiply, and of the output."""

    weight: str
    activation: str
    output: str = "BF16"


def activation(library: Library, spec: Activation) -> Any:
    """FlashInfer's value for an activation; None means alpha 1.702, beta 1 and no clamp."""
    kind = getattr(library.api, ACTIVATIONS[spec.kind])
    if spec.kind != "swiglu_oai":
        return kind()
    given = {"alpha": 1.702 if spec.alpha is None else spec.alpha, "beta": 1.0 if spec.beta is None else spec.beta}
    return kind(**given, **({} if spec.limit is None else {"limit": spec.limit}))


def config(library: Library, case: Case, formats: Formats, candidate: Any) -> Any:
    """The ``MoEConfig`` of a layer with ``candidate`` as its only backend, for this rank's part of I."""
    api = library.api
    quant = api.QuantConfig(weight=api.QuantFormat[formats.weight], activation=api.QuantFormat[formats.activation],
                            output=api.QuantFormat[formats.output])
    return api.MoEConfig(
        routing=api.RoutingConfig(num_experts=case.shape.num_experts, top_k=case.shape.top_k), quant=quant,
        experts=api.ExpertConfig(intermediate_size=case.intermediate_local), activation=activation(library, case.activation),
        backend=api.BackendOptions((candidate,)), execution=api.ExecutionConfig(tune_max_num_tokens=CAP))
