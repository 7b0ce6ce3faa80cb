"""Buffers that a backend may write, with guard bands on both sides and in the gaps between rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moeguard.memory import poison

#: Elements of guard band before and after an output.
GUARD = 128
#: Bytes of guard band before and after a workspace.
WORKSPACE_GUARD = 512


@dataclass(frozen=True, slots=True)
class Trespass:
    """A write outside the buffer: offset in elements from its first (negative) or beyond its last element, or in a row gap."""

    count: int
    where: str
    offset: int

    @property
    def sentence(self) -> str:
        """One clause."""
        return f"{self.count} guard elements {self.where} were written, the first at offset {self.offset}"


class OutputBuffer:
    """An output of any shape whose last axis has stride 1, as a view inside poisoned storage.

    shape: of ``out``. row_padding: elements of gap after each row. The storage is one block of 16-bit words.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, row_padding: int, device: torch.device | str) -> None:
        self.dtype = dtype
        self._columns = shape[-1]
        self._stride = shape[-1] + row_padding
        self._rows = 1
        for size in shape[:-1]:
            self._rows *= size
        self._words = torch.zeros(2 * GUARD + self._rows * self._stride, dtype=torch.int16, device=device)
        strides = [1]
        for size in reversed(shape[1:-1]):
            strides.append(strides[-1] * size)
        row_strides = [self._stride * step for step in reversed(strides[: len(shape) - 1])]
        self._geometry = (shape, (*row_strides, 1), GUARD)
        self.pattern: int | Tensor = 0

    @property
    def words(self) -> Tensor:
        """The whole storage, int16 [guard + rows * stride + guard]."""
        return self._words

    @property
    def stride(self) -> int:
        """Elements from one row to the next."""
        return self._stride

    def poison(self, number: int) -> Tensor:
        """Fill everything with the pattern of execution ``number`` and return a fresh view for the backend."""
        self.pattern = poison.word(self.dtype, number)
        self._words.fill_(self.pattern)
        return self.view()

    def poison_with(self, pattern: Tensor) -> Tensor:
        """The same with a pattern of poison.word that lies on the device, int16 [1]; the device is not waited for."""
        self.pattern = pattern
        self._words.copy_(pattern.expand_as(self._words))
        return self.view()

    def view(self) -> Tensor:
        """The output."""
        return self._words.view(self.dtype).as_strided(*self._geometry)

    def replaced(self, out: Tensor) -> bool:
        """Whether ``out`` no longer is the view that was handed out."""
        mine = self.view()
        return (out.data_ptr(), out.shape, out.stride(), out.dtype) != (mine.data_ptr(), mine.shape, mine.stride(), mine.dtype)

    def unwritten(self) -> Tensor:
        """Bool [rows, columns]: elements that still hold the pattern."""
        return self._interior()[:, : self._columns] == self.pattern

    def untouched(self) -> bool:
        """Whether not a single word was changed."""
        return bool((self._words == self.pattern).all())

    def trespass(self) -> Trespass | None:
        """The first write into a guard band, if any."""
        end = GUARD + self._rows * self._stride
        for where, band, base in (("before the output", self._words[:GUARD], -GUARD),
                                  ("after the output", self._words[end:], self._rows * self._stride)):
            hit = (band != self.pattern).nonzero()
            if hit.numel():
                return Trespass(int(hit.shape[0]), where, base + int(hit[0, 0]))
        if self._stride > self._columns:
            hit = (self._interior()[:, self._columns:] != self.pattern).nonzero()
            if hit.numel():
                return Trespass(int(hit.shape[0]), "between rows", int(hit[0, 0]) * self._stride + self._columns + int(hit[0, 1]))
        return None

    def strayed(self) -> Tensor:
        """Number of guard elements that were written, 0-d int64 on the device, which is not waited for."""
        return (self._words != self.pattern).sum() - (self._interior()[:, : self._columns] != self.pattern).sum()

    def _interior(self) -> Tensor:
        return self._words[GUARD: GUARD + self._rows * self._stride].view(self._rows, self._stride)


class Workspace:
    """A caller-owned workspace of ``size`` bytes between guard bands, poisoned before each execution."""

    def __init__(self, size: int, device: torch.device | str) -> None:
        self._bytes = torch.zeros(2 * WORKSPACE_GUARD + size, dtype=torch.uint8, device=device)
        self._size = size
        self._pattern: int | Tensor = 0

    @property
    def words(self) -> Tensor:
        """The whole storage, uint8 [guard + size + guard]."""
        return self._bytes

    def poison(self, number: int) -> Tensor:
        """Fill and return the inner view, uint8 [size]."""
        self._pattern = poison.byte(number)
        self._bytes.fill_(self._pattern)
        return self._bytes[WORKSPACE_GUARD: WORKSPACE_GUARD + self._size]

    def poison_with(self, pattern: Tensor) -> Tensor:
        """The same with a byte of poison.byte that lies on the device, uint8 [1]; the device is not waited for."""
        self._pattern = pattern
        self._bytes.copy_(pattern.expand_as(self._bytes))
        return self._bytes[WORKSPACE_GUARD: WORKSPACE_GUARD + self._size]

    def strayed(self) -> Tensor:
        """Number of guard bytes that were written, 0-d int64 on the device, which is not waited for."""
        bands = self._bytes[:WORKSPACE_GUARD], self._bytes[WORKSPACE_GUARD + self._size:]
        return (bands[0] != self._pattern).sum() + (bands[1] != self._pattern).sum()

    def trespass(self) -> Trespass | None:
        """The first write into a guard band, if any."""
        for where, band, base in (("before the workspace", self._bytes[:WORKSPACE_GUARD], -WORKSPACE_GUARD),
                                  ("after the workspace", self._bytes[WORKSPACE_GUARD + self._size:], self._size)):
            hit = (band != self._pattern).nonzero()
            if hit.numel():
                return Trespass(int(hit.shape[0]), where, base + int(hit[0, 0]))
        return None
