"""``moeguard allow``: the allowlist, listed, explained, updated from evidence and exported to serving engines."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli.gate import (
    DEFAULT_ALLOWLIST,
    AllowlistOption,
    CellOption,
    EvidenceOption,
    MoreEvidence,
    PolicyOption,
    pooled,
    selected,
)
from moeguard.cli.run import JsonOption

if TYPE_CHECKING:
    from datetime import date

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The allowlist of backends that may be tuned.")
#: Days for which evidence counts unless --expires says otherwise.
DAYS = 90


@app.command("list")
def list_(allowlist: AllowlistOption = DEFAULT_ALLOWLIST, policy: PolicyOption = None, as_json: JsonOption = False) -> int:
    """Every cell with its decision at each level."""
    from rich.console import Console
    from rich.table import Table

    from moeguard.gate.allowlist import Allowlist
    from moeguard.gate.decision import LEVELS
    from moeguard.gate.policy import Policy

    known, thresholds, today = Allowlist.load(allowlist), Policy.load(policy), _today()
    rows = [(entry, [entry.decide(level, thresholds, today) for level in LEVELS]) for entry in known.entries]
    if as_json:
        _print({"cells": [{**entry.cell.to_data(), "expires": str(entry.expires), "backend_use": entry.backend_use,
                           "levels": {one.level: one.outcome for one in decisions}} for entry, decisions in rows]})
        return 0
    table = Table(title=None, box=None, pad_edge=False)
    for heading in ("backend", "recipe", "arch", "flashinfer", *LEVELS, "expires"):
        table.add_column(heading)
    for entry, decisions in rows:
        table.add_row(entry.backend, entry.recipe, entry.arch, entry.flashinfer or "none",
                      *(one.outcome for one in decisions), str(entry.expires))
    Console().print(table if rows else "the allowlist has no cells")
    return 0


@app.command()
def explain(
    cell: Annotated[str, typer.Argument(help="BACKEND/RECIPE or BACKEND/RECIPE/ARCH.")],
    allowlist: AllowlistOption = DEFAULT_ALLOWLIST, policy: PolicyOption = None, as_json: JsonOption = False,
) -> int:
    """Why a cell is on or off at each level. Exit code 1 when the allowlist does not know it."""
    from moeguard.gate.allowlist import Allowlist
    from moeguard.gate.decision import LEVELS
    from moeguard.gate.policy import Policy

    wanted = selected([cell])
    known, thresholds, today = Allowlist.load(allowlist), Policy.load(policy), _today()
    decisions = [entry.decide(level, thresholds, today) for entry in known.entries if wanted(entry.cell) for level in LEVELS]
    if as_json:
        _print({"known": bool(decisions), "cells": [one.to_data() for one in decisions]})
    elif not decisions:
        sys.stdout.write(f"{cell}: off at every level: not in {known.source}\n")
    else:
        for one in decisions:
            sys.stdout.write(f"{one.cell.backend}/{one.cell.recipe}/{one.cell.arch} {one.level}: {one.outcome}\n")
            for failed in one.failed:
                sys.stdout.write(f"  {failed.name}: {failed.sentence}\n" + (f"    {failed.command}\n" if failed.command else ""))
            if one.allowed:
                sys.stdout.write(f"  {one.reason}\n")
    return 0 if decisions else 1


@app.command()
def update(
    evidence: EvidenceOption,
    allowlist: AllowlistOption = DEFAULT_ALLOWLIST,
    policy: PolicyOption = None,
    cell: CellOption = None,
    expires: Annotated[str | None, typer.Option("--expires", help="Last day, YYYY-MM-DD. Default: 90 days from now.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Reason to write. Default: made from the evidence.")] = None,
    as_json: JsonOption = False,
    more: MoreEvidence = None,
) -> int:
    """Write an entry for each cell of the evidence; comments and waivers are kept. Exit code 3 when it is stale or empty."""
    from datetime import timedelta

    from moeguard.core.errors import MoeguardError
    from moeguard.gate.policy import Policy
    from moeguard.gate.tables import text_of
    from moeguard.gate.update import update as edit

    today, wanted, thresholds = _today(), selected(cell), Policy.load(policy)
    last = today + timedelta(days=DAYS) if expires is None else _date(expires)
    before = text_of(allowlist, "allowlist") if allowlist.exists() else None
    pool = pooled([*evidence, *(more or ())])
    summaries = {one: summary for one, summary in pool.summaries.items() if wanted(one)}
    if pool.stale or not summaries:
        why = [one.sentence for one in pool.stale] or ["the evidence is empty: no cell was executed"]
        if as_json:
            _print({"changes": [], "stale": why})
        else:
            sys.stderr.write("".join(f"moeguard: {one}\n" for one in why))
        return 3
    after, changes = edit(before, str(allowlist), summaries, thresholds, today, last, reason)
    temporary = allowlist.with_name(f".{allowlist.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(after, encoding="utf-8")
        os.replace(temporary, allowlist)
    except OSError as error:
        raise MoeguardError(f"--allowlist: {allowlist} cannot be written ({error.strerror})") from None
    if as_json:
        _print({"changes": [one.to_data() for one in changes], "stale": []})
    else:
        for one in changes:
            was = "new" if one.before is None else f"was {', '.join(one.before) or 'off'}"
            now = ", ".join(one.after) or ("avoid" if one.backend_use == "avoid" else "off")
            sys.stdout.write(f"{one.cell.backend}/{one.cell.recipe}/{one.cell.arch}: {now} ({was}): {one.reason}\n")
    return 0


@app.command()
def export(
    form: Annotated[str, typer.Option("--format", help="vllm-cli, vllm-json, vllm-yaml, vllm-env, sglang-cli or "
                                                       "flashinfer-blocklist.")],
    allowlist: AllowlistOption = DEFAULT_ALLOWLIST,
    policy: PolicyOption = None,
    cell: CellOption = None,
    level: Annotated[str, typer.Option("--level", help="Optimisation level: O0, O1, O2 or O3.")] = "O2",
    cache_dir: Annotated[str | None, typer.Option("--cache-dir", help="For vllm-env: a folder of its own.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Print the decision in an engine's own words. An engine has one switch: it is on only when every chosen cell is."""
    from moeguard.gate.allowlist import Allowlist
    from moeguard.gate.decision import check_level
    from moeguard.gate.export import Setting, text
    from moeguard.gate.policy import Policy

    check_level(level)
    wanted = selected(cell)
    known, thresholds, today = Allowlist.load(allowlist), Policy.load(policy), _today()
    entries = [entry for entry in known.entries if wanted(entry.cell)]
    missing = [name for name in cell or () if not any(selected([name])(entry.cell) for entry in entries)]
    setting = Setting.of([entry.decide(level, thresholds, today) for entry in entries], missing)
    written = text(form, setting, entries, cache_dir)
    if as_json:
        _print({"format": form, "level": level, "autotune": "on" if setting.autotune else "off", "backend": setting.backend,
                "text": written, "reasons": list(setting.reasons), "cells": [one.to_data() for one in setting.decisions]})
        return 0
    sys.stdout.write(f"{written}\n")
    if form != "flashinfer-blocklist":
        sys.stderr.write("".join(f"off: {' '.join(reason.split())}\n" for reason in setting.reasons))
    return 0


def _today() -> date:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).date()


def _date(text: str) -> date:
    from datetime import date

    from moeguard.core.errors import MoeguardError

    try:
        return date.fromisoformat(text)
    except ValueError:
        raise MoeguardError(f"--expires: {text!r}; allowed: a day as YYYY-MM-DD") from None


def _print(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
