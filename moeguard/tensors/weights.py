"""Case to canonical weights, and the bank that holds them. What they depend on is in moeguard.tensors.identity."""

from __future__ import annotations

import torch
from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.quant.blocks import BLOCK, E4M3_MAX
from moeguard.quant.formats import FORMATS, encode
from moeguard.tensors import exact, grouped
from moeguard.tensors.counter import NORMAL_BOUND, Stream
from moeguard.tensors.identity import BANK, EDITS, drawn_key, weight_key
from moeguard.tensors.operand import Operand, Weights
from moeguard.tensors.resident import CAPACITY, Resident
from moeguard.tensors.scaling import fill, largest_up, magnitudes

#: Exponents within which such a factor is a normal float32, so that no expert's codes become zero.
_EDITED = 124
#: Magnitude of ``act(gate) * up`` that the static intermediate scale of fp8_per_tensor is made for.
INTERMEDIATE_RANGE = 16.0
#: Static scales of the input and of the intermediate in int4_fp8: powers of two, since kernels multiply by their reciprocal in
#: bf16. 448 times the first is above every input (1000), 448 times the second (56) above all but outliers.
INT4_SCALES = 4.0, 0.125
#: Magnitude of ``act(gate) * up`` that the static global scale of nvfp4 is made for: 6 * 448 times the scale is above it.
NVFP4_RANGE = 24.0
#: Factors of the static scales of the input and of the intermediate in scales kind ``saturating``.
TIGHT = 2.0**-10, 2.0**-4


class WeightBank:
    """Canonical weights by key, least recently used first out, within a budget of bytes."""

    def __init__(self, capacity_bytes: int = CAPACITY) -> None:
        self._held: Resident[Weights] = Resident(capacity_bytes, weight_bytes)

    def get(self, case: Case, device: torch.device | str = "cpu") -> Weights:
        """Weights of ``case`` on ``device``; read-only, shared by every caller."""
        return self._held.get(_held_key(case, device), lambda: self._make(case, device))

    def clear(self) -> None:
        """Forget everything."""
        self._held.drop("")

    def counters(self) -> dict[str, int]:
        """Hits, misses and bytes held."""
        return self._held.counters()

    def _make(self, case: Case, device: torch.device | str) -> Weights:
        """Made from the case, or from what is held: an EP rank copied from the whole layer, edited scales on the normal codes."""
        if case.parallel.ep_size > 1:
            whole = self._held.peek(_held_key(case.with_(parallel={"ep_size": 1, "ep_rank": 0}), device))
            if whole is not None:
                return whole.shard(case.first_expert, case.experts_local)
        if case.scales.kind in EDITS and abs(case.scales.exponent) <= _EDITED:
            normal = self._held.peek(_held_key(case.with_(scales={"kind": "normal", "exponent": 0}), device))
            if normal is not None:
                return make_weights(case, device, codes=normal)
        return make_weights(case, device)


def _held_key(case: Case, device: torch.device | str) -> str:
    parallel = case.parallel
    return (f"{weight_key(case)}|shard {parallel.ep_size}.{parallel.ep_rank}.{parallel.tp_size}.{parallel.tp_rank}"
            f"|{torch.device(device)}")


