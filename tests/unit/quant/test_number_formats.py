"""Formats against ml_dtypes and torch: every FP8 code, ties, subnormals, and single rounding from float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeguard.quant.formats import FORMATS, encode, round_to

NUMPY = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
         "e2m1": ml_dtypes.float4_e2m1fn, "float32": np.float32}


def codes(name: str) -> torch.Tensor:
    """All finite values of an FP8 or 16-bit format, ascending, float64."""
    form = FORMATS[name]
    bits = torch.arange(2 ** (8 * form.dtype.itemsize), dtype=torch.int32)
    raw = bits.to(torch.uint8) if form.dtype.itemsize == 1 else bits.to(torch.int16)
    value = raw.view(form.dtype).double()
    return value[torch.isfinite(value)].unique()


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_all_256_codes_decode_alike(name: str) -> None:
    raw = np.arange(256, dtype=np.uint8)
    theirs = raw.view(NUMPY[name]).astype(np.float64)
    ours = torch.from_numpy(raw).view(FORMATS[name].dtype).double().numpy()
    np.testing.assert_array_equal(ours, theirs)
    assert FORMATS[name].maximum == np.nanmax(theirs[np.isfinite(theirs)])
    assert FORMATS[name].quantum == np.min(theirs[theirs > 0])


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "bf16", "fp16"])
def test_every_code_is_a_fixed_point(name: str) -> None:
    value = codes(name)
    assert torch.equal(round_to(value, name), value)
    assert torch.equal(encode(value.float(), name).double(), value)


@pytest.mark.parametrize("name", ["e4m3", "e5m2", "bf16", "fp16"])
def test_ties_go_to_even_and_neighbours_of_ties_do_not(name: str) -> None:
    value = codes(name)
    low, high = value[:-1], value[1:]
    middle = low + (high - low) / 2
    rounded = round_to(middle, name)
    torch.testing.assert_close(rounded.numpy(), middle.numpy().astype(NUMPY[name]).astype(np.float64), rtol=0, atol=0)
    above = torch.nextafter(middle, torch.full_like(middle, torch.inf))
    below = torch.nextafter(middle, torch.full_like(middle, -torch.inf))
    assert torch.equal(round_to(above, name), high)
    assert torch.equal(round_to(below, name), low)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_fp8_saturates(name: str) -> None:
    limit = FORMATS[name].maximum
    value = torch.tensor([limit * 1.01, -limit * 4, torch.inf, -torch.inf], dtype=torch.float64)
    wanted = torch.tensor([limit, -limit, limit, -limit], dtype=torch.float64)
    assert torch.equal(round_to(value, name), wanted)
    assert torch.equal(encode(value.float(), name).double(), wanted)


@pytest.mark.parametrize("name", ["bf16", "fp16", "float32"])
def test_wide_formats_overflow_to_infinity_at_the_right_place(name: str) -> None:
    form = FORMATS[name]
    edge = form.maximum + form.roundoff * 2.0 ** np.floor(np.log2(form.maximum))
    value = torch.tensor([np.nextafter(edge, 0), edge, -edge], dtype=torch.float64)
    assert torch.equal(round_to(value, name), torch.tensor([form.maximum, torch.inf, -torch.inf], dtype=torch.float64))


def test_nan_zero_and_signs() -> None:
    for name in FORMATS:
        value = torch.tensor([torch.nan, 0.0, -0.0], dtype=torch.float64)
        rounded = round_to(value, name)
        assert bool(torch.isnan(rounded[0]))
        assert rounded[1:].tolist() == [0.0, 0.0]
        assert bool(torch.signbit(rounded[2]))
        if name not in ("float32", "e2m1"):
            assert bool(torch.isnan(encode(torch.tensor([torch.nan]), name).float())[0])


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_random_float64_agree_with_ml_dtypes_but_for_double_rounding(name: str) -> None:
    rng = np.random.default_rng(0)
    form = FORMATS[name]
    value = rng.standard_normal(50_000) * np.exp2(rng.uniform(form.emin - form.precision - 2, np.log2(form.maximum) - 3, 50_000))
    ours = round_to(torch.from_numpy(value), name).numpy()
    low, high = np.abs(ours - value), form.roundoff * np.abs(value)
    assert np.all(low <= np.maximum(high, form.quantum / 2))
    theirs = value.astype(NUMPY[name]).astype(np.float64)
    differing = ours != theirs
    assert np.mean(differing) < 1e-4
    assert np.all(np.abs(ours - value)[differing] <= np.abs(theirs - value)[differing])


@pytest.mark.parametrize("name", ["bf16", "fp16", "e4m3", "e5m2"])
def test_double_rounding_traps(name: str) -> None:
    """Just above a tie by less than half a float32 step: a detour through float32 lands on the tie and goes to even."""
    low = 1.0
    high = 1.0 + 2 * FORMATS[name].roundoff
    middle = (low + high) / 2
    trap = torch.tensor([middle * (1 + 2.0**-30), -middle * (1 + 2.0**-30)], dtype=torch.float64)
    assert round_to(trap, name).tolist() == [high, -high]
    assert trap.float().to(FORMATS[name].dtype).double().tolist() == [low, -low]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["bf16", "fp16", "e4m3", "e5m2"]), st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 1e30))
def test_rounding_is_monotone_and_idempotent(name: str, value: float, more: float) -> None:
    first, second = round_to(torch.tensor([value, value + more], dtype=torch.float64), name).tolist()
    assert first <= second
    assert round_to(torch.tensor([first], dtype=torch.float64), name).item() == first


def test_wrong_dtype_and_unknown_format_are_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        round_to(torch.zeros(1), "bf16")
    with pytest.raises(KeyError):
        round_to(torch.zeros(1, dtype=torch.float64), "e3m4")
