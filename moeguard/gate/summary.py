"""The summary of a cell's evidence, as the allowlist records it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moeguard.core.tokens import token_bucket
from moeguard.gate.confidence import upper_bound
from moeguard.gate.tally import Defect, Tally

Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RunId(_Value):
    """A run and the sha256 over its manifest, journal and cases (moeguard.gate.snapshot)."""

    run_id: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Problem(_Value):
    """A finding: its fingerprint, kind and tactic (``default`` for the untuned call)."""

    fingerprint: Name
    kind: Name
    tactic: Name


class SpeedUp(_Value):
    """Time of the default over that of the fastest right tactic: median, smallest and largest over the swept layers and T."""

    median: Annotated[float, Field(gt=0)]
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]


class Summary(_Value):
    """What all runs of a cell have shown.

    runs: the run directories. executions: calls with a verdict. cases: distinct cases that were drawn or failed, those with
    known findings alone left out. failures: of these cases, those with an open finding. known_failures: cases with known
    findings alone, or not launched because of a known crash.
    bound: 95 % Clopper-Pearson upper bound on the failure rate over ``cases``, 1.0 without any. tactics: judged executions
    by tactic. tactics_covered: those that gave a right answer. tactics_known: whether the runs show every tactic that is
    offered. token_buckets: powers of two at or below the numbers of tokens, 0 for none. boundary_tokens: numbers of
    tokens at or beside a power of two. repeats: judged executions of the tactic that has fewest. speed_up: None when no
    sweep was timed.
    """

    runs: Annotated[list[RunId], Field(min_length=1)]
    executions: Count
    cases: Count
    failures: Count
    known_failures: Count
    bound: Annotated[float, Field(ge=0, le=1)]
    tactics: dict[str, Count]
    tactics_covered: list[str]
    tactics_known: bool
    token_buckets: list[Count]
    boundary_tokens: list[Count]
    repeats: Count
    open_findings: list[Problem]
    known_findings: list[Problem]
    speed_up: SpeedUp | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Summary:
        if self.failures > self.cases:
            raise ValueError(f"failures: {self.failures}; allowed: at most cases, {self.cases}")
        bound = round(upper_bound(self.failures, self.cases), 6) if self.cases else 1.0
        if abs(self.bound - bound) > 1e-6:
            raise ValueError(f"bound: {self.bound}; allowed: {bound}, which follows from failures and cases")
        return self

    @classmethod
    def of(cls, runs: Iterable[RunId], tally: Tally) -> Summary:
        """The summary of the runs whose counts ``tally`` holds; rounded, so that it can be compared after a round trip."""
        clean = tally.clean - tally.failed - tally.excused
        excused = tally.excused - tally.failed
        cases = len(clean) + len(tally.failed)
        gain = tally.gain
        return cls(
            runs=sorted(runs, key=lambda run: (run.run_id, run.sha256)),
            executions=tally.executions, cases=cases, failures=len(tally.failed), known_failures=len(excused),
            bound=round(upper_bound(len(tally.failed), cases), 6) if cases else 1.0,
            tactics=dict(sorted(tally.tactics.items())), tactics_covered=sorted(tally.right),
            tactics_known=tally.swept or (tally.offers_known and not tally.offers_cut),
            token_buckets=sorted({token_bucket(tokens) for tokens in tally.tokens}),
            boundary_tokens=sorted(tokens for tokens in tally.tokens if at_boundary(tokens)),
            repeats=min(tally.tactics.values(), default=0),
            open_findings=_problems(one for one in tally.defects if one.entry is None),
            known_findings=_problems(one for one in tally.defects if one.entry is not None),
            speed_up=gain and SpeedUp(median=round(gain[0], 4), low=round(gain[1], 4), high=round(gain[2], 4)),
        )

    def to_data(self) -> dict[str, Any]:
        """JSON data, without ``speed_up`` where there is none."""
        return self.model_dump(mode="json", exclude_none=True)


def at_boundary(tokens: int) -> bool:
    """Whether ``tokens`` is a power of two, or one below or above."""
    return any(value >= 0 and value & (value - 1) == 0 for value in (tokens - 1, tokens, tokens + 1))


def _problems(defects: Iterable[Defect]) -> list[Problem]:
    return [Problem(fingerprint=one.fingerprint, kind=one.kind, tactic=one.tactic)
            for one in sorted(set(defects), key=lambda one: (one.kind, one.tactic, one.fingerprint))]
