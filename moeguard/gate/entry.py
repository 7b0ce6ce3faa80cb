"""One entry of the allowlist, a ``[[cell]]``: what it says, and the decision that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from moeguard.core.cell import Cell
from moeguard.core.errors import AllowlistError
from moeguard.gate.blocklist import VARIABLE, Blocklist, obstacle
from moeguard.gate.command import UPDATE
from moeguard.gate.decision import Decision, Failed, decide
from moeguard.gate.level import Level
from moeguard.gate.policy import Policy
from moeguard.gate.quarantine import listed
from moeguard.gate.requirement import failures
from moeguard.gate.summary import Summary
from moeguard.gate.waiver import Waiver

Name = Annotated[str, Field(min_length=1)]
#: What stands for a package, driver or CUDA version that is not there.
ABSENT = "none"


class Entry(BaseModel):
    """One ``[[cell]]``. Versions that are absent are written as ``none``. expires: the last day on which it counts.

    backend_use: ``avoid`` when the untuned default is wrong too. levels: where autotuning is on. quarantined: tactics that the
    tuner is kept from by FlashInfer's blocklist; the evidence is about all others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

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
    quarantined: list[Name] = []
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
        if len(set(self.quarantined)) != len(self.quarantined):
            raise ValueError("quarantined: named twice; allowed: each tactic once")
        for tactic in self.quarantined:
            found = obstacle(self.backend, tactic, self.quarantined)
            if found is not None:
                raise ValueError(f"quarantined: {found}")
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
        evidence = self.evidence if summary is None else summary
        if self.expires < today:
            failed.append(Failed("expires", f"not before {today}", str(self.expires), f"the entry expired on {self.expires}",
                                 UPDATE))
        latest = max(run.started for run in evidence.runs)
        if latest > today:
            failed.append(Failed("clock", f"{latest} or later", str(today),
                                 f"the clock says {today}, but evidence was made on {latest}"))
        if self.backend_use == "avoid":
            failed.append(Failed("backend_use", "ok", "avoid", f"the backend is to be avoided: {self.reason}"))
        if not proposed and self.autotune == "off":
            failed.append(Failed("autotune", "on", "off", f"the allowlist says off: {self.reason}"))
        elif not proposed and level not in self.levels:
            levels = ", ".join(self.levels)
            failed.append(Failed("level", level, levels, f"{level} is not among its levels {levels}"))
        failed += self._quarantine(evidence)
        for one in failures(self.cell, evidence, level, policy):
            waivers = [waiver for waiver in self.waiver if waiver.requirement == one.name]
            holding = [waiver for waiver in waivers if waiver.expires >= today]
            if holding:
                waived.append(holding[0])
            elif one.name not in {other.name for other in failed}:
                ended = "".join(f" (the waiver of {waiver.owner} expired on {waiver.expires})" for waiver in waivers)
                failed.append(replace(one, sentence=f"{one.sentence}{ended}"))
        if level == "O3":
            failed += _inconsistent(self, [*self.levels, level] if proposed else self.levels, evidence, policy)
        return decide(self.cell, level, self.backend_use, tuple(failed), self.reason, tuple(waived), tuple(self.quarantined),
                      evidence)

    def _quarantine(self, evidence: Summary) -> Iterable[Failed]:
        """The evidence must be about the tactics that are not quarantined, and about all of these."""
        both = sorted(set(self.quarantined) & set(evidence.tactics))
        lifted = sorted({one.tactic for one in evidence.quarantined_findings} - set(self.quarantined))
        if both or lifted:
            named = f"counts the quarantined tactic {both[0]}" if both else f"leaves out tactic {lifted[0]} without a quarantine"
            yield Failed("quarantine", "evidence about the other tactics", "other evidence", f"the evidence {named}", UPDATE)

    def enforced(self, decision: Decision, blocklist: str | None) -> Decision:
        """``decision``, off unless the tuner of this environment is kept from the quarantined tactics.

        blocklist: path of FlashInfer's tactics blocklist, as in the environment variable; None when there is none.
        """
        if not self.quarantined or not decision.allowed:
            return decision
        problem = self._unblocked(blocklist)
        if problem is None:
            return decision
        command = f"moeguard allow export --format flashinfer-blocklist --cell {self.backend}/{self.recipe}"
        failed = Failed("blocklist", f"{VARIABLE} with {', '.join(self.quarantined)}", "not in force",
                        f"{listed(self.quarantined)} must be kept from the tuner: {problem}", command)
        return decide(self.cell, decision.level, self.backend_use, (failed,), "", decision.waived, decision.quarantined,
                      decision.evidence)

    def _unblocked(self, path: str | None) -> str | None:
        """Why the quarantine is not in force, None when it is."""
        if not path:
            return f"{VARIABLE} is not set"
        try:
            held = Blocklist.load(Path(path))
        except AllowlistError as error:
            return str(error)
        free = [tactic for tactic in self.quarantined if not held.blocks(tactic)]
        if free:
            return f"{path} does not block {listed(free)}"
        if not held.loads(self.flashinfer, self.cuda, self.evidence.gpu):
            return f"FlashInfer skips {path}, whose _metadata is about another environment"
        return None


def _inconsistent(entry: Entry, levels: Iterable[str], evidence: Summary, policy: Policy) -> Iterable[Failed]:
    """O3 does what O2 does: it may not be on while the same open finding keeps O2 off."""
    if "O3" in levels and "O2" not in levels:
        for one in failures(entry.cell, evidence, "O2", policy):
            if one.name == "open_findings":
                yield Failed("consistent_levels", "O2 as well", "O3 alone",
                             f"inconsistent: O3 is on while O2 is off for the same {one.sentence}")
