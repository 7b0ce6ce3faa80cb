"""The verdict of a scenario, a campaign or ``moeguard.check``."""

from __future__ import annotations

from dataclasses import dataclass, field

from moeguard.core.finding import Finding


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was not verified, and why. Never a defect."""

    what: str
    reason: str
    backend: str = ""
    recipe: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ``moeguard.check`` concludes.

    findings: defects seen. executions: ``Backend.run`` calls that got a memory check and a verdict.
    not_verified: what could not be verified, with the reason.
    """

    findings: tuple[Finding, ...] = ()
    executions: int = 0
    not_verified: tuple[Note, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """True when something was executed and nothing was found."""
        return self.executions > 0 and not self.findings
