"""One cell of the matrix: an adapter with a recipe beside one release."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """holds: whether every call of the adapter binds. reason: why not, by name and version.

    cases: activations and variants that were tried. calls: functions that calls were bound to. helpers: those of them that ran.
    """

    adapter: str
    recipe: str
    holds: bool
    reason: str | None = None
    cases: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
