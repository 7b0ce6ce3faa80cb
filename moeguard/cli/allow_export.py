"""``moeguard allow export``: the decision in an engine's own words, or the tactics that FlashInfer must leave out."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moeguard.cli.allow import emit, today
from moeguard.cli.gate import DEFAULT_ALLOWLIST, AllowlistOption, CellOption, PolicyOption, selected
from moeguard.cli.run import JsonOption

if TYPE_CHECKING:
    from moeguard.gate.decision import Decision
    from moeguard.gate.export import Setting


def export(
    form: Annotated[str, typer.Option("--format", help="vllm-cli, vllm-json, vllm-yaml, vllm-env, sglang-cli or "
                                                       "flashinfer-blocklist.")],
    allowlist: AllowlistOption = DEFAULT_ALLOWLIST,
    policy: PolicyOption = None,
    cell: CellOption = None,
    level: Annotated[str, typer.Option("--level", help="Optimisation level: O0, O1, O2 or O3.")] = "O2",
    cache_dir: Annotated[str | None, typer.Option("--cache-dir", help="For vllm-env: a folder of its own.")] = None,
    skip_ops: Annotated[bool, typer.Option("--skip-ops", help="For sglang-cli: off leaves out MoE operations alone.")] = False,
    all_shapes: Annotated[bool, typer.Option(
        "--all-shapes", help="For flashinfer-blocklist: block tactics also where they are right.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Print the decision in an engine's own words. An engine has one switch: it is on only when every chosen cell is.

    On a machine with a GPU it is on only for what the allowlist says of that machine; elsewhere stderr says which one it is
    about. With quarantined tactics it is on only where FLASHINFER_TACTICS_BLOCKLIST names a file that blocks them:
    flashinfer-blocklist writes one.
    """
    from moeguard.core.errors import MoeguardError
    from moeguard.gate.allowlist import Allowlist, this_machine
    from moeguard.gate.blocked import blocked
    from moeguard.gate.blocklist import VARIABLE
    from moeguard.gate.export import BLOCKLIST, Setting, text
    from moeguard.gate.level import check_level
    from moeguard.gate.policy import Policy

    check_level(level)
    wanted, file = selected(cell), os.environ.get(VARIABLE)
    known, thresholds, day = Allowlist.load(allowlist), Policy.load(policy), today()
    entries = [entry for entry in known.entries if wanted(entry.cell)]
    missing = [name for name in cell or () if not any(selected([name])(entry.cell) for entry in entries)]
    if form == BLOCKLIST:
        if missing:
            raise MoeguardError(f"--cell: {missing[0]} is not in {known.source}; allowed: cells that are")
        found = blocked(entries, known.entries, day, all_shapes=all_shapes)
        written = json.dumps(found.blocklist.to_data(), indent=2)
        if as_json:
            emit({"format": form, "text": written, "notes": list(found.notes)})
            return 0
        sys.stdout.write(f"{written}\n")
        sys.stderr.write("".join(f"note: {' '.join(note.split())}\n" for note in found.notes))
        return 0
    if all_shapes:
        raise MoeguardError(f"--all-shapes: not for {form}; allowed with --format {BLOCKLIST}")
    environment = this_machine()
    if environment.get("gpu"):
        cells = dict.fromkeys((entry.backend, entry.recipe) for entry in entries)
        decisions = [known.decide(*one, level, environment, policy=thresholds, today=day) for one in cells]
    else:
        decisions = [entry.enforced(entry.decide(level, thresholds, day), file) for entry in entries]
    setting = Setting.of(decisions, missing)
    written = text(form, setting, cache_dir=cache_dir, skip_ops=skip_ops, blocklist=file)
    if as_json:
        emit({"format": form, "level": level, "autotune": "on" if setting.autotune else "off", "backend": setting.backend,
              "text": written, "reasons": list(setting.reasons), "cells": [one.to_data() for one in setting.decisions]})
        return 0
    sys.stdout.write(f"{written}\n")
    foreign = [] if environment.get("gpu") else [_about(one) for one in setting.decisions if one.cell.arch != "cpu"]
    sys.stderr.write("".join(f"{' '.join(line.split())}\n" for line in (*foreign, *_remarks(setting))))
    return 0


def _about(decision: Decision) -> str:
    cell = decision.cell
    names = ("flashinfer", "cuda", "driver", "torch")
    versions = ", ".join(f"{name} {getattr(cell, name)}" for name in names if getattr(cell, name))
    return f"note: {cell.backend} with {cell.recipe}: decided for {cell.arch} with {versions}; this machine has no GPU"


def _remarks(setting: Setting) -> list[str]:
    """Why it is off, who waives what, and what must be kept from the tuner."""
    lines = [f"off: {reason}" for reason in setting.reasons]
    for one in setting.decisions:
        name = f"{one.cell.backend} with {one.cell.recipe}"
        lines += [f"waiver: {name}: {waiver.requirement}: {waiver.sentence}" for waiver in one.waived]
        if one.quarantined:
            lines.append(f"quarantined: {name}: {', '.join(one.quarantined)}; a choice that the tuner has cached before is not "
                         "affected, so give the engine a fresh cache (vllm-env names one)")
    return lines
