"""Cases whose calls are bound: small layers with each activation, with biases, and as a shard of experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moeguard.backends.protocol import Backend
from moeguard.core.case import Case

_SHAPE = {"num_tokens": 5, "hidden_size": 256, "intermediate_size": 256, "num_experts": 8, "top_k": 2}
_VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}), (" with biases", {"weights": {"bias": True}}), (" on rank 1 of 2", {"parallel": {"ep_size": 2, "ep_rank": 1}}),
    (" without tokens", {"shape": _SHAPE | {"num_tokens": 0}}))
_ACTIVATIONS = ("swiglu", "relu2", "swiglu_oai", "geglu", "geglu_tanh", "silu", "gelu")


def samples(backend: Backend, recipe: str) -> Iterator[tuple[str, Case]]:
    """Those that ``backend`` supports, by name, the plainest first."""
    for layout in ("standard", "batched"):
        for activation in _ACTIVATIONS:
            for name, more in _VARIANTS if activation in ("swiglu", "swiglu_oai") else _VARIANTS[:1]:
                case = Case.model_validate({"shape": _SHAPE, "recipe": recipe, "activation": {"kind": activation},
                                            "activation_format": layout} | more)
                if backend.supports(case).supported:
                    yield f"{activation}{name}", case


def refusal(backend: Backend, recipe: str) -> str:
    """Why ``backend`` takes no sample, by the plainest case of the format that comes closest."""
    reasons = [backend.supports(Case.model_validate({"shape": _SHAPE, "recipe": recipe, "activation_format": layout})).reason
               for layout in ("standard", "batched")]
    return next((reason for reason in reasons if "activation format" not in reason), reasons[0])
