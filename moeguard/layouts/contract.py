"""Does a preparation keep to a layout? An index-encoded tensor goes in, and what comes out says where every element went.

Index i is written as i + 1 in base 256 (base 2 for bits), one digit a pass; the digits of all passes, put together again, name
the element that lies at a place. It works for any function that moves bytes or bits without reading them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from moeguard.layouts.layout import Layout

#: From uint8 of the shape of a weight or scale tensor to the prepared tensor, of any dtype and shape.
Preparation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Moved:
    """The first element that is not where the layout puts it.

    element: its indices. place: where it belongs. holds: the indices of what lies there, None for nothing known. found: where it
    is instead, None when it is nowhere. elements, moved: how many there are, and how many are out of place. missing: how many are
    nowhere in the result.
    """

    layout: str
    element: tuple[int, ...]
    place: int
    holds: tuple[int, ...] | None
    found: int | None
    elements: int
    moved: int
    missing: int

    @property
    def sentence(self) -> str:
        """The finding in words."""
        there = "nothing that was put in" if self.holds is None else f"element {_named(self.holds)}"
        gone = "it is nowhere" if self.found is None else f"it is at {self.found}"
        lost = f", {self.missing} are nowhere in the result" if self.missing else ""
        return (f"layout {self.layout!r}: the first element that moved is {_named(self.element)}, whose place is {self.place}: "
                f"{there} lies there, and {gone}; {self.moved} of {self.elements} elements moved{lost}")

    def numbers(self) -> dict[str, object]:
        """JSON data for a finding."""
        return {"layout": self.layout, "element": list(self.element), "place": self.place,
                "holds": None if self.holds is None else list(self.holds), "found": self.found, "elements": self.elements,
                "moved": self.moved, "missing": self.missing}


@dataclass(frozen=True, slots=True)
class Probe:
    """A preparation with the layout that it must keep to. shape: of the uint8 tensor that goes in."""

    layout: Layout
    prepare: Preparation
    shape: tuple[int, ...]

    def examine(self, device: torch.device | str = "cpu") -> Moved | None:
        """None when every element is where it belongs."""
        return examine(self.layout, self.prepare, self.shape, device)


def examine(layout: Layout, prepare: Preparation, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Moved | None:
    """Compare ``prepare`` with ``layout`` on uint8 of ``shape``. Places that the layout leaves as padding may hold anything.

    Raises ValueError when the result has another size than the layout says, and what ``prepare`` raises.
    """
    count, expected = prod(layout.axes(shape)), layout.places(shape)
    origins = inverse(layout, prepare, shape, device)
    there = origins[expected]
    wrong = (there != torch.arange(count)).nonzero()[:, 0]
    if not len(wrong):
        return None
    first = int(wrong[0])
    found = (origins == first).nonzero()[:, 0]
    held = int(there[first])
    known = torch.zeros(count, dtype=torch.bool)
    known[origins[(origins >= 0) & (origins < count)]] = True

    def indices(element: int) -> tuple[int, ...]:
        return tuple(int(index) for index in torch.unravel_index(torch.tensor(element), layout.axes(shape)))

    return Moved(layout.name, indices(first), int(expected[first]), indices(held) if 0 <= held < count else None,
                 int(found[0]) if len(found) else None, count, len(wrong), int((~known).sum()))


def inverse(layout: Layout, prepare: Preparation, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
    """int64 [places]: the index of the element that ``prepare`` puts at each place; -1 and other numbers for padding."""
    count, base = prod(layout.axes(shape)), 2 if layout.bitwise else 256
    index, origins, digit = torch.arange(1, count + 1), None, 1
    while digit <= count:
        value = index // digit % base
        out = prepare((_packed(value) if layout.bitwise else value.to(torch.uint8)).view(shape).to(device))
        raw = out.detach().cpu().contiguous().flatten().view(torch.uint8).to(torch.int64)
        read = ((raw[:, None] >> torch.arange(8)) & 1).flatten() if layout.bitwise else raw
        if read.numel() != layout.size(shape):
            unit = "bits" if layout.bitwise else "bytes"
            raise ValueError(f"layout {layout.name!r}: the result has {read.numel()} {unit}, not {layout.size(shape)}")
        origins = read * digit if origins is None else origins + read * digit
        digit *= base
    assert origins is not None
    return origins - 1


def _packed(bits: Tensor) -> Tensor:
    return (bits.view(-1, 8) << torch.arange(8)).sum(1).to(torch.uint8)


def _named(indices: tuple[int, ...]) -> str:
    return "(" + ", ".join(map(str, indices)) + ")"
