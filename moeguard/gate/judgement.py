"""The gate's judgement: an allowlist against the evidence that it claims, for one level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal

from moeguard.core.cell import Cell
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.command import UPDATE
from moeguard.gate.decision import Decision, Failed, decide
from moeguard.gate.entry import Entry
from moeguard.gate.level import check_level
from moeguard.gate.policy import Policy
from moeguard.gate.pool import Pool
from moeguard.gate.quarantine import offer
from moeguard.gate.snapshot import Stale
from moeguard.gate.summary import Summary

Flip = Literal["on", "off"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """decisions: one for each cell. stale: evidence that does not count; any makes the judgement inconclusive. flip: the change
    that is judged, None when none is."""

    level: str
    decisions: tuple[Decision, ...]
    stale: tuple[Stale, ...]
    flip: Flip | None = None

    @property
    def allowed(self) -> bool:
        """Whether something was judged, all evidence counts, and no cell has a requirement that is not met."""
        return bool(self.decisions) and not self.stale and not any(one.failed for one in self.decisions)

    @property
    def exit_code(self) -> int:
        """0 allowed, 1 no on valid evidence, 3 evidence empty, stale or tampered."""
        return 3 if self.stale or not self.decisions else 0 if self.allowed else 1

    @property
    def sentence(self) -> str:
        """The judgement in one plain sentence."""
        if self.stale:
            return "Inconclusive: evidence is stale or tampered, so nothing is allowed."
        if not self.decisions:
            return "Inconclusive: the evidence is empty, so nothing is allowed."
        off = sum(bool(one.failed) for one in self.decisions)
        return "Allowed." if not off else f"Not allowed: {off} of {len(self.decisions)} cells do not meet the requirements."

    def to_data(self) -> dict[str, Any]:
        """The JSON object of ``moeguard gate --json``."""
        return {"allowed": self.allowed, "level": self.level, "flip": self.flip, "sentence": self.sentence,
                "cells": [one.to_data() for one in self.decisions],
                "stale": [{"path": one.path, "reason": one.reason} for one in self.stale]}


def judge(allowlist: Allowlist, pool: Pool, level: str, policy: Policy, today: date, *, flip: Flip | None = None,
          wanted: Callable[[Cell], bool] = lambda cell: True) -> Judgement:
    """Judge the cells of the evidence, and the entries that are on at ``level`` without any.

    The allowlist must have recorded every run by its sha256, and exactly those runs and counts for each cell. flip: judge
    as if a change turned autotuning on or off in all cells. wanted: leave out other cells. Raises UnknownNameError for an
    unknown level.
    """
    check_level(level)
    stale = [*pool.stale]
    recorded = {run.sha256 for entry in allowlist.entries for run in entry.evidence.runs}
    stale += [Stale(run.path, f"the sha256 of run {run.run_id} is not in {allowlist.source}; record it with {UPDATE}")
              for run in pool.runs if run.sha256 not in recorded]
    stale += [Stale(run.path, f"the clock says {today}, but the run was started on {run.started}")
              for run in pool.runs if run.started > today]
    stale += [Stale(check.run_id, f"the clock says {today}, but the spot check was started on {check.started}")
              for gathered in pool.cells.values() for check in gathered.evals if check.started > today]
    decisions = []
    for cell, gathered in pool.cells.items():
        if not wanted(cell):
            continue
        entry = allowlist.get(cell)
        if entry is None:
            decisions.append(decide(cell, level, "ok", (allowlist.absence(cell),), "", evidence=gathered.summary()))
            continue
        summary = gathered.summary(entry.quarantined)
        broken = _mismatch(entry, summary)
        if broken:
            stale.append(Stale(allowlist.source, f"{cell.backend} with {cell.recipe}: {broken}"))
            decisions.append(_unproved(entry, level, broken))
        else:
            decisions.append(_decision(entry, level, policy, today, summary, flip))
    for entry in allowlist.entries:
        if entry.cell not in pool.cells and wanted(entry.cell) and level in entry.levels:
            reason = "it is on, and none of its runs is among the evidence"
            stale.append(Stale(allowlist.source, f"{entry.backend} with {entry.recipe}: {reason}"))
            decisions.append(_unproved(entry, level, reason))
    folders = {cell: [run.path for run in pool.runs if cell in run.cells] for cell in pool.cells}
    offered = (replace(one, offer=offer(one.cell, one.evidence, allowlist.source, folders.get(one.cell, ())))
               if one.evidence is not None and one.failed else one for one in decisions)
    return Judgement(level, tuple(offered), tuple(stale), flip)


def _decision(entry: Entry, level: str, policy: Policy, today: date, summary: Summary, flip: Flip | None) -> Decision:
    now = entry.decide(level, policy, today, summary=summary)
    if flip is None:
        return now
    if flip == "on":
        return replace(entry.decide(level, policy, today, summary=summary, proposed=True), before=now.outcome)
    avoid = (Failed("backend_use", "ok", "avoid", f"the backend is to be avoided: {entry.reason}"),)
    failed = avoid if entry.backend_use == "avoid" else ()
    return Decision(entry.cell, level, "off", entry.backend_use, failed, entry.reason, evidence=summary, before=now.outcome)


def _mismatch(entry: Entry, summary: Summary) -> str | None:
    """Why the evidence is not what the entry has recorded."""
    said, here = ({(run.run_id, run.sha256) for run in one.runs} for one in (entry.evidence, summary))
    if said - here:
        return f"run {min(said - here)[0]} is recorded and not among the evidence, or not with these bytes"
    if here - said:
        return f"run {min(here - said)[0]} is not recorded for it; record it with {UPDATE}"
    recorded, counted = entry.evidence.to_data(), summary.to_data()
    names = {*recorded, *counted} - {"bound"}  # which follows from the others, but for its last digit
    other = sorted(name for name in names if recorded.get(name) != counted.get(name))
    return f"its evidence.{other[0]} is not what the runs show" if other else None


def _unproved(entry: Entry, level: str, reason: str) -> Decision:
    return decide(entry.cell, level, entry.backend_use,
                  (Failed("evidence", "the recorded runs", "stale or tampered", reason, UPDATE),), "")
