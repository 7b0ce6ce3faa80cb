"""The allowlist: which backend may be tuned for which recipe, where, at which levels, until when, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from moeguard.core.cell import Cell
from moeguard.core.environment import fingerprint
from moeguard.core.errors import AllowlistError
from moeguard.gate.decision import Decision, Failed, Level, check_level, decide
from moeguard.gate.policy import Policy
from moeguard.gate.requirement import WAIVABLE, failures
from moeguard.gate.summary import Summary
from moeguard.gate.tables import checked, table_of, text_of

Name = Annotated[str, Field(min_length=1)]
#: What stands for a package, driver or CUDA version that is not there.
ABSENT = "none"
VERSIONS = ("arch", "flashinfer", "cuda", "driver", "torch")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Waiver(_Value):
    """Somebody answers for a requirement that is not met, until ``expires``, that day included. reference: where to read why."""

    requirement: str
    owner: Name
    reason: Name
    reference: Name
    expires: date

    @field_validator("requirement")
    @classmethod
    def _waivable(cls, name: str) -> str:
        if name not in WAIVABLE:
            raise ValueError(f"{name!r}; allowed: {', '.join(WAIVABLE)}")
        return name


class Entry(_Value):
    """One ``[[cell]]``. Versions that are absent are written as ``none``. expires: the last day on which it counts.

    backend_use: ``avoid`` when the untuned default is wrong too. levels: where autotuning is on.
    """

    backend: Name
    recipe: Name
    arch: Name
    flashinfer: Name | None
    cuda: Name | None
    driver: Name | None
    torch: Name | None
    autotune: Literal["on", "off"]
    backend_use: Literal["ok", "avoid"]
    levels: list[Level]
    expires: date
    reason: Name
    evidence: Summary
    waiver: list[Waiver] = []

    @field_validator("flashinfer", "cuda", "driver", "torch", mode="before")
    @classmethod
    def _absent(cls, value: Any) -> Any:
        return None if value == ABSENT else value

    @model_validator(mode="after")
    def _consistent(self) -> Entry:
        if "O0" in self.levels:
            raise ValueError("levels: O0 is never tuned; allowed: O1, O2, O3")
        if len(set(self.levels)) != len(self.levels):
            raise ValueError("levels: named twice; allowed: each level once")
        if (self.autotune == "on") != bool(self.levels):
            raise ValueError(f"levels: {self.levels}; allowed: at least one with autotune \"on\", none with \"off\"")
        if self.autotune == "on" and self.backend_use == "avoid":
            raise ValueError('autotune: "on" for a backend to avoid; allowed: "off"')
        return self

    @property
    def cell(self) -> Cell:
        """What it is about."""
        return Cell(self.backend, self.recipe, self.arch, self.flashinfer, self.cuda, self.driver, self.torch)

    def decide(self, level: str, policy: Policy, today: date, *, summary: Summary | None = None,
               proposed: bool = False) -> Decision:
        """The decision for ``level`` from the recorded evidence, or from ``summary``.

        proposed: judge as if the entry had autotuning on at ``level``.
        """
        failed, waived = [], []
        if self.expires < today:
            failed.append(Failed("expires", f"not before {today}", str(self.expires), f"the entry expired on {self.expires}",
                                 "moeguard allow update"))
        if self.backend_use == "avoid":
            failed.append(Failed("backend_use", "ok", "avoid", f"the backend is to be avoided: {self.reason}"))
        if not proposed and self.autotune == "off":
            failed.append(Failed("autotune", "on", "off", f"the allowlist says off: {self.reason}"))
        elif not proposed and level not in self.levels:
            levels = ", ".join(self.levels)
            failed.append(Failed("level", level, levels, f"{level} is not among its levels {levels}"))
        evidence = self.evidence if summary is None else summary
        for one in failures(self.cell, evidence, level, policy):
            if any(waiver.requirement == one.name and waiver.expires >= today for waiver in self.waiver):
                waived.append(one.name)
            elif one.name not in {other.name for other in failed}:
                failed.append(one)
        if level == "O3":
            failed += _inconsistent(self, [*self.levels, level] if proposed else self.levels, evidence, policy)
        return decide(self.cell, level, self.backend_use, tuple(failed), self.reason, tuple(waived))


def _inconsistent(entry: Entry, levels: Iterable[str], evidence: Summary, policy: Policy) -> Iterable[Failed]:
    """O3 does what O2 does: it may not be on while the same open finding keeps O2 off."""
    if "O3" in levels and "O2" not in levels:
        for one in failures(entry.cell, evidence, "O2", policy):
            if one.name == "open_findings":
                yield Failed("consistent_levels", "O2 as well", "O3 alone",
                             f"inconsistent: O3 is on while O2 is off for the same {one.sentence}")


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
        policy: None for the packaged one. today: None for now, UTC. Raises UnknownNameError for an unknown level.
        """
        check_level(level)
        cell = Cell.of(backend, recipe, _here() if environment is None else environment)
        entry = self.get(cell)
        if entry is None:
            return decide(cell, level, "ok", (self.absence(cell),), "")
        return entry.decide(level, policy or Policy.load(), today or datetime.now(timezone.utc).date())

    def absence(self, cell: Cell) -> Failed:
        """Why there is no entry for ``cell``: it is unknown, or a version is another one."""
        near = [entry.cell for entry in self.entries if (entry.backend, entry.recipe) == (cell.backend, cell.recipe)]
        if not near:
            return Failed("listed", "an entry", "none", f"{cell.backend} with {cell.recipe} is not in the allowlist",
                          "moeguard allow update")
        changed = min(([name for name in VERSIONS if getattr(one, name) != getattr(cell, name)] for one in near), key=len)
        closest = next(one for one in near if all((getattr(one, name) != getattr(cell, name)) == (name in changed)
                                                  for name in VERSIONS))
        said, here = ("; ".join(f"{name} {getattr(one, name) or ABSENT}" for name in changed) for one in (closest, cell))
        return Failed("versions", said, here, f"the entry is for {said}, this is {here}", "moeguard allow update")


def _here() -> dict[str, Any]:
    import torch

    return fingerprint("cuda" if torch.cuda.is_available() else "cpu")
