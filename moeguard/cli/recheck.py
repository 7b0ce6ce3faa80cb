"""``moeguard replay --ledger``: every known finding once more."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from moeguard.backends import registry
from moeguard.cli.console import output
from moeguard.engine.plugins import load_plugins
from moeguard.engine.recheck import NOT_APPLICABLE, OCCURRED, TRIES, Recheck, exit_code, recheck
from moeguard.engine.worker import Settings
from moeguard.ledger.file import Ledger
from moeguard.ledger.standing import Standing
from moeguard.report.text import line


def conduct(file: str, backend: str | None, plugins: Sequence[Path], device: str, timeout: float, repeat: int,
            *, as_json: bool) -> int:
    """Run the entries of a ledger (those of ``backend``, where it is named) and print what became of each; the exit code.

    repeat: times that a case is run before its finding counts as gone; 1 stands for TRIES.
    Raises LedgerError when the ledger cannot be read, PluginError when a plug-in does not import, UnknownNameError when
    there is neither a backend nor an entry of that name.
    """
    ledger = Ledger.load(file)
    load_plugins(plugins)
    if backend is not None and all(entry.backend != backend for entry in ledger.entries):
        registry.get(backend)
    names = [backend] if backend is not None else [entry.backend for entry in ledger.entries]
    standing = Standing.of(ledger, names, datetime.now(timezone.utc).date())
    settings = Settings(device, tuple(str(plugin.resolve()) for plugin in plugins))
    console = Console(stderr=True)
    with console.status("starting a worker") if console.is_terminal and not as_json else Console(quiet=True).status("") as status:
        results = recheck(standing, settings, timeout=timeout, tries=repeat if repeat > 1 else TRIES,
                          progress=lambda name, done, total: status.update(f"{name} ({done + 1} of {total})"))
    code = exit_code(results)
    if as_json:
        data = {"verdict": {0: "clean", 1: "findings", 3: "inconclusive"}[code], "ledger": ledger.source,
                "sha256": ledger.sha256, "entries": [one.to_data() for one in results]}
        sys.stdout.write(json.dumps(data) + "\n")
    else:
        _show(results)
    return code


def _show(results: Sequence[Recheck]) -> None:
    console = output()
    table = Table(title=None, box=None, pad_edge=False)
    for heading in ("entry", "backend", "status", "reason"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("entry", "status"))
    for one in results:
        colour = {OCCURRED: "green", NOT_APPLICABLE: "yellow"}.get(one.status, "red")
        table.add_row(one.entry.id, one.entry.backend, f"[{colour}]{one.status}[/]", escape(line(one.reason)))
    console.print(table)
    states = [one.status for one in results]
    console.print("\n" + ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) if states
                  else "The ledger has no such entry.", highlight=False)
