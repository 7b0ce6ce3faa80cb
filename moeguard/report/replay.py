"""The replay command of a finding: what to type to see it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pydantic import ValidationError

from moeguard.core.case import Case
from moeguard.core.errors import RunDirectoryError
from moeguard.core.finding import Finding


def predecessors(finding: Finding) -> list[Case]:
    """The cases that its process must have run before it, as far as the same backend ran them.

    Raises RunDirectoryError on numbers that no run can have written.
    """
    try:
        return [Case.model_validate(one["case"]) for one in finding.numbers.get("predecessors", ())
                if one["backend"] == finding.backend]
    except (ValidationError, KeyError, TypeError):
        raise RunDirectoryError(f"journal: predecessors of finding {finding.fingerprint}: damaged") from None


def command(finding: Finding, run_dir: str, plugins: Sequence[str] = ()) -> str:
    """A POSIX shell command that runs the finding's case again.

    run_dir: the run directory as the reader can reach it; its ``cases/`` holds the case file.
    plugins: plug-in files that the run was given. Every argument is quoted where the shell needs it. A tactic is named
    only where no predecessors are, which it would be forced on too.
    """
    cases = f"{run_dir.rstrip('/') or '/'}/cases"
    words = ["moeguard", "replay", f"{cases}/{finding.case.fingerprint}.json", "--backend", finding.backend]
    before = predecessors(finding)
    for case in before:
        words += ["--after", f"{cases}/{case.fingerprint}.json"]
    if finding.tactic is not None and not before:
        words += [f"--tactic={finding.tactic}"] if finding.tactic.startswith("-") else ["--tactic", finding.tactic]
    for plugin in plugins:
        words += ["--plugin", plugin]
    return shlex.join(words)
