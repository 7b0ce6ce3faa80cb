"""The allowlist: which backend may be tuned for which recipe, where, at which levels, until when, and why."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

from moeguard.core.cell import Cell
from moeguard.core.environment import fingerprint
from moeguard.core.errors import AllowlistError
from moeguard.gate.blocklist import VARIABLE
from moeguard.gate.command import UPDATE
from moeguard.gate.decision import Decision, Failed, decide
from moeguard.gate.entry import ABSENT, Entry
from moeguard.gate.level import check_level
from moeguard.gate.policy import Policy
from moeguard.gate.tables import checked, table_of, text_of

VERSIONS = ("arch", "flashinfer", "cuda", "driver", "torch")


@dataclass(frozen=True, slots=True)
class Allowlist:
    """source: the path. entries: in file order, one for each cell."""

    source: str
    entries: tuple[Entry, ...]

    @classmethod
    def load(cls, path: Path | str) -> Allowlist:
        """Read an allowlist. Raises AllowlistError with one sentence that names the field and what is allowed."""
        return cls.parse(text_of(Path(path), "allowlist"), str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Allowlist:
        """The allowlist of this text. Raises AllowlistError as ``load`` does."""
        rows = table_of(text, source, "cell").get("cell", [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise AllowlistError(f"{source}: cell: allowed: tables [[cell]]")
        entries: dict[Cell, Entry] = {}
        for number, row in enumerate(rows, start=1):
            entry = checked(Entry, row, f"{source}: cell {number}")
            if entry.cell in entries:
                raise AllowlistError(f"{source}: cell {number}: the cell is there twice; allowed: one entry for each cell")
            entries[entry.cell] = entry
        return cls(source, tuple(entries.values()))

    def get(self, cell: Cell) -> Entry | None:
        """The entry of this very cell."""
        return next((entry for entry in self.entries if entry.cell == cell), None)

    def decide(self, backend: str, recipe: str, level: str, environment: dict[str, Any] | None = None, *,
               policy: Policy | None = None, today: date | None = None) -> Decision:
        """Whether ``backend`` may be tuned for ``recipe`` at ``level``; everything that is not known for certain is off.

        environment: a fingerprint as in a manifest; None: of this machine, of its GPU when torch sees one.
        policy: None for the packaged one. today: None for now, UTC. Where tactics are quarantined, this process must have
        the blocklist in ``FLASHINFER_TACTICS_BLOCKLIST``. Raises UnknownNameError for an unknown level.
        """
        check_level(level)
        where = this_machine() if environment is None else environment
        cell = Cell.of(backend, recipe, where)
        entry = self.get(cell)
        if entry is None:
            return decide(cell, level, "ok", (self.absence(cell),), "")
        if entry.evidence.gpu != where.get("gpu"):
            named, here = entry.evidence.gpu or ABSENT, where.get("gpu") or ABSENT
            failed = Failed("gpu", named, here, f"the evidence was made on the GPU {named}, this is {here}", UPDATE)
            return decide(cell, level, entry.backend_use, (failed,), "", (), tuple(entry.quarantined), entry.evidence)
        found = entry.decide(level, policy or Policy.load(), today or datetime.now(timezone.utc).date())
        return entry.enforced(found, os.environ.get(VARIABLE))

    def absence(self, cell: Cell) -> Failed:
        """Why there is no entry for ``cell``: it is unknown, or a version is another one."""
        near = [entry.cell for entry in self.entries if (entry.backend, entry.recipe) == (cell.backend, cell.recipe)]
        if not near:
            return Failed("listed", "an entry", "none", f"{cell.backend} with {cell.recipe} is not in the allowlist",
                          UPDATE)
        changed = min(([name for name in VERSIONS if getattr(one, name) != getattr(cell, name)] for one in near), key=len)
        closest = next(one for one in near if all((getattr(one, name) != getattr(cell, name)) == (name in changed)
                                                  for name in VERSIONS))
        said, here = ("; ".join(f"{name} {getattr(one, name) or ABSENT}" for name in changed) for one in (closest, cell))
        return Failed("versions", said, here, f"the entry is for {said}, this is {here}", UPDATE)


def this_machine() -> dict[str, Any]:
    """The environment of this machine, of its GPU when torch sees one."""
    import torch

    return fingerprint("cuda" if torch.cuda.is_available() else "cpu")
