"""A cell: the unit of evidence and, later, of the decision; backend x recipe x environment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """What was executed for one backend and recipe on one architecture with one set of versions."""

    backend: str
    recipe: str
    arch: str
    flashinfer: str | None
    cuda: str | None
    driver: str | None
    torch: str | None

    @classmethod
    def of(cls, backend: str, recipe: str, environment: dict[str, Any]) -> Cell:
        """The cell of ``backend`` and ``recipe`` in an environment fingerprint."""
        packages = environment.get("packages", {})
        return cls(backend, recipe, environment.get("arch", "cpu"), packages.get("flashinfer-python"),
                   environment.get("cuda"), environment.get("driver"), packages.get("torch"))

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self)
