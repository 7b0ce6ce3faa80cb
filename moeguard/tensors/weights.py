"""Case to canonical weights. Content depends on the case without its tokens, routing and inputs, and on ``seed % BANK``."""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.quant.blocks import BLOCK, E4M3_MAX
from moeguard.quant.formats import FORMATS, encode
from moeguard.tensors import exact, grouped
from moeguard.tensors.counter import NORMAL_BOUND, Stream
from moeguard.tensors.operand import Operand, Weights
from moeguard.tensors.resident import CPU_BYTES, Resident
from moeguard.tensors.scaling import largest_up, magnitudes

#: Number of weight sets per shape family; scenarios that differ in inputs only share one.
BANK = 4
#: Magnitude of ``act(gate) * up`` that the static intermediate scale of fp8_per_tensor is made for.
INTERMEDIATE_RANGE = 16.0
#: Static scales of the input and of the intermediate in int4_fp8: powers of two, since kernels multiply by their reciprocal in
#: bf16. 448 times the first is above every input (1000), 448 times the second (56) above all but outliers.
INT4_SCALES = 4.0, 0.125
#: Magnitude of ``act(gate) * up`` that the static global scale of nvfp4 is made for: 6 * 448 times the scale is above it.
NVFP4_RANGE = 24.0
#: Factors of the static scales of the input and of the intermediate in scales kind ``saturating``.
TIGHT = 2.0**-10, 2.0**-4


def weight_key(case: Case) -> str:
    """Identity of the weight content; equal keys mean equal bits."""
    # the experts that kind zero of the scales, and zero_expert, choose by the seed
    dead = 0 if (case.scales.kind, case.weights.kind) == ("normal", "normal") else \
        f"{case.seed % case.shape.num_experts}.{case.seed // BANK % case.shape.num_experts}"
    return "|".join(map(str, (
        case.recipe, case.shape.hidden_size, case.shape.intermediate_size, case.shape.num_experts, case.activation.gated,
        case.scales.kind, case.scales.exponent, case.weights.kind, case.weights.bias, case.inputs.kind == "exact",
        case.seed % BANK, dead)))


class WeightBank:
    """Canonical weights by key, least recently used first out, within a budget of bytes."""

    def __init__(self, capacity_bytes: int = CPU_BYTES) -> None:
        self._held: Resident[Weights] = Resident(capacity_bytes, weight_bytes)

    def get(self, case: Case, device: torch.device | str = "cpu") -> Weights:
        """Weights of ``case`` on ``device``; read-only, shared by every caller."""
        return self._held.get(_held_key(case, device), lambda: self._make(case, device))

    def clear(self) -> None:
        """Forget everything."""
        self._held.drop("")

    def drop(self, case: Case) -> None:
        """Forget every entry with the content of ``case`` (a backend changed it)."""
        self._held.drop(f"{weight_key(case)}|shard ")

    def counters(self) -> dict[str, int]:
        """Hits, misses and bytes held."""
        return self._held.counters()

    def _make(self, case: Case, device: torch.device | str) -> Weights:
        """Made from the case, or for an EP rank copied from the whole layer where that is held."""
        if case.parallel.ep_size > 1:
            whole = self._held.peek(_held_key(case.with_(parallel={"ep_size": 1, "ep_rank": 0}), device))
            if whole is not None:
                return whole.shard(case.first_expert, case.experts_local)
        return make_weights(case, device)


def _held_key(case: Case, device: torch.device | str) -> str:
    parallel = case.parallel
    return (f"{weight_key(case)}|shard {parallel.ep_size}.{parallel.ep_rank}.{parallel.tp_size}.{parallel.tp_rank}"
            f"|{torch.device(device)}")


