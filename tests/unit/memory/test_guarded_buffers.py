"""Outputs and workspaces in guarded memory: every word outside of the answer is watched."""

from __future__ import annotations

import pytest
import torch

from moeguard.memory.buffers import GUARD, WORKSPACE_GUARD, OutputBuffer, Workspace

SHAPES = [((3, 8), 0), ((3, 8), 5), ((2, 3, 8), 0), ((2, 3, 8), 5), ((1, 1), 0)]


def around(out: torch.Tensor) -> torch.Tensor:
    """The whole storage behind ``out``."""
    return torch.empty(0, dtype=out.dtype).set_(out.untyped_storage())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("shape", "padding"), SHAPES)
def test_geometry(shape: tuple[int, ...], padding: int, dtype: torch.dtype) -> None:
    out = OutputBuffer(shape, dtype, padding, "cpu").poison(0)
    assert (tuple(out.shape), out.dtype, out.stride(-1)) == (shape, dtype, 1)
    assert out.stride(-2) == shape[-1] + padding
    assert out.storage_offset() == GUARD >= 64
    assert around(out).numel() - out.storage_offset() - (out.stride(0) * shape[0]) >= 64


@pytest.mark.parametrize(("shape", "padding"), SHAPES)
def test_a_full_write_is_clean(shape: tuple[int, ...], padding: int) -> None:
    buffer = OutputBuffer(shape, torch.bfloat16, padding, "cpu")
    out = buffer.poison(0)
    assert buffer.untouched() and bool(buffer.unwritten().all())
    out.fill_(1.0)
    assert buffer.trespass() is None
    assert not bool(buffer.unwritten().any())
    assert not buffer.untouched()
    assert not buffer.replaced(out)


@pytest.mark.parametrize("number", [0, 1])
def test_unwritten_elements_are_found_where_they_are(number: int) -> None:
    buffer = OutputBuffer((3, 8), torch.bfloat16, 5, "cpu")
    out = buffer.poison(number)
    out[:, :7] = 1.0
    out[0] = 1.0
    assert buffer.unwritten().nonzero().tolist() == [[1, 7], [2, 7]]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(("index", "where", "offset"), [
    (0, "before the output", -GUARD), (GUARD - 1, "before the output", -1),
    (GUARD + 24, "after the output", 24), (GUARD + 24 + GUARD - 1, "after the output", 24 + GUARD - 1)])
def test_one_word_in_a_guard_band(index: int, where: str, offset: int, number: int) -> None:
    buffer = OutputBuffer((3, 8), torch.bfloat16, 0, "cpu")
    out = buffer.poison(number)
    out.fill_(1.0)
    around(out)[index] = 2.0
    place = buffer.trespass()
    assert place is not None
    assert (place.count, place.where, place.offset) == (1, where, offset)
    assert f"offset {offset}" in place.sentence


def test_one_word_in_a_row_gap() -> None:
    buffer = OutputBuffer((3, 8), torch.float16, 5, "cpu")
    out = buffer.poison(0)
    out.fill_(1.0)
    around(out)[GUARD + 13 + 9] = 2.0
    place = buffer.trespass()
    assert place is not None
    assert (place.count, place.where, place.offset) == (1, "between rows", 13 + 9)


def test_writing_the_same_nan_again_does_not_hide() -> None:
    buffer = OutputBuffer((2, 8), torch.bfloat16, 0, "cpu")
    out = buffer.poison(0)
    out.fill_(float("nan"))
    assert not bool(buffer.unwritten().any())


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_no_tokens(shape: tuple[int, ...]) -> None:
    buffer = OutputBuffer(shape, torch.bfloat16, 5, "cpu")
    out = buffer.poison(0)
    assert tuple(out.shape) == shape
    assert buffer.trespass() is None and buffer.untouched()
    around(out)[GUARD] = 1.0
    assert buffer.trespass() is not None


def test_replaced() -> None:
    buffer = OutputBuffer((3, 8), torch.bfloat16, 0, "cpu")
    out = buffer.poison(0)
    assert not buffer.replaced(out)
    out.data = torch.zeros(3, 8, dtype=torch.bfloat16)
    assert buffer.replaced(out)
    fresh = buffer.poison(1)
    assert buffer.replaced(fresh[:2])


@pytest.mark.parametrize("index", [0, WORKSPACE_GUARD - 1, WORKSPACE_GUARD + 10, -1])
@pytest.mark.parametrize("number", [0, 1])
def test_workspace_guards(index: int, number: int) -> None:
    workspace = Workspace(10, "cpu")
    area = workspace.poison(number)
    assert (area.dtype, area.numel()) == (torch.uint8, 10)
    area.fill_(7)
    assert workspace.trespass() is None
    torch.empty(0, dtype=torch.uint8).set_(area.untyped_storage())[index] = 7
    place = workspace.trespass()
    assert place is not None and place.count == 1
    assert place.where == ("before the workspace" if 0 <= index < WORKSPACE_GUARD else "after the workspace")
