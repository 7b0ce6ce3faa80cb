"""Snapshots and digests see every byte of the storage, also between the rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeguard.memory.digest import Snapshot, digest, storage_bytes


def padded(rows: int = 3, columns: int = 8, gap: int = 5) -> torch.Tensor:
    """A view with gaps between its rows."""
    return torch.arange(rows * (columns + gap), dtype=torch.float32).view(rows, columns + gap)[:, :columns]


def test_the_storage_holds_the_gaps() -> None:
    assert storage_bytes(padded()).numel() == 3 * 13 * 4


def test_snapshot_sees_and_undoes_changes() -> None:
    x, ids = padded(), torch.tensor([1, 2], dtype=torch.int32)
    snapshot = Snapshot({"x": x, "ids": ids})
    assert snapshot.changed() == []
    ids[1] = 7
    assert snapshot.changed() == ["ids"]
    snapshot.restore()
    assert ids.tolist() == [1, 2] and snapshot.changed() == []


def test_snapshot_sees_a_row_gap() -> None:
    x = padded()
    snapshot = Snapshot({"x": x})
    x.as_strided((1,), (1,), 9).fill_(-1.0)
    assert snapshot.changed() == ["x"]


def test_snapshot_compares_bits_and_not_values() -> None:
    x = torch.tensor([0.0, float("nan")])
    snapshot = Snapshot({"x": x})
    assert snapshot.changed() == []
    x[0] = -0.0
    assert snapshot.changed() == ["x"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.uint8])
@pytest.mark.parametrize("count", [1, 7, 4096, 5000])
def test_equal_contents_have_equal_digests(dtype: torch.dtype, count: int) -> None:
    x = torch.arange(count).remainder(100).to(dtype)
    assert digest(x) == digest(x.clone())


def test_digest_of_nothing() -> None:
    assert digest(torch.empty(0)) == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70_000), st.data())
def test_one_changed_byte_changes_the_digest(count: int, data: st.DataObject) -> None:
    x = torch.zeros(count, dtype=torch.uint8)
    before = digest(x)
    x[data.draw(st.integers(0, count - 1))] = data.draw(st.integers(1, 255))
    assert digest(x) != before


def test_swapped_rows_change_the_digest() -> None:
    x = torch.randn(64, 2048, generator=torch.Generator().manual_seed(0))
    assert digest(x) != digest(x.flip(0)) != digest(x.flip(1))


def test_a_row_gap_changes_the_digest() -> None:
    x = padded()
    before = digest(x)
    x.as_strided((1,), (1,), 9).fill_(-1.0)
    assert digest(x) != before
