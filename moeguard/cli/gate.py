"""``moeguard gate``: may autotuning be on, by the allowlist and the evidence that it claims?"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeguard.cli.console import output
from moeguard.cli.run import JsonOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from moeguard.core.cell import Cell
    from moeguard.gate.decision import Decision
    from moeguard.gate.judgement import Flip, Judgement
    from moeguard.gate.pool import Pool

AllowlistOption = Annotated[Path, typer.Option("--allowlist", help="Allowlist file.")]
EvidenceOption = Annotated[list[Path], typer.Option("--evidence", help="Run directory, or that of a spot check; repeatable.")]
MoreEvidence = Annotated[list[Path] | None, typer.Argument(metavar="[DIR]...", help="More run directories.")]
PolicyOption = Annotated[Path | None, typer.Option("--policy", help="File of thresholds. Default: packaged.")]
CellOption = Annotated[list[str] | None, typer.Option("--cell", help="BACKEND/RECIPE: only these cells; repeatable.")]
DEFAULT_ALLOWLIST = Path("moeguard-allowlist.toml")


def gate(
    evidence: EvidenceOption,
    allowlist: AllowlistOption = DEFAULT_ALLOWLIST,
    level: Annotated[str, typer.Option("--level", help="Optimisation level: O0, O1, O2 or O3.")] = "O2",
    policy: PolicyOption = None,
    flip: Annotated[str | None, typer.Option("--flip", help="autotune=on or autotune=off: judge that change.")] = None,
    cell: CellOption = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the result as markdown to this file.")] = None,
    as_json: JsonOption = False,
    more: MoreEvidence = None,
) -> int:
    """Say whether autotuning may be on. Exit codes: 0 allowed, 1 no on valid evidence, 2 bad input, 3 evidence empty or stale."""
    from datetime import datetime, timezone

    from moeguard.core.errors import MoeguardError
    from moeguard.gate.allowlist import Allowlist
    from moeguard.gate.judgement import judge
    from moeguard.gate.level import check_level
    from moeguard.gate.markdown import markdown as as_markdown
    from moeguard.gate.policy import Policy

    check_level(level)
    change = _flip(flip)
    known, thresholds, wanted = Allowlist.load(allowlist), Policy.load(policy), selected(cell)
    today = datetime.now(timezone.utc).date()
    judgement = judge(known, pooled([*evidence, *(more or ())]), level, thresholds, today, flip=change, wanted=wanted)
    if markdown is not None and markdown.resolve() in {path.resolve() for path in (allowlist, policy) if path is not None}:
        raise MoeguardError(f"--markdown: {markdown} is the allowlist or the policy; allowed: another file")
    if markdown is not None:
        try:
            markdown.write_text(as_markdown(judgement), encoding="utf-8")
        except OSError as error:
            raise MoeguardError(f"--markdown: {markdown} cannot be written ({error.strerror})") from None
    if as_json:
        sys.stdout.write(json.dumps(judgement.to_data()) + "\n")
    else:
        with contextlib.suppress(SystemExit):  # rich ends the program when nobody reads on; the decision stands
            _show(judgement)
    return judgement.exit_code


def pooled(folders: list[Path]) -> Pool:
    """The evidence of these run directories. Raises MoeguardError about one that is no folder."""
    from moeguard.core.errors import MoeguardError
    from moeguard.gate import spot_check
    from moeguard.gate.evidence import read
    from moeguard.gate.pool import Pool

    for folder in folders:
        if not folder.is_dir():
            raise MoeguardError(f"--evidence: {folder} is no folder; allowed: a run directory")
    return Pool.of(spot_check.read(folder) if spot_check.is_spot_check(folder) else read(folder) for folder in folders)


def selected(names: list[str] | None) -> Callable[[Cell], bool]:
    """Whether a cell is one of BACKEND/RECIPE or BACKEND/RECIPE/ARCH; all without names. Raises MoeguardError."""
    from moeguard.core.errors import MoeguardError

    wanted = []
    for name in names or ():
        parts = name.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise MoeguardError(f"cell: {name!r}; allowed: BACKEND/RECIPE or BACKEND/RECIPE/ARCH, for example triton/bf16")
        wanted.append(parts)
    return lambda cell: not wanted or any([cell.backend, cell.recipe, cell.arch][:len(parts)] == parts for parts in wanted)


def _flip(text: str | None) -> Flip | None:
    from moeguard.core.errors import MoeguardError

    if text is None:
        return None
    if text == "autotune=on":
        return "on"
    if text == "autotune=off":
        return "off"
    raise MoeguardError(f"--flip: {text!r}; allowed: autotune=on, autotune=off")


def _show(judgement: Judgement) -> None:
    from moeguard.gate.markdown import change

    for one in judgement.decisions:
        colour = "green" if not one.failed else "red"
        say(f"{change(one)} {one.cell.backend} {one.cell.recipe} {one.cell.arch} {judgement.level}", f"bold {colour}")
        tell(one)
    for stale in judgement.stale:
        say(stale.sentence, "yellow")
    say(judgement.sentence)


def tell(decision: Decision) -> None:
    """What stands against a decision and what would help, who waives what, the price of off, and the figures."""
    if decision.offer is not None:
        say(f"  quarantine: {decision.offer.sentence}", "cyan")
        for command in decision.offer.commands:
            say(f"    {command}", "dim")
    for failed in decision.failed:
        say(f"  {failed.name}: {failed.sentence}")
        if failed.command:
            say(f"    {failed.command}", "dim")
    for waiver in decision.waived:
        say(f"  {waiver.requirement}: {waiver.sentence}", "yellow")
    if decision.quarantined:
        say(f"  quarantined: {', '.join(decision.quarantined)}", "yellow")
    price = decision.price
    say(f"  {price.sentence}")
    if price.command:
        say(f"    {price.command}", "dim")
    if decision.evidence is not None:
        say(f"  evidence: {decision.evidence.sentence}", "dim")


def say(text: str, style: str | None = None) -> None:
    """One line on stdout, whatever its length."""
    from rich.text import Text

    output().print(Text(text, style or ""), highlight=False, soft_wrap=True)
