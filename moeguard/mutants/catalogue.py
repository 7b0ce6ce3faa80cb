"""All mutants and healthy variants in order, and the small cases on which they run."""

from __future__ import annotations

from typing import Any

from moeguard.backends.protocol import Backend
from moeguard.core.case import Case
from moeguard.mutants.base import Broken
from moeguard.mutants.broken_arithmetic import BROKEN_ARITHMETIC
from moeguard.mutants.broken_codes import BROKEN_CODES
from moeguard.mutants.broken_contract import BROKEN_CONTRACT
from moeguard.mutants.broken_cutedsl import BROKEN_CUTEDSL
from moeguard.mutants.broken_memory import BROKEN_MEMORY
from moeguard.mutants.broken_numerics import BROKEN_NUMERICS
from moeguard.mutants.broken_output import BROKEN_OUTPUT
from moeguard.mutants.broken_process import BROKEN_PROCESS
from moeguard.mutants.broken_routing import BROKEN_ROUTING
from moeguard.mutants.broken_scales import BROKEN_SCALES
from moeguard.mutants.broken_state import BROKEN_STATE
from moeguard.mutants.broken_tactics import BROKEN_TACTICS
from moeguard.mutants.healthy import HEALTHY_COMPUTATIONS
from moeguard.mutants.healthy_declared import HEALTHY_DECLARATIONS
from moeguard.mutants.healthy_packed import HEALTHY_PACKED

#: Every mutant, those that need a process of their own last.
MUTANTS: tuple[type[Broken], ...] = (
    *BROKEN_OUTPUT, *BROKEN_MEMORY, *BROKEN_ARITHMETIC, *BROKEN_NUMERICS, *BROKEN_CODES, *BROKEN_SCALES, *BROKEN_ROUTING,
    *BROKEN_TACTICS, *BROKEN_STATE, *BROKEN_CONTRACT, *BROKEN_CUTEDSL, *BROKEN_PROCESS)

#: Every healthy variant.
HEALTHY: tuple[type[Backend], ...] = (*HEALTHY_COMPUTATIONS, *HEALTHY_DECLARATIONS, *HEALTHY_PACKED)

#: Finding kinds that no mutant shows: they need a GPU, a clock or an engine's configuration.
WITHOUT_MUTANT = frozenset({"graph_mismatch", "tuning_range", "perf_regression"})


def _case(shape: tuple[int, int, int, int, int], seed: int, recipe: str = "bf16", **fields: Any) -> Case:
    names = ("num_tokens", "hidden_size", "intermediate_size", "num_experts", "top_k")
    parts = {name: {"kind": value} if isinstance(value, str) else value for name, value in fields.items()}
    return Case.model_validate({"shape": dict(zip(names, shape, strict=True)), "recipe": recipe, "seed": seed} | parts)


#: The shared cases. Seeds are 7 apart (and vary modulo 4) so that checks which rotate with the seed all get their turn.
CORPUS: tuple[Case, ...] = (
    _case((8, 64, 64, 4, 2), 0),
    _case((33, 136, 72, 8, 4), 14, "fp8_block"),
    _case((17, 200, 96, 8, 2), 28, "fp8_per_tensor"),
    _case((12, 72, 40, 4, 3), 7, "fp16", routing={"kind": "uniform", "method": "softmax_topk"}),
    _case((2, 72, 200, 16, 6), 21, activation={"kind": "swiglu_oai", "limit": 1.0}, weights={"bias": True}),
    _case((65, 128, 128, 4, 3), 35, "fp8_block", routing="skewed"),
    _case((16, 96, 64, 8, 4), 42, inputs="exact"),
    _case((9, 136, 100, 8, 3), 49, "fp8_per_tensor", inputs="exact", layout="noncontiguous"),
    _case((24, 100, 60, 6, 3), 57, "fp16", activation="geglu_tanh", layout="noncontiguous", weights={"bias": True}),
    _case((3, 200, 48, 10, 5), 64, activation="relu2", layout="nan_padding",
          routing={"kind": "uniform", "method": "sigmoid_bias"}),
    _case((31, 160, 80, 8, 4), 71, "fp8_block", parallel={"ep_size": 2, "ep_rank": 1}),
    _case((1, 40, 24, 4, 1), 78, "fp16", activation="gelu", routing={"kind": "balanced", "method": "llama4_sigmoid"}),
    _case((15, 72, 136, 12, 6), 85, inputs="spread", activation="geglu", weights={"kind": "zero_expert", "bias": True}),
    _case((20, 144, 129, 8, 2), 92, "fp8_block", scales={"kind": "tiny", "exponent": -40}),
    _case((8, 64, 64, 4, 2), 101),
    _case((12, 48, 40, 8, 3), 108, routing="duplicate_ids"),
    _case((7, 80, 56, 4, 2), 115, "fp8_per_tensor", routing="invalid_ids"),
    _case((6, 56, 33, 8, 2), 122, "fp16", routing="nan_logits"),
    _case((0, 64, 32, 4, 2), 129),
    _case((19, 160, 96, 8, 4), 136, "mxfp4_bf16"),
    _case((27, 192, 128, 6, 3), 143, "mxfp4_fp8"),
    _case((14, 128, 256, 8, 2), 150, "int4_fp8"),
    _case((16, 128, 128, 4, 2), 157, "mxfp4_fp8", inputs="exact", parallel={"tp_size": 2, "tp_rank": 1}),
    _case((9, 128, 128, 4, 2), 165, "int4_fp8", inputs="exact", layout="nan_padding"),
    _case((13, 160, 96, 8, 3), 172, "mxfp8"),
    _case((21, 144, 112, 8, 4), 179, "nvfp4"),
    _case((10, 80, 48, 4, 2), 186, "nvfp4_bf16", scales={"kind": "heterogeneous", "exponent": 4}),
    _case((11, 64, 96, 6, 2), 193, "nvfp4", inputs="exact", layout="noncontiguous"),
    _case((7, 96, 64, 4, 2), 201, "mxfp8", inputs="exact"),
    _case((13, 96, 80, 6, 3), 210, routing="skewed").with_(activation_format="batched"),
    _case((21, 160, 96, 8, 4), 217, "fp8_block", parallel={"ep_size": 2, "ep_rank": 1}).with_(activation_format="batched"),
)

#: Plain cases into which a trigger is merged; their seeds rotate such checks through all their positions.
_TRIGGERED: tuple[Case, ...] = (
    _case((10, 72, 56, 4, 2), 0), _case((33, 136, 64, 8, 4), 15), _case((20, 200, 96, 16, 4), 30))


def corpus(mutant: type[Broken]) -> tuple[Case, ...]:
    """The cases for ``mutant``: those made from its trigger first, then the shared ones."""
    if not mutant.trigger:
        return CORPUS
    return (*(case.with_(**mutant.trigger) for case in _TRIGGERED), *CORPUS)


__all__ = ["CORPUS", "HEALTHY", "MUTANTS", "WITHOUT_MUTANT", "corpus"]
