"""A small, independent MoE pipeline in plain torch float32, whose steps are overridden one at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from moeguard.backends.protocol import Backend, Support, Traits
from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.tensors.operand import Batch, Operand, Weights

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: Largest e4m3 value, elements of a dynamic FP8 block, smallest scale that is not flushed.
E4M3_MAX, BLOCK, SMALLEST_SCALE = 448.0, 128, 2.0**-126
#: Largest e2m1 value; elements of an MX and of an NVFP4 group.
E2M1_MAX, MX_GROUP, NVFP4_GROUP = 6.0, 32, 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """Float32 gate, up [E_local, I, H] and down [E_local, H, I] (up None when not gated), and their source."""

    case: Case
    gate: Tensor
    up: Tensor | None
    down: Tensor
    source: Weights


@dataclass(frozen=True, slots=True)
class Call:
    """One execution: the arguments of ``run`` and the rounding points that it keeps."""

    prepared: Prepared
    batch: Batch
    out: Tensor
    tactic: Hashable | None
    workspace: Tensor | None
    numerics: Numerics

    @property
    def case(self) -> Case:
        """The case that the weights were prepared for."""
        return self.prepared.case

    @property
    def ids(self) -> Tensor:
        """Global expert ids, int32 [T, K]."""
        assert self.batch.topk_ids is not None
        return self.batch.topk_ids

    @property
    def router_weights(self) -> Tensor:
        """float32 [T, K]."""
        assert self.batch.topk_weights is not None
        return self.batch.topk_weights


@dataclass(frozen=True, slots=True)
class Slots:
    """S slots of this rank, grouped by expert.

    slot int64 [S]: position in the flat [T * K] table. groups: local expert and range of slots; no empty ones.
    """

    slot: Tensor
    top_k: int
    groups: tuple[tuple[int, slice], ...]

    @property
    def token(self) -> Tensor:
        """Token of each slot, int64 [S]."""
        return self.slot // self.top_k


class Pipeline(Backend):
    """route, gather, per expert: project, activate, quantise, project; then combine and write.

    choices: tactics, the default one first; ``product`` may depend on ``call.tactic``.
    """

    choices: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self._executed: Hashable | None = None

    def supports(self, case: Case) -> Support:
        if case.activation_format != "standard":
            return Support.no("activation format standard only")
        return Support.yes()

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        up = None if weights.up is None else weights.up.dequantize()
        return Prepared(case, weights.gate.dequantize(), up, weights.down.dequantize(), weights)

    def tactics(self, prepared: Prepared, batch: Batch) -> tuple[Hashable, ...]:
        return self.choices

    def executed_tactic(self) -> Hashable | None:
        return self._executed

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        call = self.begin(prepared, batch, out, tactic, workspace)
        if out.shape[0]:
            self.write(call, self.compute(call))
        self._executed = call.tactic

    def begin(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: Hashable | None,
              workspace: Tensor | None) -> Call:
        """Resolve the tactic. Raises ValueError when it is not known."""
        if tactic is None:
            tactic = self.choices[0] if self.choices else None
        elif tactic not in self.tactics(prepared, batch):
            raise ValueError(f"{self.name}: unknown tactic {tactic!r}")
        return Call(prepared, batch, out, tactic, workspace, self.numerics(prepared.case, tactic))

    def compute(self, call: Call) -> Tensor:
        """The answer before the last rounding, float32 [T, H]."""
        slots = self.route(call)
        rows = self.gather(call, slots)
        outputs = rows.new_empty(rows.shape[0], call.prepared.down.shape[1])
        for expert, part in slots.groups:
            outputs[part] = self.expert(call, expert, rows[part])
        return self.combine(call, slots, outputs)

    def localise(self, call: Call, ids: Tensor) -> Tensor:
        """Flat global ids int64 to local experts; what is outside [0, E_local) is dropped."""
        return ids - call.case.first_expert

    def route(self, call: Call) -> Slots:
        """Slots of this rank, grouped by expert."""
        local = self.localise(call, call.ids.reshape(-1).long())
        experts = call.prepared.gate.shape[0]
        slot = ((local >= 0) & (local < experts)).nonzero()[:, 0]
        expert, order = torch.sort(local[slot], stable=True)
        groups, start = [], 0
        for index, count in enumerate(torch.bincount(expert, minlength=experts).tolist()):
            if count:
                groups.append((index, slice(start, start + count)))
            start += count
        return Slots(slot[order], call.ids.shape[1], tuple(groups))

    def inputs(self, call: Call) -> Tensor:
        """Float32 tokens [T, H] as the GEMM consumes them."""
        return rounded(call.batch.x.dequantize(), call.numerics.input, call.prepared.source.input_scale)

    def gather(self, call: Call, slots: Slots) -> Tensor:
        """One row per slot, float32 [S, H]."""
        return self.inputs(call)[slots.token]

    def expert(self, call: Call, expert: int, rows: Tensor) -> Tensor:
        """Output of one local expert for its rows: [n, H] to [n, H]."""
        gate = self.project(call, "gate", expert, rows)
        up = None if call.prepared.up is None else self.project(call, "up", expert, rows)
        hidden = self.quantise(call, self.activate(call, gate, up))
        return rounded(self.project(call, "down", expert, hidden), call.numerics.expert_output, None)

    def matrix(self, call: Call, which: str, expert: int) -> Tensor:
        """Float32 weights [N, D] of ``gate``, ``up`` or ``down``."""
        value: Tensor = getattr(call.prepared, which)[expert]
        return value

    def bias(self, call: Call, which: str, expert: int) -> Tensor | None:
        """Float32 [N], or None."""
        value: Operand | None = getattr(call.prepared.source, f"{which}_bias")
        return None if value is None else value.data[expert]

    def project(self, call: Call, which: str, expert: int, rows: Tensor) -> Tensor:
        """rows [n, D] times the expert's matrix [N, D], plus bias: [n, N]."""
        value = self.product(call, which, rows, self.matrix(call, which, expert))
        bias = self.bias(call, which, expert)
        return value if bias is None else value + bias

    def product(self, call: Call, which: str, rows: Tensor, matrix: Tensor) -> Tensor:
        """rows [n, D] @ matrix [N, D] transposed."""
        return rows @ matrix.T

    def activate(self, call: Call, gate: Tensor, up: Tensor | None) -> Tensor:
        """act(gate) * up, [n, I]."""
        spec = call.case.activation
        if spec.kind == "swiglu_oai":
            assert up is not None
            return swiglu_oai(gate, up, spec.alpha, spec.beta, spec.limit)
        value = ACTIVATIONS[spec.kind](gate)
        return value if up is None else value * up

    def quantise(self, call: Call, hidden: Tensor) -> Tensor:
        """The intermediate [n, I] at its rounding point."""
        return rounded(hidden, call.numerics.intermediate, call.prepared.source.intermediate_scale)

    def factors(self, call: Call) -> Tensor:
        """Router weights that scale the experts' outputs, float32 [T, K]."""
        return call.router_weights

    def combine(self, call: Call, slots: Slots, outputs: Tensor) -> Tensor:
        """Weighted sum of the slots' outputs [S, H] per token: float32 [T, H]."""
        tokens, top_k = call.ids.shape
        table = outputs.new_zeros(tokens * top_k, outputs.shape[1])
        table[slots.slot] = outputs
        weighted = table.view(tokens, top_k, -1) * self.factors(call)[:, :, None]
        if call.numerics.combine == "fp32":
            return weighted.sum(1)
        narrow = torch.bfloat16 if call.numerics.combine == "bf16" else call.out.dtype
        total = torch.zeros_like(weighted[:, 0])
        for rank in self.ranks(call, top_k):
            total = (total + weighted[:, rank]).to(narrow).float()
        return total

    def ranks(self, call: Call, top_k: int) -> list[int]:
        """Order in which a narrow combine adds the K outputs of a token."""
        return list(range(top_k))

    def write(self, call: Call, value: Tensor) -> None:
        """Round once to the dtype of ``out`` and store."""
        call.out.copy_(value)


