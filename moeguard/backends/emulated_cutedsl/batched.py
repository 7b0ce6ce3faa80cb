"""``emulated_cutedsl_batched``: [E_local, max_tokens, H] with a count an expert, masked grouped GEMMs, the engine around them.

The kernel follows the masked path of FlashInfer's CuteDSL kernels (``grouped_gemm_nt_masked``,
``flashinfer/gemm/kernels/grouped_gemm_masked_wrapper.py``): the first product is stored in the dtype of the output, activation
and quantisation read it from there, and the second is stored again. A tile of rows is computed whole, and what lies beyond the
count is not written. In the standard format the engine's work is done too: tokens are sent to their experts' rows, and the
weighted rows are added in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor

from moeguard.backends.emulated_cutedsl.grids import on_grid
from moeguard.backends.protocol import Backend, Traits
from moeguard.core.case import Activation, Case
from moeguard.core.numerics import Numerics
from moeguard.core.recipe import RECIPES
from moeguard.tensors.operand import Batch, Operand, Weights

#: Rows of one tile.
TILE = 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """first float32 [E, H, 2I], gate left of up ([E, H, I] where the activation is not gated), second [E, I, H]."""

    case: Case
    first: Tensor
    second: Tensor
    weights: Weights


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Where each slot of [T, K] went: expert and place int64, mine bool. counts int64 [E_local]."""

    expert: Tensor
    place: Tensor
    mine: Tensor
    counts: Tensor


class EmulatedCuteDslBatched(Backend):
    """Batched dataflow; in the batched format the kernel alone."""

    name = "emulated_cutedsl_batched"

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop")

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """Both products are stored in the dtype of the output; the combine is in float32."""
        narrow = cast(Literal["bf16", "fp16"], RECIPES[case.recipe].output)
        return replace(Numerics.of(case.recipe), projection=narrow, expert_output=narrow)

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        both = [weights.gate] if weights.up is None else [weights.gate, weights.up]
        first = torch.cat([operand.dequantize().transpose(1, 2) for operand in both], 2)
        return Prepared(case, first, weights.down.dequantize().transpose(1, 2), weights)

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        tf32 = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            if batch.expert_num_tokens is not None:
                self.kernel(prepared, batch.x.dequantize(), batch.expert_num_tokens, out)
            else:
                self._around(prepared, batch, out)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = tf32

    def _around(self, prepared: Prepared, batch: Batch, out: Tensor) -> None:
        """The kernel between the engine's dispatch and combine; rows that nobody filled hold NaN."""
        assert batch.topk_ids is not None and batch.topk_weights is not None
        sent = dispatch(batch.topk_ids, prepared.case)
        most = max(1, int(sent.counts.max()))
        x = batch.x.dequantize()
        packed = x.new_full((len(sent.counts), most, x.shape[1]), torch.nan)
        token, _ = sent.mine.nonzero(as_tuple=True)
        packed[sent.expert[sent.mine], sent.place[sent.mine]] = x[token]
        stored = torch.full(packed.shape, torch.nan, dtype=out.dtype, device=out.device)
        self.kernel(prepared, packed, sent.counts, stored)
        self.combine(stored, sent, batch.topk_weights, out)

    def kernel(self, prepared: Prepared, x: Tensor, counts: Tensor, out: Tensor) -> None:
        """x float32 [E_local, max_tokens, H] to ``out``, of which the first ``counts[e]`` rows of each expert are written."""
        for expert, count in enumerate(counts.tolist()):
            if count:
                tiles = x[expert, : -(-count // TILE) * TILE]
                self.store(out, expert, count, self.expert(prepared, expert, self.quantise(prepared, tiles, count)))

    def quantise(self, prepared: Prepared, rows: Tensor, count: int) -> Tensor:
        """The rows [n, H] of an expert's tiles as the first product reads them; those from ``count`` on are nobody's."""
        return on_grid(rows, Numerics.of(prepared.case.recipe).input, prepared.weights.input_scale)

    def expert(self, prepared: Prepared, expert: int, rows: Tensor) -> Tensor:
        """Output of one local expert for its tiles: [n, H] to float32 [n, H]."""
        case, weights = prepared.case, prepared.weights
        width, narrow = case.intermediate_local, RECIPES[case.recipe].output
        value = rows @ prepared.first[expert]
        gate = on_grid(_biased(value[:, :width], weights.gate_bias, expert), narrow, None)
        up = on_grid(_biased(value[:, width:], weights.up_bias, expert), narrow, None) if case.activation.gated else None
        hidden = on_grid(activate(case.activation, gate, up), Numerics.of(case.recipe).intermediate, weights.intermediate_scale)
        return _biased(hidden @ prepared.second[expert], weights.down_bias, expert)

    def store(self, out: Tensor, expert: int, count: int, value: Tensor) -> None:
        """Write the first ``count`` rows of ``value`` [n, H], n >= count."""
        out[expert, :count] = value[:count].to(out.dtype)

    def combine(self, stored: Tensor, sent: Dispatch, weights: Tensor, out: Tensor) -> None:
        """Sum the weighted rows of each token, float32, from ``stored`` [E_local, max_tokens, H] to ``out`` [T, H]."""
        total = torch.zeros(out.shape, device=out.device)
        for rank in range(weights.shape[1]):
            rows = stored[sent.expert[:, rank], sent.place[:, rank]].float() * weights[:, rank, None]
            total += torch.where(sent.mine[:, rank, None], rows, 0.0)
        out.copy_(total)


def dispatch(ids: Tensor, case: Case) -> Dispatch:
    """Give each slot of ``ids`` [T, K] that this rank holds the next free row of its expert."""
    local = ids.long() - case.first_expert
    mine = (local >= 0) & (local < case.experts_local)
    expert = torch.where(mine, local, 0)
    hits = torch.zeros(ids.numel(), case.experts_local, dtype=torch.int32, device=ids.device)
    hits.scatter_(1, expert.view(-1, 1), mine.view(-1, 1).int())
    before = hits.cumsum(0) - hits
    place = torch.where(mine.view(-1), before.gather(1, expert.view(-1, 1))[:, 0], 0).view(ids.shape)
    return Dispatch(expert, place, mine, hits.sum(0))


def activate(spec: Activation, gate: Tensor, up: Tensor | None) -> Tensor:
    """The case's activation [n, I], written out in exponentials; ``up`` is None where it is not gated."""
    alpha = 1.0
    if spec.kind == "swiglu_oai":
        assert up is not None
        alpha, shift = 1.702 if spec.alpha is None else spec.alpha, 1.0 if spec.beta is None else spec.beta
        if spec.limit is not None:
            gate, up = gate.minimum(gate.new_tensor(spec.limit)), up.clamp(-spec.limit, spec.limit)
        up = up + shift
    if spec.kind in ("swiglu", "swiglu_oai", "silu"):
        value = gate / (1 + torch.exp(-alpha * gate))
    elif spec.kind == "relu2":
        value = torch.where(gate > 0, gate * gate, 0.0)
    elif spec.kind == "geglu_tanh":
        value = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate * gate * gate)))
    else:
        value = 0.5 * gate * (1 + torch.erf(gate * 0.5**0.5))
    return value if up is None else value * up


def _biased(value: Tensor, bias: Operand | None, expert: int) -> Tensor:
    return value if bias is None else value + bias.data[expert]
