"""MX and NVFP4 groups against ml_dtypes, torchao and FlashInfer: scales, codes, zero and subnormal groups, saturation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from flashinfer_quantisers import blocks
from flashinfer_site import run_in_site
from hypothesis import given, settings
from hypothesis import strategies as st

from moeguard.quant.blocks import fake_quantize
from moeguard.quant.e8m0 import decode_e8m0
from moeguard.quant.formats import FORMATS
from moeguard.quant.microscaling import ScaleMode, mx_exponents, mx_scales, nvfp4_scales, quantize_mx, quantize_nvfp4
from moeguard.quant.packed import decode_packed, encode_e2m1

E4M3, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn
MODES: tuple[ScaleMode, ...] = ("floor", "round_down", "round_up")
#: Rows of one group: exponent of its values, seed, and zeros among them.
GROUPS = st.tuples(st.integers(-120, 110), st.integers(0, 2**31), st.sampled_from([0.0, 0.5, 1.0]))


def group(width: int, drawn: tuple[int, int, float]) -> torch.Tensor:
    """Float32 [1, width]."""
    exponent, seed, zeros = drawn
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(1, width, generator=generator) * (torch.rand(1, width, generator=generator) >= zeros)
    return torch.ldexp(value, torch.tensor(exponent))


def decoded(data: torch.Tensor, element: str) -> torch.Tensor:
    return decode_packed(data, "e2m1", torch.float64) if element == "e2m1" else data.double()


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.sampled_from(["e4m3", "e5m2", "e2m1"]), st.sampled_from(MODES))
def test_mx_groups_as_numpy_computes_them(drawn: tuple[int, int, float], element: str, mode: ScaleMode) -> None:
    value = group(32, drawn)
    data, byte = quantize_mx(value, element, mode)
    amax, top = float(value.abs().max()), FORMATS[element].maximum
    if mode == "floor":
        wanted = np.frexp(np.float64(amax))[1] - 1 - int(np.floor(np.log2(top)))
    else:
        wanted = (np.ceil if mode == "round_up" else np.floor)(np.log2(amax / top)) if amax else -127
    wanted = int(np.clip(wanted, -127, 127)) if amax else -127
    assert byte.item() == wanted + 127
    dtype = {"e4m3": E4M3, "e5m2": ml_dtypes.float8_e5m2, "e2m1": E2M1}[element]
    code = np.clip(value.double().numpy() / 2.0**wanted, -top, top).astype(np.float32).astype(dtype).astype(np.float64)
    np.testing.assert_array_equal(decoded(data, element).numpy(), code)
    assert mode != "round_up" or wanted in (-127, 127) or bool((value.abs() / 2.0**wanted <= top).all())


def test_modes_differ_where_the_largest_value_is_close_to_the_largest_code() -> None:
    amax = torch.tensor([1.0, 1.75, 1.7500001, 1.9999])
    wanted = {"floor": [-8, -8, -8, -8], "round_down": [-9, -8, -8, -8], "round_up": [-8, -8, -7, -7]}
    for mode in MODES:
        assert mx_exponents(amax, "e4m3", mode).tolist() == wanted[mode]
        assert mx_exponents(amax.double(), "e4m3", mode).tolist() == wanted[mode]
        assert torch.equal(mx_scales(amax, "e4m3", mode), torch.exp2(torch.tensor(wanted[mode], dtype=torch.float32)))


@settings(max_examples=60, deadline=None)
@given(GROUPS, st.floats(2.0**-60, 2.0**60, width=32))
def test_nvfp4_groups_as_numpy_computes_them(drawn: tuple[int, int, float], whole: float) -> None:
    value, static = group(16, (max(-60, min(60, drawn[0])), *drawn[1:])), torch.tensor([whole])
    data, scale = quantize_nvfp4(value, static)
    amax = np.float32(value.abs().max())
    stored = np.minimum(amax / np.float32(6) / np.float32(whole), np.float32(448)).astype(E4M3)
    assert scale.view(torch.uint8).item() == stored.view(np.uint8)
    step = stored.astype(np.float32) * np.float32(whole)
    code = (value.numpy() / step if step else np.zeros((1, 16), np.float32)).clip(-6, 6).astype(E2M1).astype(np.float64)
    np.testing.assert_array_equal(decode_packed(data, "e2m1", torch.float64).numpy(), code)


def test_zero_subnormal_and_saturating_groups() -> None:
    static = torch.tensor([2.0**-6])
    amax = torch.tensor([0.0, 2.0**-18, 6 * 2.0**-16 * 1.001, 6 * 2.0**-15, 42.0, 1e9])
    wanted = [0.0, 0.0, 2.0**-9, 2.0**-9, 448.0, 448.0]
    assert nvfp4_scales(amax, static).tolist() == wanted
    assert nvfp4_scales(amax.double(), static).tolist() == wanted
    value = torch.zeros(6, 16)
    value[:, 3] = -amax
    data, _ = quantize_nvfp4(value, static)
    assert decode_packed(data, "e2m1")[:, 3].tolist() == [0.0, 0.0, -3.0, -6.0, -6.0, -6.0]
    assert quantize_mx(torch.zeros(1, 32))[1].item() == 0 and not quantize_mx(torch.zeros(1, 32))[0].float().any()


@pytest.mark.parametrize("rounding", ["mxfp8", "nvfp4", "bf16+nvfp4"])
def test_rounding_points_are_the_stored_form(rounding: str) -> None:
    value, static = blocks(3), torch.tensor([0.0113])
    for dtype in (torch.float32, torch.float64):
        rounded, scale = fake_quantize(value.to(dtype), rounding, static)
        assert scale is not None and scale.shape == value.shape and rounded.dtype == dtype
        if rounding == "mxfp8":
            data, byte = quantize_mx(value)
            wanted = data.double() * decode_e8m0(byte, torch.float64).repeat_interleave(32, 1)
        else:
            data, stored = quantize_nvfp4(value, static)
            wanted = decode_packed(data, "e2m1", torch.float64) * (stored.double() * static.double()).repeat_interleave(16, 1)
        torch.testing.assert_close(rounded.double(), wanted, rtol=2.0**-22, atol=0)
    with pytest.raises(ValueError, match="static global scale"):
        fake_quantize(value, "nvfp4")


def test_as_torchao_does() -> None:
    from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, f32_to_f4_unpacked
    from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    assert f4_unpacked_to_f32(torch.arange(16, dtype=torch.uint8)).tolist() == decode_packed(
        torch.arange(0, 256, 17, dtype=torch.uint8), "e2m1").tolist()[::2]
    value = blocks(0)
    middle = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    near = torch.cat([middle, torch.nextafter(middle, torch.tensor(0.0)), torch.nextafter(middle, torch.tensor(9.0))])
    near = torch.cat([near, -near, value.flatten()])
    assert torch.equal(f32_to_f4_unpacked(near), encode_e2m1(near))
    for mode, theirs in (("floor", ScaleCalculationMode.FLOOR), ("round_up", ScaleCalculationMode.RCEIL)):
        for element, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2), ("e2m1", torch.float4_e2m1fn_x2)):
            scale, data = to_mx(value, dtype, 32, theirs)
            ours, byte = quantize_mx(value, element, mode)  # type: ignore[arg-type]
            assert torch.equal(scale.view(torch.uint8), byte), (mode, element)
            assert torch.equal(data.view(torch.uint8), ours.view(torch.uint8)), (mode, element)
    whole = torch.tensor(0.0113)
    scale, data = nvfp4_quantize(value, 16, whole)
    ours, stored = quantize_nvfp4(value, whole[None])
    normal = stored.float() >= 2.0**-6  # torchao raises smaller scales to 2**-6
    assert torch.equal(scale.float()[normal], stored.float()[normal]) and int(normal.sum()) > 1000
    alike = normal.repeat_interleave(16, 1)
    codes = [decode_packed(one, "e2m1")[alike] for one in (data, ours)]
    step = (stored.float() * whole).repeat_interleave(16, 1)[alike]
    # it multiplies by a reciprocal, so a code may be the neighbour where the quotient is within 2**-20 of a tie
    quotient = (value[alike] / step).abs()
    edge = ((quotient[:, None] / middle - 1).abs() < 2.0**-20).any(1)
    assert torch.equal(codes[0][~edge], codes[1][~edge]) and int(edge.sum()) < 10


def test_as_flashinfer_does() -> None:
    found = run_in_site("0.7.4", "flashinfer_quantisers:compare", 7)
    compared = {name: number for name, number in found.items() if name.endswith("compared")}
    assert len(compared) == 2 and all(number > 20_000 for number in compared.values())
    assert {name: number for name, number in found.items() if name not in compared and number} == {}


def test_torch_holds_the_same_e8m0_and_e4m3_scales() -> None:
    byte = torch.arange(255, dtype=torch.uint8)
    assert torch.equal(byte.view(torch.float8_e8m0fnu).float(), decode_e8m0(byte))
    amax = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float() * 6
    assert torch.equal(nvfp4_scales(amax, torch.ones(1)), amax / 6)
