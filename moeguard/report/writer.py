"""The derived files of a run directory, each written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moeguard.core.events import Event
from moeguard.core.finite import finite
from moeguard.report.outcome import Outcome, fold
from moeguard.report.replay import predecessors


def write_all(run_dir: Path, manifest: dict[str, Any], events: Iterable[Event]) -> Outcome:
    """Write everything of a run directory but manifest and journal, and return the outcome.

    ``findings.jsonl``, ``cases/<fingerprint>.json`` for each finding and what must run before it, ``executions.parquet``,
    ``summary.md``, ``junit.xml`` and ``report.html``. Replay commands name ``run_dir`` as it is given. Raises
    RunDirectoryError on events that no run can have written, OSError when the directory cannot be written.
    """
    from moeguard.report import frames, html, junit, markdown

    events = list(events)
    outcome = fold(manifest, events)
    frame = frames.executions(events)
    name = str(run_dir)
    for finding in outcome.findings:
        for case in (finding.case, *predecessors(finding)):
            write(run_dir / "cases" / f"{case.fingerprint}.json", case.to_json() + "\n")
    write(run_dir / "findings.jsonl", findings_lines(outcome, name))
    write(run_dir / "executions.parquet", frame.to_parquet(index=False))
    write(run_dir / "summary.md", markdown.render(outcome, name))
    write(run_dir / "junit.xml", junit.render(outcome, name))
    write(run_dir / "report.html", html.render(outcome, events, name, frame))
    return outcome


def findings_lines(outcome: Outcome, run_dir: str) -> str:
    """JSON lines: for each finding the object of ``--json`` and its check, hits and numbers.

    Strict JSON: a number that is not finite is written as text (``"nan"``, ``"inf"``).
    """
    return "".join(
        json.dumps(outcome.item(one, run_dir) | {"check": one.check, "hits": outcome.hits[one.fingerprint],
                                                 "numbers": finite(one.numbers)}, allow_nan=False) + "\n"
        for one in outcome.findings)


def write(path: Path, content: str | bytes) -> None:
    """Replace ``path`` by ``content`` (text as UTF-8): readers see the old file or the new one, never a part."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