#: Changes to a case, nested fields by name, as ``Case.with_`` takes them.
Trigger = Mapping[str, Any]


class Broken(Backend):
    """A backend with one defect.

    expected: finding kinds, any of which counts as caught. trigger: changes to a case under which the defect shows.
    isolated: it may take its process down, so it runs in a worker of its own. choices: its tactics.
    """

    choices: ClassVar[tuple[str, ...]] = ()
    expected: ClassVar[frozenset[str]]
    trigger: ClassVar[Trigger] = {}
    isolated: ClassVar[bool] = False


class Mutant(Pipeline, Broken):
    """A pipeline with one defect."""


def swiglu_oai(gate: Tensor, up: Tensor, alpha: float | None, beta: float | None, limit: float | None) -> Tensor:
    """gate * sigmoid(alpha * gate) * (up + beta) of clamped values; None means 1.702, 1.0 and no clamp."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(gate * (1.702 if alpha is None else alpha)) * (up + (1.0 if beta is None else beta))


def _relu2(value: Tensor) -> Tensor:
    return value.clamp(min=0) ** 2


def _gelu_tanh(value: Tensor) -> Tensor:
    return functional.gelu(value, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": functional.silu, "silu": functional.silu, "geglu": functional.gelu, "gelu": functional.gelu,
    "geglu_tanh": _gelu_tanh, "relu2": _relu2}


def rounded(value: Tensor, rounding: str, static: Tensor | None) -> Tensor:
    """``value`` [n, N] after a chain of rounding points; ``static`` is the scale of ``e4m3_per_tensor`` or of ``nvfp4``."""
    for part in rounding.split("+"):
        if part in NARROW:
            value = value.to(NARROW[part]).float()
        elif part == "e4m3_per_tensor":
            assert static is not None
            value = e4m3(value / static) * static
        elif part in ("e4m3_1x128", "e4m3_per_token"):
            value = e4m3_rows(value, BLOCK if part == "e4m3_1x128" else value.shape[1])
        elif part == "mxfp8":
            value = mxfp8_rows(value)
        elif part == "nvfp4":
            assert static is not None
            value = nvfp4_rows(value, static)
        elif part != "none":
            raise ValueError(f"unknown rounding {part!r}")
    return value


def e4m3(value: Tensor) -> Tensor:
    """Saturating round trip through e4m3."""
    return value.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def e4m3_rows(value: Tensor, block: int = BLOCK) -> Tensor:
    """Round trip through e4m3 with one dynamic scale per 1x``block`` block; below the smallest scale it is 1."""
    width = value.shape[1]
    blocks = functional.pad(value, (0, -width % block)).unflatten(1, (-1, block))
    scale = blocks.abs().amax(2, keepdim=True) / E4M3_MAX
    scale = torch.where(scale >= SMALLEST_SCALE, scale, 1.0)
    return (e4m3(blocks / scale) * scale).view(value.shape[0], -1)[:, :width]


def mxfp8_rows(value: Tensor) -> Tensor:
    """Round trip through e4m3 with a power of two for each 32 elements: the least at which none saturates."""
    blocks = value.unflatten(1, (-1, MX_GROUP))
    amax = blocks.abs().amax(2, keepdim=True)
    scale = torch.exp2(torch.ceil(torch.log2(amax.double() / E4M3_MAX))).float().clamp(min=SMALLEST_SCALE)
    return (e4m3(blocks / scale) * scale).flatten(1)


def nvfp4_rows(value: Tensor, static: Tensor) -> Tensor:
    """Round trip through e2m1 with an e4m3 scale for each 16 elements, in units of ``static``; a scale of zero gives zeros."""
    blocks = value.unflatten(1, (-1, NVFP4_GROUP))
    scale = e4m3(blocks.abs().amax(2, keepdim=True) / (E2M1_MAX * static)) * static
    return torch.where(scale > 0, e2m1(blocks / scale) * scale, 0.0).flatten(1)


def e2m1(value: Tensor) -> Tensor:
    """Saturating round trip through e2m1: steps of 1/2 below 2, 1 below 4, 2 up to 6; ties to even."""
    size = value.abs().clamp(max=E2M1_MAX)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(size / step) * step * torch.sign(value)
