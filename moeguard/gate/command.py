"""Commands that supply what evidence lacks, to be copied into a shell."""

from __future__ import annotations

import shlex

from moeguard.core.cell import Cell
from moeguard.gate.confidence import runs_needed

UPDATE = "moeguard allow update"


def campaign(cell: Cell, bound: float) -> str:
    """A campaign that is large enough for the ``bound``; half as many cases again, since some are declined."""
    profile = "smoke" if cell.arch == "cpu" else "ci"
    return shlex.join(["moeguard", "run", *_options(cell), "--profile", profile, "--max-cases", str(runs_needed(bound) * 3 // 2)])


def sweep(cell: Cell, *more: str) -> str:
    """A sweep over every tactic."""
    return shlex.join(["moeguard", "sweep", *_options(cell), *more])


def spot_check(cell: Cell, task: str) -> str:
    """A paired spot check; the commands of the two servers are for the user to say."""
    return shlex.join(["moeguard", "eval", task, "--backend", cell.backend, "--recipe", cell.recipe,
                       "--baseline-cmd", "SERVER {port}", "--candidate-cmd", "SERVER {port}"])


def _options(cell: Cell) -> list[str]:
    return ["--backend", cell.backend, "--recipe", cell.recipe, "--device", "cpu" if cell.arch == "cpu" else "cuda"]
