"""The summary of a cell's evidence, as the allowlist records it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from itertools import product
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moeguard.core.tokens import token_bucket
from moeguard.gate.confidence import upper_bound
from moeguard.gate.pair import combined
from moeguard.gate.spot_check import SpotCheck
from moeguard.gate.tally import Defect, Stratum, Tally

Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
Bound = Annotated[float, Field(ge=0, le=1)]
#: Shapes of a finding that are recorded.
SHAPES = 3
#: Distinct cases below which a stratum is thin: without a failure, 5 leave a rate of up to 0.45.
THIN = 5


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RunId(_Value):
    """A run, the day of its start (UTC), and the sha256 over its manifest, journal and cases (moeguard.gate.snapshot)."""

    run_id: Name
    started: date
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Problem(_Value):
    """A finding: its fingerprint, kind and tactic (``default`` for the untuned call).

    shapes: the smallest SHAPES of those that it was seen at. reruns: most judged executions of the tactic on one and the same
    case, which is what shows a race or its absence.
    """

    fingerprint: Name
    kind: Name
    tactic: Name
    shapes: list[Name] = []
    reruns: Count = 0


class SpeedUp(_Value):
    """Time of the default over that of the fastest right tactic: median, smallest and largest over the swept layers and T."""

    median: Annotated[float, Field(gt=0)]
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]


class Worst(_Value):
    """The stratum with the highest 95 % upper bound on its failure rate; 1.0 where a tactic has no case of a bucket."""

    token_bucket: Count
    tactic: Name
    cases: Count
    failures: Count
    bound: Bound


class Strata(_Value):
    """Strata are token bucket x tactic. total: of all buckets and tactics of the evidence. thin: those with fewer than THIN
    distinct cases, drawn or given. failed: those with an open finding."""

    total: Count
    thin: Count
    failed: Count
    worst: Worst


class Summary(_Value):
    """What all runs of a cell have shown.

    runs: the run directories. gpu: its name, None on a CPU. executions: calls with a verdict. cases: distinct cases that were
    drawn or failed, those with known findings alone left out. failures: of these cases, those with an open finding.
    known_failures: cases that are left out: with known findings alone, not launched because of a known crash, or in which a
    quarantined tactic alone failed. bound: 95 % Clopper-Pearson upper bound on the failure rate over ``cases``, 1.0 without
    any. tactics: judged executions by tactic. tactics_covered: those that gave a right answer. tactics_known: whether the
    runs show every tactic that is offered. token_buckets: powers of two at or below the numbers of tokens, 0 for none.
    boundary_tokens: numbers of tokens at or beside a power of two. repeats: judged calls of the tactic that has fewest;
    pairs of tactics that count one by one are left out. strata: None without a judged case. speed_up: None when no sweep
    was timed. quarantined_findings: of the tactics that the entry quarantines; all other fields are without these tactics.
    evals: spot checks of whole models.
    """

    runs: Annotated[list[RunId], Field(min_length=1)]
    gpu: Name | None = None
    executions: Count
    cases: Count
    failures: Count
    known_failures: Count
    bound: Bound
    tactics: dict[str, Count]
    tactics_covered: list[str]
    tactics_known: bool
    token_buckets: list[Count]
    boundary_tokens: list[Count]
    repeats: Count
    strata: Strata | None = None
    open_findings: list[Problem]
    known_findings: list[Problem]
    quarantined_findings: list[Problem] = []
    speed_up: SpeedUp | None = None
    evals: list[SpotCheck] = []

    @model_validator(mode="after")
    def _adds_up(self) -> Summary:
        if self.failures > self.cases:
            raise ValueError(f"failures: {self.failures}; allowed: at most cases, {self.cases}")
        bound = round(upper_bound(self.failures, self.cases), 6) if self.cases else 1.0
        if abs(self.bound - bound) > 1e-6:
            raise ValueError(f"bound: {self.bound}; allowed: {bound}, which follows from failures and cases")
        return self

    @classmethod
    def of(cls, runs: Iterable[RunId], tally: Tally, gpu: str | None = None, evals: Iterable[SpotCheck] = ()) -> Summary:
        """The summary of the runs whose counts ``tally`` holds; rounded, so that it can be compared after a round trip."""
        failed, gain = set(tally.failed), tally.gain
        cases = len(tally.clean - failed - set(tally.excused)) + len(failed)
        tactics = dict(sorted(tally.tactics.items()))
        return cls(
            runs=sorted(runs, key=lambda run: (run.run_id, run.sha256)), gpu=gpu, executions=tally.executions, cases=cases,
            failures=len(failed), known_failures=len(set(tally.excused) - failed), bound=_bound(len(failed), cases),
            tactics=tactics, tactics_covered=sorted(tally.right),
            tactics_known=tally.swept or (tally.offers_known and not tally.offers_cut),
            token_buckets=sorted({token_bucket(tokens) for tokens in tally.tokens}),
            boundary_tokens=sorted(tokens for tokens in tally.tokens if at_boundary(tokens)),
            repeats=min((number for name, number in tactics.items() if not combined(name, tactics)), default=0),
            strata=_strata(tally),
            open_findings=_problems(tally, (one for one in tally.defects if one.entry is None)),
            known_findings=_problems(tally, (one for one in tally.defects if one.entry is not None)),
            quarantined_findings=_problems(tally, tally.quarantined),
            evals=sorted(evals, key=lambda check: (check.run_id, check.sha256)),
            speed_up=gain and SpeedUp(median=round(gain[0], 4), low=round(gain[1], 4), high=round(gain[2], 4)))

    @property
    def sentence(self) -> str:
        """The figures in one line."""
        covered, strata = len(set(self.tactics) & set(self.tactics_covered)), self.strata
        per = "" if strata is None else (
            f"; {strata.total} strata of bucket and tactic, {strata.thin} with fewer than {THIN} cases, worst: tactic "
            f"{strata.worst.tactic} at T >= {strata.worst.token_bucket} with {strata.worst.failures} of {strata.worst.cases}, "
            f"bound {strata.worst.bound:.3g}")
        return (f"{self.executions} executions, {self.failures} failures in {self.cases} distinct cases, bound {self.bound:.3g}; "
                f"{covered} of {len(self.tactics)} tactics right, {self.repeats} calls or more of each; "
                f"{len(self.token_buckets)} token buckets, {len(self.boundary_tokens)} boundary token counts; "
                f"{len(self.known_findings)} known findings{per}{''.join(f'; {check.sentence}' for check in self.evals)}")

    def to_data(self) -> dict[str, Any]:
        """JSON data, without what is None."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_table(self) -> dict[str, Any]:
        """As ``to_data``, with dates, which TOML knows."""
        return self.model_dump(exclude_none=True)