def make_weights(case: Case, device: torch.device | str = "cpu", *, codes: Weights | None = None) -> Weights:
    """Build the weights of this rank: shapes as in moeguard.tensors.operand.Weights.

    codes: weights of the case with normal scales, whose codes are taken (shared, not copied) where the recipe has scales; they
    are the same for kinds of EDITS.
    """
    stream = Stream("weights", drawn_key(case), device=device)
    if case.inputs.kind == "exact":
        return exact.make_weights(case, stream)
    experts = range(case.first_expert, case.first_expert + case.experts_local)
    hidden, inter, local = case.shape.hidden_size, case.shape.intermediate_size, case.intermediate_local
    part = slice(case.parallel.tp_rank * local, (case.parallel.tp_rank + 1) * local)
    factor = magnitudes(case, stream)
    recipe = RECIPES[case.recipe]

    def words(label: str, rows: int, columns: int) -> Tensor:
        """Integers in [-510, 510]."""
        drawn = stream.integers_normal(label, rows * columns, rows=experts).view(len(experts), rows, columns)
        drawn = drawn[:, :, part] if label == "down" else drawn[:, part]
        if case.weights.kind == "zero_expert":
            dead = (case.seed // BANK) % case.shape.num_experts
            if dead in experts:
                drawn[dead - experts.start] = 0
        return drawn

    def projection(label: str, rows: int, columns: int) -> Operand:
        deviation = columns**-0.5
        if recipe.weight_scale == "none":
            return _unscaled(case, words(label, rows, columns), deviation, factor[label])
        held: Operand | None = None if codes is None else getattr(codes, label)
        data = _codes(case, words(label, rows, columns), factor[label]) if held is None else held.data
        scale, whole = _scales(case, stream, label, deviation, factor[label])
        return Operand(data, scale, whole, recipe.weight_format)

    def bias(label: str, size: int, scale: float) -> Operand | None:
        if not case.weights.bias:
            return None
        value = encode(stream.normal(f"{label}-bias", size, rows=experts) * scale, RECIPES[case.recipe].output).float()
        mine = value if label == "down" else value[:, part].clone(memory_format=torch.contiguous_format)
        return Operand(mine, format="float32")

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


def _unscaled(case: Case, words: Tensor, deviation: float, factor: Tensor) -> Operand:
    """Integers in [-510, 510] as 16-bit values with standard deviation ``deviation`` times the expert's factor."""
    name = RECIPES[case.recipe].weight_format
    value = words.to(torch.float32).mul_(deviation * NORMAL_BOUND / 510)
    value.mul_(_power_of_two(factor).view(-1, 1, 1)).clamp_(-FORMATS[name].maximum, FORMATS[name].maximum)
    return Operand(encode(value, name), format=name)


def _codes(case: Case, words: Tensor, factor: Tensor) -> Tensor:
    """Integers in [-510, 510], [E_local, R, C], as stored codes. The factors [E_local, 1] matter where they are zero."""
    if RECIPES[case.recipe].group > 1:
        return grouped.codes(case, words, factor)
    return encode(words.to(torch.float32).mul_(fill(case) * E4M3_MAX / 510), "e4m3")


def _scales(case: Case, stream: Stream, label: str, deviation: float, factor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scales and global scales with which ``_codes`` have standard deviation ``deviation`` times the expert's factor."""
    if RECIPES[case.recipe].group > 1:
        return grouped.scales(case, stream, label, deviation, factor)
    base = deviation * NORMAL_BOUND / E4M3_MAX / fill(case)
    if RECIPES[case.recipe].weight_scale == "per_tensor":
        return factor.view(-1) * base, None
    matrix = case.intermediate_local, case.shape.hidden_size
    rows, columns = (-(-size // BLOCK) for size in (matrix[::-1] if label == "down" else matrix))
    ids = range(case.first_expert, case.first_expert + case.experts_local)
    jitter = stream.integers(f"{label}-blocks", rows * columns, 1 << 15, 1 << 17, rows=ids).to(torch.float32) / 65536.0
    return jitter.view(-1, rows, columns) * (factor.view(-1, 1, 1) * base), None


def _power_of_two(factor: Tensor) -> Tensor:
    """The factor's exponent alone, so that 16-bit weights keep their significand; 0 stays 0."""
    mantissa, exponent = torch.frexp(factor)
    return torch.ldexp(torch.full_like(mantissa, 0.5), exponent).where(factor != 0, torch.zeros_like(factor))


def weight_bytes(weights: Weights) -> int:
    """Bytes of all tensors of ``weights``."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.tensors().values())
