"""``moeguard allow``: the allowlist, listed, explained, updated from evidence and exported to serving engines."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli.console import output
from moeguard.cli.gate import (
    DEFAULT_ALLOWLIST,
    AllowlistOption,
    CellOption,
    EvidenceOption,
    MoreEvidence,
    PolicyOption,
    pooled,
    say,
    selected,
    tell,
)
from moeguard.cli.run import JsonOption

if TYPE_CHECKING:
    from datetime import date

    from moeguard.gate.decision import Decision
    from moeguard.gate.pool import Pool

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The allowlist of backends that may be tuned.")
#: Days for which evidence counts unless --expires says otherwise.
DAYS = 90


@app.command("list")
def list_(allowlist: AllowlistOption = DEFAULT_ALLOWLIST, policy: PolicyOption = None, as_json: JsonOption = False) -> int:
    """Every cell with its decision at each level."""
    from rich.table import Table

    from moeguard.gate.allowlist import Allowlist
    from moeguard.gate.level import LEVELS
    from moeguard.gate.policy import Policy

    known, thresholds, day = Allowlist.load(allowlist), Policy.load(policy), today()
    rows = [(entry, [entry.decide(level, thresholds, day) for level in LEVELS]) for entry in known.entries]
    if as_json:
        emit({"cells": [{**entry.cell.to_data(), "expires": str(entry.expires), "backend_use": entry.backend_use,
                         "levels": {one.level: one.outcome for one in decisions}, "quarantined": entry.quarantined,
                         "waivers": [waiver.to_data() for waiver in entry.waiver]} for entry, decisions in rows]})
        return 0
    table = Table(title=None, box=None, pad_edge=False)
    for heading in ("backend", "recipe", "arch", "flashinfer", *LEVELS, "expires"):
        table.add_column(heading)
    for entry, decisions in rows:
        table.add_row(entry.backend, entry.recipe, entry.arch, entry.flashinfer or "none",
                      *(one.outcome for one in decisions), str(entry.expires))
    output().print(table if rows else "the allowlist has no cells")
    for entry in known.entries:
        name = f"{entry.backend}/{entry.recipe}/{entry.arch}"
        if entry.quarantined:
            say(f"{name}: quarantined: {', '.join(entry.quarantined)}", "yellow")
        for waiver in entry.waiver:
            say(f"{name}: {waiver.requirement}: {waiver.sentence}", "yellow")
    return 0


@app.command()
def explain(
    cell: Annotated[str, typer.Argument(help="BACKEND/RECIPE or BACKEND/RECIPE/ARCH.")],
    allowlist: AllowlistOption = DEFAULT_ALLOWLIST, policy: PolicyOption = None, as_json: JsonOption = False,
) -> int:
    """Why a cell is on or off at each level. Exit code 1 when the allowlist does not know it."""
    from moeguard.gate.allowlist import Allowlist
    from moeguard.gate.level import LEVELS
    from moeguard.gate.policy import Policy

    wanted = selected([cell])
    known, thresholds, day = Allowlist.load(allowlist), Policy.load(policy), today()
    entries = [entry for entry in known.entries if wanted(entry.cell)]
    decisions = [_offered(entry.decide(level, thresholds, day), known.source) for entry in entries for level in LEVELS]
    if as_json:
        emit({"known": bool(decisions), "cells": [one.to_data() for one in decisions]})
    elif not decisions:
        sys.stdout.write(f"{cell}: off at every level: not in {known.source}\n")
    for one in decisions if not as_json else ():
        say(f"{one.cell.backend}/{one.cell.recipe}/{one.cell.arch} {one.level}: {one.outcome}")
        if one.allowed:
            say(f"  {one.reason}")
        tell(one)
    return 0 if decisions else 1


def _offered(decision: Decision, source: str) -> Decision:
    """With the quarantine that would be enough, where something else than the level stands against it."""
    from dataclasses import replace

    from moeguard.gate.quarantine import offer

    if decision.allowed or decision.evidence is None or decision.level == "O0":
        return decision
    return replace(decision, offer=offer(decision.cell, decision.evidence, source))


@app.command()
def update(
    evidence: EvidenceOption,
    allowlist: AllowlistOption = DEFAULT_ALLOWLIST,
    policy: PolicyOption = None,
    cell: CellOption = None,
    expires: Annotated[str | None, typer.Option("--expires", help="Last day, YYYY-MM-DD. Default: 90 days from now.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Reason to write. Default: made from the evidence.")] = None,
    quarantine: Annotated[list[str] | None, typer.Option(
        "--quarantine", help="Tactic to keep the tuner from, such as '(3, -1)'; repeatable.")] = None,
    as_json: JsonOption = False,
    more: MoreEvidence = None,
) -> int:
    """Write an entry for each cell of the evidence; comments and waivers are kept. Exit code 3 when it is stale or empty."""
    from datetime import timedelta

    from moeguard.core.errors import MoeguardError
    from moeguard.gate.policy import Policy
    from moeguard.gate.snapshot import Stale
    from moeguard.gate.tables import text_of
    from moeguard.gate.update import update as edit

    day, wanted, thresholds = today(), selected(cell), Policy.load(policy)
    last = day + timedelta(days=DAYS) if expires is None else _date(expires)
    if last < day:
        raise MoeguardError(f"--expires: {last} is past; allowed: {day} or later")
    before = text_of(allowlist, "allowlist") if allowlist.exists() else None
    pool = pooled([*evidence, *(more or ())])
    cells = {one: gathered for one, gathered in pool.cells.items() if wanted(one)}
    late = [Stale(run.path, f"the clock says {day}, but the run was started on {run.started}")
            for run in pool.runs if run.started > day]
    if pool.stale or late or not cells:
        why = [one.sentence for one in (*pool.stale, *late)] or [_empty(pool, cell)]
        if as_json:
            emit({"changes": [], "stale": why})
        else:
            sys.stderr.write("".join(f"moeguard: {one}\n" for one in why))
        return 3
    after, changes = edit(before, str(allowlist), cells, thresholds, day, last, reason, quarantine or ())
    temporary = allowlist.with_name(f".{allowlist.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(after, encoding="utf-8")
        os.replace(temporary, allowlist)
    except OSError as error:
        raise MoeguardError(f"--allowlist: {allowlist} cannot be written ({error.strerror})") from None
    if as_json:
        emit({"changes": [one.to_data() for one in changes], "stale": []})
    else:
        for one in changes:
            was = "new" if one.before is None else f"was {', '.join(one.before) or 'off'}"
            now = ", ".join(one.after) or ("avoid" if one.backend_use == "avoid" else "off")
            say(f"{one.cell.backend}/{one.cell.recipe}/{one.cell.arch}: {now} ({was}): {one.reason}")
            if one.offer is not None:
                say(f"  quarantine: {one.offer.sentence}", "cyan")
                for command in one.offer.commands:
                    say(f"    {command}", "dim")
    return 0


def today() -> date:
    """The day, UTC."""
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).date()


def _empty(pool: Pool, names: list[str] | None) -> str:
    there = ", ".join(f"{one.backend}/{one.recipe}" for one in pool.cells)
    return (f"no cell of the evidence is {' or '.join(names)}; it has {there}" if names and there
            else "the evidence is empty: no cell was executed")


def _date(text: str) -> date:
    from datetime import date

    from moeguard.core.errors import MoeguardError

    try:
        return date.fromisoformat(text)
    except ValueError:
        raise MoeguardError(f"--expires: {text!r}; allowed: a day as YYYY-MM-DD") from None


def emit(data: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    sys.stdout.write(json.dumps(data) + "\n")
