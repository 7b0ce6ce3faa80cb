"""Evidence of several runs, put together by cell; environments are never mixed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from moeguard.core.cell import Cell
from moeguard.gate.evidence import RunEvidence
from moeguard.gate.snapshot import Stale
from moeguard.gate.spot_check import SpotCheck, Supporting
from moeguard.gate.summary import RunId, Summary
from moeguard.gate.tally import Tally


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything about one cell. gpu: on which all of it was made. tally: its counts, of all tactics. evals: spot checks."""

    gpu: str | None
    runs: list[RunId] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    evals: list[SpotCheck] = field(default_factory=list)

    def summary(self, quarantined: Collection[str] = ()) -> Summary:
        """The summary over all tactics but the ``quarantined`` ones."""
        tally = self.tally.without(quarantined) if quarantined else self.tally
        return Summary.of(self.runs, tally, self.gpu, self.evals)


@dataclass(frozen=True, slots=True)
class Pool:
    """runs: those that were read, each once. stale: those that are no evidence. cells: what all runs show of each cell."""

    runs: tuple[RunEvidence, ...]
    stale: tuple[Stale, ...]
    cells: dict[Cell, Gathered]

    @classmethod
    def of(cls, evidence: Iterable[RunEvidence | Supporting | Stale]) -> Pool:
        """Put together what was read. A run of an id that is there with other bytes is stale, and so is one that was made on
        another GPU than an earlier one of the same cell. A spot check joins the runs of its cell; without any it is stale."""
        runs: dict[str, RunEvidence] = {}
        stale: list[Stale] = []
        cells: dict[Cell, Gathered] = {}
        supporting: list[Supporting] = []
        for one in evidence:
            if isinstance(one, Stale):
                stale.append(one)
            elif isinstance(one, Supporting):
                supporting.append(one)
            elif one.run_id in runs:
                if runs[one.run_id].sha256 != one.sha256:
                    stale.append(Stale(one.path, f"run {one.run_id} is given twice with other bytes"))
            elif foreign := [held.gpu for cell in one.cells if (held := cells.get(cell)) is not None and held.gpu != one.gpu]:
                stale.append(Stale(one.path, f"it was made on {one.gpu}, other evidence of the same cell on {foreign[0]}"))
            else:
                runs[one.run_id] = one
                for cell, tally in one.cells.items():
                    held = cells.setdefault(cell, Gathered(one.gpu))
                    held.runs.append(RunId(run_id=one.run_id, started=one.started, sha256=one.sha256))
                    held.tally.add(tally)
        for check in supporting:
            reason = _join(check, cells.get(check.cell))
            if reason is not None:
                stale.append(Stale(check.path, reason))
        return cls(tuple(runs.values()), tuple(stale), cells)


def _join(one: Supporting, held: Gathered | None) -> str | None:
    """Add a spot check to its cell; why it cannot be, None when it was."""
    if held is None:
        return f"a spot check of {one.cell.backend} with {one.cell.recipe}, a cell that no run among the evidence has executed"
    if held.gpu != one.gpu:
        return f"it was made on {one.gpu}, the runs of the same cell on {held.gpu}"
    same = [check for check in held.evals if check.run_id == one.check.run_id]
    if not same:
        held.evals.append(one.check)
    return f"spot check {one.check.run_id} is given twice with other bytes" if same and same[0] != one.check else None
