"""A campaign over routers: each case on each router, in this process, and what was found."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from moeguard.backends.routers import registry
from moeguard.checks.router import check_router
from moeguard.core.router import RouterCase, RouterFinding


@dataclass
class RouterTally:
    """What one router was asked. cases: that it ran; refused: that it does not support. reason: why none, else None."""

    router: str
    cases: int = 0
    refused: int = 0
    tokens: int = 0
    undefined: int = 0
    near_ties: int = 0
    reason: str | None = None


@dataclass
class RouterRun:
    """tallies: one a router. findings: the first of each fingerprint; occurrences: in how many cases it was seen.

    device, plugins: of the run, as the replay command names them.
    """

    device: str = "cpu"
    plugins: tuple[str, ...] = ()
    tallies: list[RouterTally] = field(default_factory=list)
    findings: list[RouterFinding] = field(default_factory=list)
    occurrences: dict[str, int] = field(default_factory=dict)
    cases: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """``clean``, ``findings`` or ``inconclusive`` (no token was judged)."""
        return "findings" if self.findings else "clean" if any(one.tokens for one in self.tallies) else "inconclusive"

    @property
    def exit_code(self) -> int:
        """That of the command."""
        return {"clean": 0, "findings": 1, "inconclusive": 3}[self.verdict]

    def replay(self, finding: RouterFinding) -> str:
        """The command that runs the case of ``finding`` again."""
        words = ["moeguard", "router", "--router", finding.router, "--device", self.device,
                 *(word for plugin in self.plugins for word in ("--plugin", plugin)), "--case", finding.case.model_dump_json()]
        return shlex.join(words)

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "verdict": self.verdict, "cases": self.cases, "seconds": round(self.seconds, 3),
            "routers": [{"router": one.router, "cases": one.cases, "refused": one.refused, "tokens": one.tokens,
                         "undefined": one.undefined, "near_ties": one.near_ties} for one in self.tallies if one.reason is None],
            "findings": [one.to_data() | {"occurrences": self.occurrences[one.fingerprint], "replay": self.replay(one)}
                         for one in self.findings],
            "not_verified": [{"router": one.router, "reason": one.reason} for one in self.tallies if one.reason is not None]}


def run_routers(names: Sequence[str], cases: Sequence[RouterCase], device: str = "cpu", plugins: Sequence[str] = (),
                progress: Callable[[], None] = lambda: None) -> RouterRun:
    """Run every case on every router. A router is left after a crash, which on a GPU leaves nothing to go on with.

    Raises UnknownNameError. progress: called after each case of each router.
    """
    run, start = RouterRun(device, tuple(plugins), cases=len(cases)), time.monotonic()
    for name in names:
        tally = RouterTally(name, reason=registry.unavailable(name))
        run.tallies.append(tally)
        if tally.reason is None:
            _run(name, cases, device, run, tally, progress)
    run.seconds = time.monotonic() - start
    return run


def _run(name: str, cases: Sequence[RouterCase], device: str, run: RouterRun, tally: RouterTally,
         progress: Callable[[], None]) -> None:
    refusal = None
    for case in cases:
        verdict = check_router(registry.get(name), case, device)
        progress()
        if verdict.unsupported is not None:
            tally.refused, refusal = tally.refused + 1, verdict.unsupported
            continue
        tally.cases += 1
        tally.tokens += verdict.tokens
        tally.undefined += verdict.undefined
        tally.near_ties += verdict.near_ties
        for finding in verdict.findings:
            if finding.fingerprint not in run.occurrences:
                run.findings.append(finding)
            run.occurrences[finding.fingerprint] = run.occurrences.get(finding.fingerprint, 0) + 1
        if any(finding.kind == "crash" for finding in verdict.findings):
            break
    if not tally.cases:
        tally.reason = f"supports none of the cases: {refusal}" if refusal else "no case"
