"""moeguard's quantisers beside FlashInfer's own reference functions in plain torch, in a process that sees a wheel of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moeguard.quant.microscaling import MX_GROUP, NVFP4_GROUP, quantize_mx, quantize_nvfp4
from moeguard.quant.packed import unpack

#: Rows of random groups.
ROWS = 256


def blocks(seed: int) -> Tensor:
    """bf16 values [ROWS, 128] in float32: groups of every size from subnormal e4m3 scales on, some zero or nearly so."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(ROWS, 128, generator=generator)
    size = torch.randint(-12, 12, (ROWS, 128 // NVFP4_GROUP), generator=generator)
    keep = torch.rand(ROWS, 128 // NVFP4_GROUP, generator=generator) > 0.1
    return (torch.ldexp(value.unflatten(1, (-1, NVFP4_GROUP)), size[..., None]) * keep[..., None]).flatten(1).bfloat16().float()


def compare(seed: int) -> dict[str, Any]:
    """Numbers of elements or scales that differ, by name of FlashInfer's function and of what was compared."""
    from flashinfer.trace.templates import moe, quantize

    value, differing = blocks(seed), {}
    byte = torch.arange(256, dtype=torch.uint8)
    differing["e2m1 codes"] = count(moe._unpack_fp4_e2m1(byte), codes_of(byte))
    scales = {"round_up": quantize._quantize_mxfp8_round_up_scale(value), "round_down": quantize._quantize_mxfp8(value)}
    for mode, (codes, scale) in scales.items():
        ours = quantize_mx(value, "e4m3", mode)  # type: ignore[arg-type]
        alive = (ours[1] > 0).repeat_interleave(MX_GROUP, 1)
        live_scale = value.unflatten(1, (-1, MX_GROUP)).abs().amax(2) > 0  # of zeros one writes the scale 1
        differing |= {f"mxfp8 {mode} codes": count(codes.float() * alive, ours[0].float() * alive),
                      f"mxfp8 {mode} scales": count(scale[live_scale], ours[1][live_scale])}
    for whole in (torch.tensor([2.0**-6]), torch.tensor([0.0113])):
        codes, scale = quantize._nvfp4_quantize_reference(value, 1 / whole)
        data, ours_scale = quantize_nvfp4(value, whole)
        step = ours_scale.float().repeat_interleave(NVFP4_GROUP, 1) * whole
        middle = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
        ratio = torch.where(step > 0, value / step, 0.0).abs()
        tie = ((ratio[..., None] / middle - 1).abs() < 2.0**-20).any(-1)  # ties go to the smaller code there
        skipped = tie | (step == 0)
        differing |= {f"nvfp4 {float(whole):.4f} scales": count(scale.float(), ours_scale.float()),
                      f"nvfp4 {float(whole):.4f} codes": count(
                          moe._unpack_fp4_e2m1(codes)[~skipped], codes_of(data)[~skipped])}
        differing[f"nvfp4 {float(whole):.4f} compared"] = int((~skipped).sum())
    return differing


def codes_of(data: Tensor) -> Tensor:
    """Float32 values of packed e2m1 bytes, by the codes that ``unpack`` gives."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    code = unpack(data).long()
    return values[code % 8] * (1 - 2.0 * (code >= 8))


def count(first: Tensor, second: Tensor) -> int:
    """Elements that differ in value."""
    return int((first != second).sum())
