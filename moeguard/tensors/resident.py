"""What stays in memory between scenarios, within a budget of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")

#: Bytes of one store, on any device: several workers may share a GPU and hold two stores each.
CAPACITY = 64 << 20
#: Values of one store: layers are used again soon or never, so that more would only fill the memory for longer.
MOST = 16


class Resident(Generic[Value]):
    """Values by key, least recently used first out beyond ``capacity`` bytes or MOST values; the last one always stays.

    size: bytes of a value.
    """

    def __init__(self, capacity: int, size: Callable[[Value], int]) -> None:
        self._capacity, self._size = capacity, size
        self._held: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._bytes = self._hits = self._misses = 0

    def get(self, key: str, make: Callable[[], Value]) -> Value:
        """The value of ``key``, made when it is not held."""
        if key in self._held:
            self._hits += 1
        else:
            self._misses += 1
            value = make()
            self._held[key] = value, self._size(value)
            self._bytes += self._held[key][1]
        self._held.move_to_end(key)
        while len(self._held) > 1 and (self._bytes > self._capacity or len(self._held) > MOST):
            self._remove(next(iter(self._held)))
        return self._held[key][0]

    def peek(self, key: str) -> Value | None:
        """The value of ``key`` if it is held; counts as no use of it."""
        return self._held[key][0] if key in self._held else None

    def drop(self, prefix: str) -> None:
        """Forget every key that begins with ``prefix``; all of them when it is empty."""
        for key in [key for key in self._held if key.startswith(prefix)]:
            self._remove(key)

    def counters(self) -> dict[str, int]:
        """hits and misses so far, and bytes held now."""
        return {"hits": self._hits, "misses": self._misses, "bytes": self._bytes}

    def _remove(self, key: str) -> None:
        self._bytes -= self._held.pop(key)[1]
