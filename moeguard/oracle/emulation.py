"""Healthy kernels in float32, independent of the oracle and of the twins: what the judge's false alarms are counted on.

Every execution sums in another order: H, I and the experts of a token are permuted, each sum is split at random places,
scales are applied before or after the sums of their block or group, subnormals may be flushed. Hopper's 14-bit FP8
accumulator is emulated product by product (DeepSeek-V3 technical report, section 3.3.2). Nothing is shared with
``oracle.reference`` but the operands and the declared rounding points.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from moeguard.core.case import Activation
from moeguard.core.numerics import Numerics
from moeguard.tensors.operand import Operand
from moeguard.tensors.problem import Problem

E4M3 = torch.float8_e4m3fn
#: Magnitudes of e2m1 codes; ties go to the even ones among them.
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: Products between two roundings of the emulated FP8 accumulator, and bits kept.
_STEP, _BITS = 32, 13


class Emulation:
    """One kernel configuration: a seed fixes its order of sums.

    run(problem, numerics) returns the answer [T, H] in the output dtype.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def run(self, problem: Problem, numerics: Numerics) -> Tensor:
        """A healthy answer of the declared recipe."""
        flush = self._chance(0.25)
        if flush:
            torch.set_flush_denormal(True)
        try:
            return self._run(problem, numerics)
        finally:
            if flush:
                torch.set_flush_denormal(False)

    def _run(self, problem: Problem, numerics: Numerics) -> Tensor:
        case, weights = problem.case, problem.weights
        x = self._input(problem.flat_x, numerics.input, weights.input_scale)
        tokens, top_k = problem.flat_ids.shape
        hidden_size = weights.down.shape[1]
        parts = torch.zeros(tokens, top_k, hidden_size)
        late = self._chance(0.5)
        for expert in range(case.experts_local):
            token, rank = (problem.flat_ids == expert + case.first_expert).nonzero(as_tuple=True)
            if not token.numel():
                continue
            gate = self._project(x, token, weights.gate, expert, weights.gate_bias, numerics, late, numerics.projection)
            up = None if weights.up is None else self._project(
                x, token, weights.up, expert, weights.up_bias, numerics, late, numerics.projection)
            h = self._activate(case.activation, gate, up)
            rounded = self._round(h, numerics.intermediate, weights.intermediate_scale)
            out = self._project(rounded, torch.arange(len(token)), weights.down, expert, weights.down_bias, numerics, late)
            parts[token, rank] = self._round(out, numerics.expert_output, None)[0]
        return self._combine(parts, problem, numerics)

    def _combine(self, parts: Tensor, problem: Problem, numerics: Numerics) -> Tensor:
        weighted = parts * problem.flat_weights.float()[:, :, None]
        narrow = {"fp32": torch.float32, "bf16": torch.bfloat16, "output": problem.output_dtype}[numerics.combine]
        total = torch.zeros(parts.shape[0], parts.shape[2])
        for rank in torch.randperm(parts.shape[1], generator=self._generator).tolist():
            total = (total + weighted[:, rank]).to(narrow).float()
        return total.to(problem.output_dtype)

    def _input(self, operand: Operand, rounding: str, static: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Values (or codes) [T, H] with scales [T, H] or None."""
        data, scale = operand.codes(), operand.scales()
        if scale is None:
            return self._round(data, rounding, static)
        if operand.global_scale is not None:
            scale = (scale * operand.global_scale).repeat_interleave(data.shape[1] // scale.shape[1], 1)
        return data, scale.expand_as(data)

    def _round(self, value: Tensor, rounding: str, static: Tensor | None) -> tuple[Tensor, Tensor | None]:
        scale: Tensor | None = None
        for part in rounding.split("+"):
            if part in _NARROW:
                value = value.to(_NARROW[part]).float()
            elif part == "e4m3_per_tensor":
                assert static is not None
                scale = static.expand_as(value)
                value = (value / static if self._chance(0.5) else value * (1 / static)).clamp(-448, 448).to(E4M3).float()
            elif part in ("e4m3_1x128", "e4m3_per_token"):
                value, scale = self._row_blocks(value, 128 if part == "e4m3_1x128" else max(value.shape[1], 1))
            elif part == "mxfp8":
                value, scale = self._mx(value)
            elif part == "nvfp4":
                assert static is not None
                value, scale = self._nvfp4(value, static)
        return value, scale

    def _mx(self, value: Tensor) -> tuple[Tensor, Tensor]:
        groups = value.unflatten(1, (-1, 32))
        amax = groups.abs().amax(2, keepdim=True).clamp_min(448 * 2.0**-126)
        quotient = amax * (1 / 448) if self._chance(0.5) else amax / 448
        power = torch.exp2(torch.floor(torch.log2(quotient.double()))).float()
        scale = torch.where(power < quotient, 2 * power, power)
        return (groups / scale).clamp(-448, 448).to(E4M3).float().flatten(1), scale.expand_as(groups).flatten(1)

    def _nvfp4(self, value: Tensor, static: Tensor) -> tuple[Tensor, Tensor]:
        groups = value.unflatten(1, (-1, 16))
        amax = groups.abs().amax(2, keepdim=True)
        inverse = self._chance(0.5)  # FlashInfer multiplies by reciprocals, of 6, of the global scale and of their product
        stored = ((1 / static) * (amax * (1 / 6)) if inverse else amax / (6 * static)).clamp(max=448).to(E4M3).float()
        scale = stored * static
        code = groups * (1 / (stored * (1 / (1 / static)))) if inverse else groups / scale
        code = torch.where(stored > 0, code, torch.zeros(())).clamp(-6, 6)
        gap = (code.abs()[..., None] - _E2M1).abs()
        nearest = gap.amin(-1, keepdim=True)
        even = (gap == nearest)[..., ::2]  # of two neighbours at the same distance one has an even code
        index = torch.where(even.any(-1), 2 * even.int().argmax(-1), gap.argmin(-1))
        return (_E2M1[index].copysign(code)).flatten(1), scale.expand_as(groups).flatten(1)

    def _row_blocks(self, value: Tensor, width: int) -> tuple[Tensor, Tensor]:
        inverse = self._chance(0.5)
        codes, scales = torch.empty_like(value), torch.empty_like(value)
        for block in range(0, value.shape[1], width):
            part = value[:, block:block + width]
            amax = part.abs().amax(1, keepdim=True)
            live = amax / 448 >= 2.0**-126
            scale = torch.where(live, amax / 448, torch.ones_like(amax))
            small = torch.where(live, 448 / amax, torch.ones_like(amax))
            usable = inverse and bool(torch.isfinite(small).all())
            codes[:, block:block + width] = (part * small if usable else part / scale).clamp(-448, 448).to(E4M3).float()
            scales[:, block:block + width] = scale
        return codes, scales

    def _project(self, x: tuple[Tensor, Tensor | None], token: Tensor, weight: Operand, expert: int, bias: Operand | None,
                 numerics: Numerics, late: bool, rounding: str = "none") -> Tensor:
        codes, scales = x
        rows = codes[token]
        row_scale = None if scales is None else scales[token]
        part = weight.experts(slice(expert, expert + 1))
        matrix, step = part.codes()[0], 128
        scale, total_scale = part.scales(), torch.ones(()) if part.global_scale is None else part.global_scale
        factor = None if scale is None else scale[0] if scale.dim() == 3 else scale
        if factor is not None and factor.dim() == 2:
            spread = factor if part.grouped else factor.repeat_interleave(128, 0)[: matrix.shape[0]]
            step = matrix.shape[1] // factor.shape[1] if part.grouped else 128
        out = torch.zeros(rows.shape[0], matrix.shape[0])
        width = rows.shape[1]
        hopper = numerics.accumulate == "fp8_hopper"
        if hopper and part.format == "e2m1":  # e8m0 scales are folded into the e4m3 weights, but for one of the whole matrix
            assert part.scale is not None
            byte = part.scale[0].float()
            total_scale, factor, step = torch.exp2(byte.max() - 127), None, 128
            matrix = matrix * torch.exp2(byte - byte.max()).repeat_interleave(matrix.shape[1] // byte.shape[1], 1)
        if late or hopper:  # sums of codes, scaled a block or group at a time
            for index in torch.randperm(-(-width // step), generator=self._generator).tolist():
                piece = slice(index * step, min(width, index * step + step))
                total = self._product(rows[:, piece], matrix[:, piece], hopper)
                if row_scale is not None:
                    total = total * row_scale[:, index * step, None]
                if factor is not None:
                    total = total * (spread[None, :, index] if factor.dim() == 2 else factor)
                out += total * total_scale
        else:
            if row_scale is not None:
                rows = rows * row_scale
            if factor is not None:
                columns = spread.repeat_interleave(step, 1)[:, :width] if factor.dim() == 2 else factor
                matrix = matrix * columns
            out = self._product(rows, matrix, False) * total_scale
        early = self._chance(0.5)  # kernels round before or after they add the bias
        if early:
            out = self._round(out, rounding, None)[0]
        if bias is not None:
            out = out + bias.data[expert]
        return out if early else self._round(out, rounding, None)[0]

    def _product(self, a: Tensor, b: Tensor, hopper: bool) -> Tensor:
        """a [n, D] b [N, D] transposed, in a random order and with random cuts."""
        width = a.shape[1]
        order = torch.randperm(width, generator=self._generator)
        if hopper:
            return _hopper(a[:, order], b[:, order])
        cuts = torch.randint(0, width + 1, (int(torch.randint(0, 4, (), generator=self._generator)),), generator=self._generator)
        edges = [0, *sorted(cuts.tolist()), width]
        total = torch.zeros(a.shape[0], b.shape[0])
        for low, high in pairwise(edges):
            if high > low:
                total += a[:, order[low:high]] @ b[:, order[low:high]].T
        return total

    def _activate(self, activation: Activation, gate: Tensor, up: Tensor | None) -> Tensor:
        kind = activation.kind
        if kind == "relu2":
            value = torch.relu(gate) ** 2
        elif kind in ("geglu", "gelu"):
            value = torch.nn.functional.gelu(gate)
        elif kind == "geglu_tanh":
            value = torch.nn.functional.gelu(gate, approximate="tanh")
        elif kind == "swiglu_oai":
            assert up is not None
            alpha = 1.702 if activation.alpha is None else activation.alpha
            beta = 1.0 if activation.beta is None else activation.beta
            if activation.limit is not None:
                gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
            value, up = gate * torch.sigmoid(gate * alpha), up + beta
        elif self._chance(0.5):
            value = torch.nn.functional.silu(gate)
        else:
            value = gate * (1 / (1 + torch.exp(-gate)))
        return value if up is None else value * up

    def _chance(self, share: float) -> bool:
        return float(torch.rand((), generator=self._generator)) < share


def _hopper(a: Tensor, b: Tensor) -> Tensor:
    """14-bit accumulation: the products of a step and the running sum are aligned to the largest and truncated."""
    total = torch.zeros(a.shape[0], b.shape[0])
    for start in range(0, a.shape[1], _STEP):
        product = a[:, None, start:start + _STEP] * b[None, :, start:start + _STEP]
        largest = torch.maximum(product.abs().amax(2), total.abs())
        unit = torch.exp2(torch.floor(torch.log2(largest.clamp_min(2.0**-100))) - _BITS)
        total = torch.trunc(total / unit) * unit + torch.trunc(product / unit[:, :, None]).sum(2) * unit
    return total
