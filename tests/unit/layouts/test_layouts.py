"""Layouts and their contract: every index once, a planted change with the first element that moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from moeguard.backends.flashinfer_cutlass import interleaving
from moeguard.layouts import hopper, rows, scales
from moeguard.layouts.contract import Moved, examine
from moeguard.layouts.layout import Layout

#: Each layout with the shape of a tensor that has more than one tile each way, padded where the layout pads.
SHAPES = [
    (rows.GATED_ROWS, (2, 64, 8)), (rows.SHUFFLED_128, (2, 128, 8)), (rows.SHUFFLED_64, (2, 64, 8)),
    (rows.GATED_SHUFFLED_128, (2, 256, 8)), (rows.INTERLEAVED_64, (2, 256, 8)), (rows.BLOCK_MAJOR, (2, 16, 384)),
    (scales.SWIZZLED_128X4, (2, 200, 6)), (scales.SWIZZLED_8X4, (2, 20, 6)), (scales.MMA_128X4, (2, 200, 6)),
    (scales.SM90_MXFP4, (2, 128, 8)), (scales.SM90_MXFP4_EARLY, (2, 128, 8)),
    (scales.SM90_INT4, (2, 128, 4)), (hopper.MXFP4_NIBBLES, (2, 32, 64)),
    (hopper.MXFP4_BITS, (2, 32, 64)), (hopper.INT4, (2, 32, 64))]
EVERY = pytest.mark.parametrize(("layout", "shape"), SHAPES, ids=[layout.name for layout, _ in SHAPES])


@EVERY
def test_no_two_elements_share_a_place(layout: Layout, shape: tuple[int, ...]) -> None:
    places = layout.places(shape)
    assert len(places.unique()) == len(places)
    assert int(places.min()) >= 0 and int(places.max()) < layout.size(shape)


@EVERY
def test_what_a_layout_places_is_where_it_says(layout: Layout, shape: tuple[int, ...]) -> None:
    assert examine(layout, layout.place, shape) is None


@EVERY
def test_one_swapped_pair_is_found_with_the_first_element_that_moved(layout: Layout, shape: tuple[int, ...]) -> None:
    places = layout.places(shape)
    one, two = 5, len(places) - 1

    def swapped(data: Tensor) -> Tensor:
        shifts = torch.arange(8)
        laid = layout.place(data)
        units = ((laid[:, None] >> shifts) & 1).flatten() if layout.bitwise else laid.clone()
        units[places[[one, two]]] = units[places[[two, one]]]
        return (units.view(-1, 8) << shifts).sum(1).to(torch.uint8) if layout.bitwise else units

    moved = examine(layout, swapped, shape)
    assert moved is not None
    index = [tuple(int(part) for part in torch.unravel_index(torch.tensor(which), layout.axes(shape))) for which in (one, two)]
    assert (moved.element, moved.holds) == (index[0], index[1])
    assert (moved.place, moved.found) == (int(places[one]), int(places[two]))
    assert (moved.moved, moved.missing, moved.elements) == (2, 0, len(places))


def test_the_sentence_names_the_first_element() -> None:
    moved = examine(rows.SHUFFLED_128, lambda data: data[:, torch.arange(32).flip(0)], (1, 32, 4))
    assert isinstance(moved, Moved)
    assert moved.sentence == (
        "layout 'rows shuffled for an epilogue tile of 128': the first element that moved is (0, 0, 0), whose place is 0: "
        "element (0, 31, 0) lies there, and it is at 124; 128 of 128 elements moved")
    assert moved.numbers()["element"] == [0, 0, 0]


def test_an_element_that_is_lost() -> None:
    def lost(data: Tensor) -> Tensor:
        laid = scales.SWIZZLED_8X4.place(data)
        laid[0] = 0
        return laid

    moved = examine(scales.SWIZZLED_8X4, lost, (1, 8, 4))
    assert moved is not None and moved.sentence.endswith(
        "nothing that was put in lies there, and it is nowhere; 1 of 32 elements moved, 1 are nowhere in the result")


def test_padding_may_hold_anything() -> None:
    def noisy(data: Tensor) -> Tensor:
        laid = scales.SWIZZLED_128X4.place(data)
        laid[scales.SWIZZLED_128X4.place(torch.ones_like(data)) == 0] = 7
        return laid

    assert examine(scales.SWIZZLED_128X4, noisy, (1, 130, 3)) is None


def test_a_result_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="the result has 30 bytes, not 32"):
        examine(scales.SWIZZLED_8X4, lambda data: data.flatten()[:30], (1, 8, 4))


@pytest.mark.parametrize(("layout", "prepare", "shape"), [
    (hopper.MXFP4_BITS, interleaving.mxfp4_weights, (2, 32, 64)),
    (hopper.INT4, interleaving.int4_weights, (2, 32, 64)),
    (scales.SM90_MXFP4, lambda data: interleaving.scales(data, 32), (2, 128, 8)),
    (scales.SM90_INT4, lambda data: interleaving.scales(data.view(torch.bfloat16), 128), (2, 128, 4)),
], ids=["mxfp4", "int4", "mxfp4 scales", "int4 scales"])
def test_the_adapter_s_own_interleaving_keeps_to_the_layout(layout: Layout, prepare: Callable[[Tensor], Tensor],
                                                            shape: tuple[int, ...]) -> None:
    assert examine(layout, prepare, shape) is None


def test_mxfp4_of_0_6_14_is_not_that_of_0_6_18() -> None:
    moved = examine(hopper.MXFP4_BITS, hopper.MXFP4_NIBBLES.place, (1, 16, 32))
    assert moved is not None and moved.element == (0, 0, 0, 0) and moved.moved == moved.elements
    moved = examine(scales.SM90_MXFP4, interleaving.early_scales, (2, 128, 8))
    assert moved is not None and (moved.element, moved.place, moved.holds, moved.found) == ((0, 0, 4), 256, (0, 64, 0), 512)
    assert examine(scales.SM90_MXFP4_EARLY, interleaving.early_scales, (2, 128, 8)) is None
