"""Evidence of several runs, put together by cell; environments are never mixed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moeguard.core.cell import Cell
from moeguard.gate.evidence import RunEvidence
from moeguard.gate.snapshot import Stale
from moeguard.gate.summary import RunId, Summary
from moeguard.gate.tally import Tally


@dataclass(frozen=True, slots=True)
class Pool:
    """runs: those that were read, each once. stale: those that are no evidence. summaries: by cell, of all its runs."""

    runs: tuple[RunEvidence, ...]
    stale: tuple[Stale, ...]
    summaries: dict[Cell, Summary]

    @classmethod
    def of(cls, evidence: Iterable[RunEvidence | Stale]) -> Pool:
        """Put together what was read. Two runs of one id and other bytes: the second is stale."""
        runs: dict[str, RunEvidence] = {}
        stale: list[Stale] = []
        for one in evidence:
            if isinstance(one, Stale):
                stale.append(one)
            elif one.run_id in runs and runs[one.run_id].sha256 != one.sha256:
                stale.append(Stale(one.path, f"run {one.run_id} is given twice with other bytes"))
            else:
                runs.setdefault(one.run_id, one)
        cells: dict[Cell, tuple[list[RunId], Tally]] = {}
        for run in runs.values():
            for cell, tally in run.cells.items():
                ids, total = cells.setdefault(cell, ([], Tally()))
                ids.append(RunId(run_id=run.run_id, sha256=run.sha256))
                total.add(tally)
        return cls(tuple(runs.values()), tuple(stale), {cell: Summary.of(ids, tally) for cell, (ids, tally) in cells.items()})
