"""Sample cases of a recipe: ordinary layers that tell whether a backend takes the recipe at all."""

from __future__ import annotations

from collections.abc import Iterator

from moeguard.backends.protocol import Backend
from moeguard.core.case import Case

#: T, H, I, E, K: multiples of every usual tile, with few and with many experts; the last for kernels that take few tokens only.
_SHAPES = ((16, 256, 256, 8, 2), (64, 2048, 1024, 32, 4), (64, 7168, 2048, 256, 8), (4, 2048, 1024, 32, 4))
_ACTIVATIONS = ("swiglu", "relu2", "swiglu_oai", "geglu_tanh", "geglu", "silu", "gelu")


def samples(recipe: str) -> Iterator[Case]:
    """Cases of ``recipe`` by shape, activation and activation format, the plainest first."""
    for layout in ("standard", "batched"):
        for activation in _ACTIVATIONS:
            for tokens, hidden, intermediate, experts, top_k in _SHAPES:
                yield Case.model_validate({
                    "shape": {"num_tokens": tokens, "hidden_size": hidden, "intermediate_size": intermediate,
                              "num_experts": experts, "top_k": top_k},
                    "recipe": recipe, "activation": {"kind": activation}, "activation_format": layout})


def refusal(backend: Backend, recipe: str) -> str | None:
    """None when the backend supports a sample of ``recipe``, else the reason that it gives for the plainest one."""
    first: str | None = None
    for case in samples(recipe):
        support = backend.supports(case)
        if support.supported:
            return None
        first = first or support.reason or "the backend does not support it"
    return first
