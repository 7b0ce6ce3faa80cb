"""Poison: two families that no single value can imitate, another word for each execution."""

from __future__ import annotations

import pytest
import torch

from moeguard.memory import poison

DTYPES = (torch.bfloat16, torch.float16)


def value(word: int, dtype: torch.dtype) -> float:
    return float(torch.tensor([word], dtype=torch.int16).view(dtype)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_families_alternate_between_nan_and_finite(dtype: torch.dtype) -> None:
    for number in range(40):
        got = value(poison.word(dtype, number), dtype)
        assert (got != got) is (number % 2 == 0)
        assert number % 2 == 0 or 1000 < got < float("inf")


@pytest.mark.parametrize("dtype", DTYPES)
def test_words_change_from_one_execution_to_the_next(dtype: torch.dtype) -> None:
    words = [poison.word(dtype, number) for number in range(126)]
    assert len(set(words)) == 126
    assert all(0 < word < 2**15 for word in words)


def test_workspace_bytes() -> None:
    assert [poison.byte(number) for number in range(3)] == [0xFF, 0x41, 0xFF]
    filled = torch.full((4,), poison.byte(0), dtype=torch.uint8)
    assert bool(filled.view(torch.float32).isnan().all())


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(KeyError):
        poison.word(torch.float32, 0)