def make_weights(case: Case, device: torch.device | str = "cpu") -> Weights:
    """Build the weights of this rank: shapes as in moeguard.tensors.operand.Weights."""
    stream = Stream("weights", weight_key(case), device=device)
    if case.inputs.kind == "exact":
        return exact.make_weights(case, stream)
    experts = range(case.first_expert, case.first_expert + case.experts_local)
    hidden, inter, local = case.shape.hidden_size, case.shape.intermediate_size, case.intermediate_local
    part = slice(case.parallel.tp_rank * local, (case.parallel.tp_rank + 1) * local)
    factor = magnitudes(case, stream)

    def projection(label: str, rows: int, columns: int) -> Operand:
        words = stream.integers_normal(label, rows * columns, rows=experts).view(len(experts), rows, columns)
        words = words[:, :, part] if label == "down" else words[:, part]
        if case.weights.kind == "zero_expert":
            dead = (case.seed // BANK) % case.shape.num_experts
            if dead in experts:
                words[dead - experts.start] = 0
        return _store(case, stream, label, words, columns**-0.5, factor[label])

    def bias(label: str, size: int, scale: float) -> Operand | None:
        if not case.weights.bias:
            return None
        value = encode(stream.normal(f"{label}-bias", size, rows=experts) * scale, RECIPES[case.recipe].output).float()
        return Operand(value if label == "down" else value[:, part].contiguous(), format="float32")

    input_scale, intermediate_scale = _static_scales(case, device)
    gated = case.activation.gated
    return Weights(
        gate=projection("gate", inter, hidden),
        up=projection("up", inter, hidden) if gated else None,
        down=projection("down", hidden, inter),
        gate_bias=bias("gate", inter, 0.5),
        up_bias=bias("up", inter, 0.5) if gated else None,
        down_bias=bias("down", hidden, 0.5 / case.parallel.tp_size),
        intermediate_scale=intermediate_scale,
        input_scale=input_scale,
    )


def _static_scales(case: Case, device: torch.device | str) -> tuple[Tensor | None, Tensor | None]:
    """Scales of the input and of the intermediate, float32 [1]; None where the recipe has none."""
    tight = TIGHT if case.scales.kind == "saturating" else (1.0, 1.0)

    def one(value: float) -> Tensor:
        return torch.tensor([value], dtype=torch.float32, device=device)

    if case.recipe == "fp8_per_tensor":
        return None, one(INTERMEDIATE_RANGE / E4M3_MAX * tight[1] * largest_up(case))
    if case.recipe == "int4_fp8":
        return one(INT4_SCALES[0] * tight[0]), one(INT4_SCALES[1] * tight[1] * largest_up(case))
    if case.recipe == "nvfp4":
        return None, one(NVFP4_RANGE / (6.0 * E4M3_MAX) * tight[1] * largest_up(case))
    return None, None


def _store(case: Case, stream: Stream, label: str, words: Tensor, deviation: float, factor: Tensor) -> Operand:
    """Integers in [-510, 510] to a stored operand with standard deviation ``deviation`` times the expert's factor."""
    recipe = RECIPES[case.recipe]
    experts = words.shape[0]
    if recipe.group > 1:
        return grouped.store(case, stream, label, words, deviation, factor)
    if recipe.weight_format != "e4m3":
        form = FORMATS[recipe.weight_format]
        sigma = deviation * NORMAL_BOUND / 510
        value = words.to(torch.float32).mul_(sigma)
        spread = _power_of_two(factor)
        value.mul_(spread.view(experts, 1, 1)).clamp_(-form.maximum, form.maximum)
        return Operand(encode(value, recipe.weight_format), format=recipe.weight_format)
    full = 4.0 if case.scales.kind == "saturating" else 1.0
    codes = encode(words.to(torch.float32).mul_(full * E4M3_MAX / 510), "e4m3")
    base = deviation * NORMAL_BOUND / E4M3_MAX / full
    if recipe.weight_scale == "per_tensor":
        return Operand(codes, scale=(factor.view(experts) * base), format="e4m3")
    rows, columns = -(-words.shape[1] // BLOCK), -(-words.shape[2] // BLOCK)
    ids = range(case.first_expert, case.first_expert + experts)
    jitter = stream.integers(f"{label}-blocks", rows * columns, 1 << 15, 1 << 17, rows=ids).to(torch.float32) / 65536.0
    scale = jitter.view(experts, rows, columns) * (factor.view(experts, 1, 1) * base)
    return Operand(codes, scale=scale, format="e4m3")


def _power_of_two(factor: Tensor) -> Tensor:
    """The factor's exponent alone, so that 16-bit weights keep their significand; 0 stays 0."""
    mantissa, exponent = torch.frexp(factor)
    return torch.ldexp(torch.full_like(mantissa, 0.5), exponent).where(factor != 0, torch.zeros_like(factor))


def weight_bytes(weights: Weights) -> int:
    """Bytes of all tensors of ``weights``."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.tensors().values())
