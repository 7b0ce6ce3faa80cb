"""Four-bit codes and e8m0 scales against ml_dtypes: every code, ties, saturation, and the order of nibbles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeguard.quant.e8m0 import decode_e8m0, encode_e8m0, exponent_byte
from moeguard.quant.packed import NIBBLES, decode_packed, encode_e2m1, encode_int4, encode_nibbles, pack, unpack

NUMPY = {"e2m1": ml_dtypes.float4_e2m1fn, "int4": ml_dtypes.int4}
FINITE = st.floats(-1000, 1000, width=32)


@pytest.mark.parametrize("name", NIBBLES)
def test_all_16_codes_decode_alike_and_encode_to_themselves(name: str) -> None:
    raw = np.arange(16, dtype=np.uint8)
    theirs = raw.astype(np.int8).view(NUMPY[name]).astype(np.float32)
    value = torch.tensor(NIBBLES[name].values)
    np.testing.assert_array_equal(value.numpy(), theirs)
    np.testing.assert_array_equal(np.signbit(value.numpy()), np.signbit(theirs))
    assert NIBBLES[name].maximum == np.abs(theirs).max()
    assert encode_nibbles(value, name).tolist() == raw.tolist()


def test_e2m1_ties_go_to_even_and_their_neighbours_do_not() -> None:
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    middle = (grid[1:] + grid[:-1]) / 2
    for value in (middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(9))):
        for sign in (1, -1):
            theirs = (sign * value).astype(NUMPY["e2m1"]).view(np.uint8)
            assert encode_e2m1(torch.from_numpy(sign * value)).tolist() == theirs.tolist()


@settings(max_examples=200, deadline=None)
@given(st.lists(FINITE, min_size=2, max_size=64))
def test_e2m1_rounds_as_ml_dtypes_does(values: list[float]) -> None:
    value = np.array(values, np.float32)
    assert encode_e2m1(torch.from_numpy(value)).tolist() == value.astype(NUMPY["e2m1"]).view(np.uint8).tolist()


@settings(max_examples=200, deadline=None)
@given(st.lists(FINITE, min_size=2, max_size=64))
def test_int4_rounds_to_even_and_saturates(values: list[float]) -> None:
    value = np.array(values, np.float32)
    theirs = np.clip(np.rint(value), -8, 7).astype(np.int8)
    assert encode_int4(torch.from_numpy(value)).tolist() == (theirs & 15).tolist()
    assert encode_int4(torch.tensor([-99.0, 99.0, 2.5, -2.5])).tolist() == [8, 7, 2, 14]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(NIBBLES)), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**31))
def test_random_blocks_survive_packing(name: str, rows: int, pairs: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, 2 * pairs), generator=generator).to(torch.uint8)
    data = pack(codes)
    assert data.shape == (rows, pairs) and torch.equal(unpack(data), codes)
    theirs = codes.numpy().astype(np.int8).view(NUMPY[name]).astype(np.float64)
    for dtype in (torch.float32, torch.float64):
        value = decode_packed(data, name, dtype)
        assert value.dtype == dtype
        np.testing.assert_array_equal(value.numpy(), theirs)


def test_the_low_nibble_is_the_even_column() -> None:
    assert pack(torch.tensor([[1, 2]], dtype=torch.uint8)).tolist() == [[0x21]]
    assert decode_packed(torch.tensor([0x21], dtype=torch.uint8), "e2m1").tolist() == [0.5, 1.0]
    assert decode_packed(torch.tensor([0x2F], dtype=torch.uint8), "int4").tolist() == [-1.0, 2.0]


def test_all_256_scales_decode_alike() -> None:
    raw = np.arange(256, dtype=np.uint8)
    theirs = raw.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    for dtype in (torch.float32, torch.float64):
        np.testing.assert_array_equal(decode_e8m0(torch.from_numpy(raw), dtype).double().numpy(), theirs)
    finite = torch.from_numpy(raw[:255])
    assert torch.equal(encode_e8m0(decode_e8m0(finite)), finite)
    assert torch.equal(exponent_byte(torch.arange(-127, 128)), finite)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(2.0**-126, 2.0**127, width=32), min_size=1, max_size=64))
def test_scales_round_as_ml_dtypes_does(values: list[float]) -> None:
    value = np.array(values, np.float32)
    assert encode_e8m0(torch.from_numpy(value)).tolist() == value.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8).tolist()


def test_scales_saturate_and_keep_nan() -> None:
    value = torch.tensor([0.0, 2.0**-149, 3.0e38, torch.inf, torch.nan, -1.0])
    assert encode_e8m0(value).tolist() == [0, 0, 254, 255, 255, 255]
    assert exponent_byte(torch.tensor([-500, 500])).tolist() == [0, 254]
