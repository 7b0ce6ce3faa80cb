"""The replay command of a finding: what to type to see it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from moeguard.core.finding import Finding


def command(finding: Finding, run_dir: str, plugins: Sequence[str] = ()) -> str:
    """A POSIX shell command that runs the finding's case again.

    run_dir: the run directory as the reader can reach it; its ``cases/`` holds the case file.
    plugins: plug-in files that the run was given. Every argument is quoted where the shell needs it.
    """
    words = ["moeguard", "replay", f"{run_dir.rstrip('/') or '/'}/cases/{finding.case.fingerprint}.json",
             "--backend", finding.backend]
    if finding.tactic is not None:
        words += [f"--tactic={finding.tactic}"] if finding.tactic.startswith("-") else ["--tactic", finding.tactic]
    for plugin in plugins:
        words += ["--plugin", plugin]
    return shlex.join(words)
