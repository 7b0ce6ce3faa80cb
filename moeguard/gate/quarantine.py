"""Quarantine: keep the tuner from single tactics that are wrong, and with that the speed of all others."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from moeguard.core.cell import Cell
from moeguard.gate.blocklist import VARIABLE, obstacle, reads
from moeguard.gate.command import UPDATE
from moeguard.gate.policy import FAULTS
from moeguard.gate.summary import Problem, Summary
from moeguard.gate.tally import DEFAULT_TACTIC

DEFAULT_FILE = "moeguard-allowlist.toml"
#: Where the printed commands put the file.
FILE = "blocklist.json"
MOST = 6


@dataclass(frozen=True, slots=True)
class Offer:
    """tactics: those at fault. right: how many others gave right answers, the default among them. commands: in order; the
    first writes FlashInfer's blocklist, the second records the quarantine."""

    tactics: tuple[str, ...]
    right: int
    commands: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        verb = "is" if len(self.tactics) == 1 else "are"
        return (f"before autotuning is switched off: only {listed(self.tactics)} {verb} at fault, the default and "
                f"{self.right - 1} other tactics gave right answers; quarantine {listed(self.tactics)} alone, which FlashInfer "
                f"then leaves out for all shapes and recipes (set {VARIABLE}={FILE} for the engine)")

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"tactics": list(self.tactics), "sentence": self.sentence, "commands": list(self.commands)}


def faults(problems: Iterable[Problem]) -> dict[str, list[Problem]]:
    """Findings for which a tactic must not be picked, by tactic."""
    found: dict[str, list[Problem]] = {}
    for one in sorted(problems, key=lambda one: one.tactic):
        if one.kind in FAULTS:
            found.setdefault(one.tactic, []).append(one)
    return found


def offer(cell: Cell, evidence: Summary, source: str = DEFAULT_FILE, folders: Sequence[str] = ()) -> Offer | None:
    """What a quarantine would need; None unless all open findings are about single tactics that can be blocked, and the
    default and all other tactics gave right answers.

    source: path of the allowlist. folders: run directories of the evidence, for the commands.
    """
    bad = faults([*evidence.open_findings, *evidence.known_findings])
    rest = set(evidence.tactics) - set(bad)
    if not reads(cell.flashinfer) or not any(one.tactic in bad for one in evidence.open_findings):
        return None
    if any(one.kind not in FAULTS for one in evidence.open_findings) or not rest <= set(evidence.tactics_covered):
        return None
    if DEFAULT_TACTIC not in rest or len(rest) == 1 or any(obstacle(cell.backend, name, bad) for name in bad):
        return None
    options = [] if source == DEFAULT_FILE else ["--allowlist", source]
    chosen = ["--cell", f"{cell.backend}/{cell.recipe}"]
    write = shlex.join(["moeguard", "allow", "export", "--format", "flashinfer-blocklist", *options, *chosen, "--all-shapes"])
    tactics = [word for name in bad for word in ("--quarantine", name)]
    record = shlex.join([*UPDATE.split(), *options, *chosen, *tactics, "--evidence", *(folders or ["DIR"])])
    return Offer(tuple(bad), len(rest), (f"{write} > {FILE}", record))


def listed(names: Sequence[str]) -> str:
    """Names for people, the first few of many."""
    shown = [*names[:MOST], f"{len(names) - MOST} more"] if len(names) > MOST else [*names]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