def at_boundary(tokens: int) -> bool:
    """Whether ``tokens`` is a power of two, or one below or above."""
    return any(value >= 0 and value & (value - 1) == 0 for value in (tokens - 1, tokens, tokens + 1))


def _bound(failures: int, cases: int) -> float:
    return round(upper_bound(failures, cases), 6) if cases else 1.0


def _problems(tally: Tally, defects: Iterable[Defect]) -> list[Problem]:
    reruns: dict[str, int] = {}
    for (tactic, _), number in tally.reruns.items():
        reruns[tactic] = max(number, reruns.get(tactic, 0))
    return [Problem(fingerprint=one.fingerprint, kind=one.kind, tactic=one.tactic, reruns=reruns.get(one.tactic, 0),
                    shapes=[str(shape) for shape in sorted(tally.shapes.get(one, ()))[:SHAPES]])
            for one in sorted(set(defects), key=lambda one: (one.kind, one.tactic, one.fingerprint))]


def _strata(tally: Tally) -> Strata | None:
    tactics, buckets = sorted(tally.tactics), sorted({token_bucket(tokens) for tokens in tally.tokens})
    rows = []
    for bucket, tactic in product(buckets, tactics):
        held = tally.strata.get((bucket, tactic), Stratum())
        failures, cases = len(held.failed), len(held.clean | held.failed)
        rows.append(Worst(token_bucket=bucket, tactic=tactic, cases=cases, failures=failures, bound=_bound(failures, cases)))
    if not rows:
        return None
    return Strata(total=len(rows), thin=sum(row.cases < THIN for row in rows), failed=sum(row.failures > 0 for row in rows),
                  worst=max(rows, key=lambda row: (row.bound, row.failures)))
