"""``torch_reference``: a grouped MoE in plain torch, float32 arithmetic, on CPU and GPU. Independent of the oracle."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from moeguard.backends.protocol import Backend, Support, Traits
from moeguard.core.case import Activation, Case
from moeguard.core.recipe import RECIPES
from moeguard.quant.blocks import fake_quantize
from moeguard.tensors.operand import Batch, Operand, Weights

#: segments: one product per expert; padded: one batched product over all experts; split: GEMM2 in two halves of I.
TACTICS = ("segments", "padded", "split")
#: Elements of padded weights and rows beyond which ``padded`` is not offered.
PADDED_LIMIT = 1 << 24


@dataclass(frozen=True, slots=True)
class Prepared:
    """Dequantised float32 weights, transposed for ``rows @ weight``: gate, up [E, H, I], down [E, I, H]."""

    case: Case
    gate: Tensor
    up: Tensor | None
    down: Tensor
    weights: Weights


class TorchReference(Backend):
    """Rounds where the recipe says so and nowhere else; drops ids that this rank does not hold."""

    name = "torch_reference"

    def __init__(self) -> None:
        self._executed: str | None = None

    def supports(self, case: Case) -> Support:
        return Support.yes()

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        return Traits(invalid_ids="drop")

    def prepare(self, weights: Weights, case: Case) -> Prepared:
        up = None if weights.up is None else weights.up.dequantize().transpose(1, 2)
        return Prepared(case, weights.gate.dequantize().transpose(1, 2), up, weights.down.dequantize().transpose(1, 2),
                        weights)

    def tactics(self, prepared: Prepared, batch: Batch) -> tuple[str, ...]:
        rows = math.prod(batch.x.shape) * (1 if batch.topk_ids is None else batch.topk_ids.shape[1])
        small = prepared.gate.numel() <= PADDED_LIMIT and rows * prepared.gate.shape[0] <= PADDED_LIMIT
        return TACTICS if small else ("segments", "split")

    def tune(self, prepared: Prepared, batch: Batch) -> str:
        """The fastest tactic of one timed call each, after one warm-up call."""
        out = torch.empty(batch.x.shape, device=batch.x.data.device)
        seconds: dict[str, float] = {}
        for tactic in self.tactics(prepared, batch):
            for _ in range(2):
                start = time.perf_counter()
                self.run(prepared, batch, out, tactic=tactic)
                if out.is_cuda:
                    torch.cuda.synchronize()
                seconds[tactic] = time.perf_counter() - start
        return min(seconds, key=lambda tactic: seconds[tactic])

    def executed_tactic(self) -> str | None:
        return self._executed

    def run(self, prepared: Prepared, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        chosen = "segments" if tactic is None else str(tactic)
        if chosen not in TACTICS:
            raise ValueError(f"torch_reference: unknown tactic {tactic!r}")
        tf32 = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            self._run(prepared, batch, out, chosen)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = tf32
        self._executed = chosen

    def _run(self, prepared: Prepared, batch: Batch, out: Tensor, tactic: str) -> None:
        case = prepared.case
        x, _ = fake_quantize(batch.x.dequantize(), RECIPES[case.recipe].numerics.input, prepared.weights.input_scale)
        if batch.topk_ids is None or batch.topk_weights is None:
            assert batch.expert_num_tokens is not None
            for expert, count in enumerate(batch.expert_num_tokens.tolist()):
                if count:
                    out[expert, :count] = self._expert(prepared, x[expert, :count], expert, tactic).to(out.dtype)
            return
        tokens, top_k = batch.topk_ids.shape
        if not tokens:
            return
        local = batch.topk_ids.reshape(-1).long() - case.first_expert
        mine = (local >= 0) & (local < case.experts_local)
        order = torch.argsort(torch.where(mine, local, case.experts_local), stable=True)
        counts = torch.bincount(local[mine], minlength=case.experts_local).tolist()
        rows = x[order // top_k]
        results = x.new_zeros(tokens * top_k, x.shape[1])
        if tactic == "padded":
            results[order[: sum(counts)]] = self._padded(prepared, rows, counts)
        else:
            for expert, part in _segments(counts):
                results[order[part]] = self._expert(prepared, rows[part], expert, tactic)
        weighted = results.view(tokens, top_k, -1) * batch.topk_weights[:, :, None]
        out.copy_(weighted.sum(1))

    def _expert(self, prepared: Prepared, rows: Tensor, expert: int, tactic: str) -> Tensor:
        weights = prepared.weights
        gate = _add(rows @ prepared.gate[expert], weights.gate_bias, expert)
        up = None if prepared.up is None else _add(rows @ prepared.up[expert], weights.up_bias, expert)
        hidden = self._hidden(prepared, gate, up)
        down = prepared.down[expert]
        if tactic == "split":
            half = hidden.shape[1] // 2
            return _add(hidden[:, :half] @ down[:half] + hidden[:, half:] @ down[half:], weights.down_bias, expert)
        return _add(hidden @ down, weights.down_bias, expert)

    def _padded(self, prepared: Prepared, rows: Tensor, counts: list[int]) -> Tensor:
        most, experts, weights = max(counts, default=0), len(counts), prepared.weights
        packed = rows.new_zeros(experts, most, rows.shape[1])
        for expert, part in _segments(counts):
            packed[expert, : counts[expert]] = rows[part]

        def product(value: Tensor, matrix: Tensor, bias: Operand | None) -> Tensor:
            result = torch.bmm(value, matrix)
            return result if bias is None else result + bias.data[:, None, :]

        gate = product(packed, prepared.gate, weights.gate_bias)
        up = None if prepared.up is None else product(packed, prepared.up, weights.up_bias)
        result = product(self._hidden(prepared, gate, up), prepared.down, weights.down_bias)
        parts = [result[expert, : counts[expert]] for expert, _ in _segments(counts)]
        return torch.cat(parts) if parts else rows[:0]

    def _hidden(self, prepared: Prepared, gate: Tensor, up: Tensor | None) -> Tensor:
        case = prepared.case
        value = activation(case.activation, gate, up)
        return fake_quantize(value, RECIPES[case.recipe].numerics.intermediate, prepared.weights.intermediate_scale)[0]


def activation(spec: Activation, gate: Tensor, up: Tensor | None) -> Tensor:
    """The case's activation in the dtype of ``gate``; ``up`` is None when it is not gated."""
    if spec.kind == "swiglu_oai":
        assert up is not None
        alpha, beta = 1.702 if spec.alpha is None else spec.alpha, 1.0 if spec.beta is None else spec.beta
        if spec.limit is not None:
            gate, up = gate.clamp(max=spec.limit), up.clamp(-spec.limit, spec.limit)
        return gate * torch.sigmoid(alpha * gate) * (up + beta)
    if spec.kind == "relu2":
        return functional.relu(gate).square()
    if spec.kind in ("swiglu", "silu"):
        value = functional.silu(gate)
    else:
        value = functional.gelu(gate, approximate="tanh" if spec.kind == "geglu_tanh" else "none")
    return value if up is None else value * up


def _segments(counts: list[int]) -> Iterator[tuple[int, slice]]:
    start = 0
    for expert, count in enumerate(counts):
        if count:
            yield expert, slice(start, start + count)
        start += count


def _add(value: Tensor, bias: Operand | None, expert: int) -> Tensor:
    return value if bias is None else value + bias.data[expert]
