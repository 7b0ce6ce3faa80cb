"""``emulated_cutedsl``: rows gathered and sorted by expert, a contiguous grouped GEMM, and a finalize fused into the second one.

The dataflow is that of FlashInfer's ``cute_dsl_fused_moe`` (``flashinfer/fused_moe/cute_dsl/fused_moe.py``): gate and up are
one matrix whose rows are interleaved in blocks of 64, the activation is in the epilogue of the first product, and the second
one multiplies by the routing weight, rounds and adds into the output, in the dtype of the output. The order of those additions,
which the kernel leaves open, is that of the top-k here.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from moeguard.backends.emulated_cutedsl.casts import requantise
from moeguard.backends.protocol import Backend, Traits
from moeguard.core.case import Activation, Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.tensors.operand import Batch, Operand, Weights

#: Rows of up, then of gate, in the first matrix.
INTERLEAVE = 64
#: Width of weight blocks, and of the narrowest group whose sum is scaled; scales of narrower groups are folded into the codes.
BLOCK = 128


@dataclass(frozen=True, slots=True)
class Matrix:
    """Codes float32 [E, N, C], and what their sums are multiplied by: [E, N, 1], or [E, N, ceil(C/128)] by blocks, or None."""

    codes: Tensor
    scale: Tensor | None
    bias: Tensor | None

    def product(self, rows: Tensor, expert: int) -> Tensor:
        """rows [n, C] times the matrix of ``expert`` transposed, plus its bias: [n, N]."""
        codes, scale = self.codes[expert], None if self.scale is None else self.scale[expert]
        if scale is None:
            value = rows @ codes.T
        elif scale.shape[1] == 1:
            value = rows @ codes.T * scale[:, 0]
        else:
            value = rows.new_zeros(rows.shape[0], codes.shape[0])
            for block, (left, right) in enumerate(zip(rows.split(BLOCK, 1), codes.split(BLOCK, 1), strict=True)):
                value += left @ right.T * scale[:, block]
        return value if self.bias is None else value + self.bias[expert]


@dataclass(frozen=True, slots=True)
class Prepared:
    """first [E, 2I, H], interleaved where the activation is gated, and second [E, H, I]."""

    case: Case
    first: Matrix
    second: Matrix
    weights: Weights


@dataclass(frozen=True, slots=True)
class Sorted:
    """S rows in the order of their experts.

    row int64 [S]: row of ``x``. weight float32 [S]. counts: rows of each local expert. place int64 [R, K]: which sorted row
    adds to row R of the output, -1 for none.
    """

    row: Tensor
    weight: Tensor
    counts: list[int]
    place: Tensor


class EmulatedCuteDsl(Backend):
    """Standard dataflow; in the batched format the valid rows of each expert are its segment, with weight one."""

    name = "emulated_cutedsl"

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """Each expert's output is rounded behind its routing weight, and added in the dtype of the output."""
        return replace(Numerics.of(case.recipe), expert_output=RECIPES[case.recipe].output, combine="output")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        gate, up = _matrix(weights.gate, weights.gate_bias), None
        if weights.up is not None:
            up = _matrix(weights.up, weights.up_bias)
        first = gate if up is None else Matrix(
            self.interleave(up.codes, gate.codes), self.interleave_scales(up.scale, gate.scale),
            None if up.bias is None or gate.bias is None else self.interleave(up.bias, gate.bias))
        return Prepared(case, first, _matrix(weights.down, weights.down_bias), weights)

    def interleave(self, up: Tensor, gate: Tensor) -> Tensor:
        """Rows [E, I, ...] of both in alternate blocks, up first: [E, 2I, ...]."""
        pairs = zip(up.split(INTERLEAVE, 1), gate.split(INTERLEAVE, 1), strict=True)
        return torch.cat([block for pair in pairs for block in pair], 1)

    def interleave_scales(self, up: Tensor | None, gate: Tensor | None) -> Tensor | None:
        """The same for scales [E, I, G]."""
        return None if up is None or gate is None else self.interleave(up, gate)

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        tf32 = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            self._run(prepared, batch, out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = tf32

    def _run(self, prepared: Prepared, batch: Batch, out: Tensor) -> None:
        case, weights = prepared.case, prepared.weights
        order = _sort_valid(batch.expert_num_tokens, out.shape[1]) if batch.expert_num_tokens is not None else _sort(batch, case)
        x = batch.x.dequantize()
        rows = requantise(x.reshape(-1, x.shape[-1])[order.row], Numerics.of(case.recipe).input, weights.input_scale)
        weighted = out.new_empty(len(order.row), out.shape[-1])
        start = 0
        for expert, count in enumerate(order.counts):
            if count:
                part = slice(start, start + count)
                weighted[part] = (self.expert(prepared, expert, rows[part]) * order.weight[part, None]).to(out.dtype)
                start += count
        self.finalize(weighted, order, out.view(-1, out.shape[-1]))

    def expert(self, prepared: Prepared, expert: int, rows: Tensor) -> Tensor:
        """Output of one local expert for its segment: [n, H] to float32 [n, H]."""
        case, value = prepared.case, prepared.first.product(rows, expert)
        gate, up = value, None
        if case.activation.gated:
            up, gate = self.separate(value)
        hidden = requantise(activate(case.activation, gate, up), Numerics.of(case.recipe).intermediate,
                            prepared.weights.intermediate_scale)
        return prepared.second.product(hidden, expert)

    def separate(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Up and gate, [n, I] each, of interleaved columns [n, 2I]; the last pair of blocks may be narrower."""
        pairs = [tile.chunk(2, 1) for tile in value.split(2 * INTERLEAVE, 1)]
        return torch.cat([up for up, _ in pairs], 1), torch.cat([gate for _, gate in pairs], 1)

    def finalize(self, weighted: Tensor, order: Sorted, out: Tensor) -> None:
        """Add the rows of ``weighted`` [S, H] into ``out`` [R, H], rounding after each addition."""
        out.zero_()
        if not len(weighted):
            return
        for place in order.place.unbind(1):
            total = (out.float() + weighted[place.clamp_min(0)].float()).to(out.dtype)
            out.copy_(torch.where((place >= 0)[:, None], total, out))


def _matrix(operand: Operand, bias: Operand | None) -> Matrix:
    codes, scale = operand.codes(), operand.scales()
    if scale is not None and scale.dim() == 1:
        scale = scale.view(-1, 1, 1).expand(-1, codes.shape[1], 1)
    elif scale is not None and not operand.grouped:
        scale = scale.repeat_interleave(BLOCK, 1)[:, :codes.shape[1]]
    elif scale is not None and codes.shape[2] // scale.shape[2] < BLOCK:
        codes, scale = codes * scale.repeat_interleave(codes.shape[2] // scale.shape[2], 2), None
        if operand.global_scale is not None:
            scale = operand.global_scale.view(-1, 1, 1).expand(-1, codes.shape[1], 1)
    return Matrix(codes, scale, None if bias is None else bias.data)


def _sort(batch: Batch, case: Case) -> Sorted:
    """Rows of this rank sorted by expert, earlier tokens first; ids of other ranks, and ids of nobody, are skipped."""
    assert batch.topk_ids is not None and batch.topk_weights is not None
    tokens, top_k = batch.topk_ids.shape
    local = batch.topk_ids.reshape(-1).long() - case.first_expert
    foreign = (local < 0) | (local >= case.experts_local)
    expert, slot = torch.where(foreign, case.experts_local, local).sort(stable=True)
    counts = torch.bincount(expert, minlength=case.experts_local + 1).tolist()[:case.experts_local]
    slot = slot[:sum(counts)]
    place = torch.full((tokens * top_k,), -1, device=slot.device)
    place[slot] = torch.arange(len(slot), device=slot.device)
    return Sorted(slot // max(top_k, 1), batch.topk_weights.reshape(-1)[slot], counts, place.view(tokens, top_k))


def _sort_valid(counts: Tensor, most: int) -> Sorted:
    """The valid rows of [E_local, most, H], whose order is that of their experts already."""
    valid = (torch.arange(most, device=counts.device) < counts[:, None]).reshape(-1)
    row = valid.nonzero()[:, 0]
    place = torch.where(valid, valid.cumsum(0) - 1, -1)
    return Sorted(row, torch.ones(len(row), device=row.device), counts.tolist(), place[:, None])


def activate(spec: Activation, gate: Tensor, up: Tensor | None) -> Tensor:
    """The case's activation [n, I]; ``up`` is None where it is not gated."""
    if spec.kind == "swiglu_oai":
        assert up is not None
        if spec.limit is not None:
            gate, up = gate.clamp(max=spec.limit), up.clamp(-spec.limit, spec.limit)
        alpha, beta = 1.702 if spec.alpha is None else spec.alpha, 1.0 if spec.beta is None else spec.beta
        return gate * torch.sigmoid(gate * alpha) * (up + beta)
    if spec.kind in ("swiglu", "silu"):
        value = gate * torch.sigmoid(gate)
    elif spec.kind == "relu2":
        value = gate.relu().square()
    else:
        value = functional.gelu(gate, approximate="tanh" if spec.kind == "geglu_tanh" else "none")
    return value if up is None else value * up
