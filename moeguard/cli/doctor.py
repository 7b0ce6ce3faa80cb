"""``moeguard doctor``: what this machine can run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli.console import output
from moeguard.cli.run import DeviceOption, JsonOption, PluginOption
from moeguard.core.errors import MoeguardError

if TYPE_CHECKING:
    from moeguard.engine.doctor import Diagnosis


def doctor(
    device: DeviceOption = None,
    timeout: Annotated[str, typer.Option("--timeout", help="Longest time of one probe.")] = "2m",
    plugin: PluginOption = None,
    wheels: Annotated[list[Path] | None, typer.Option(
        "--wheels", help="A folder with an unpacked flashinfer-python; once for each release. Instead of this machine.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="With --wheels: write the matrix to this file.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Say what this machine is, and for each backend and recipe whether it runs here, or why not.

    Every library is probed in a process of its own, so that one that crashes on import is a line here and nothing more. With
    --wheels, say for releases of FlashInfer which calls of which adapter they take; this needs no GPU.
    """
    if wheels:
        return _wheels(wheels, timeout, markdown, as_json)
    if markdown is not None:
        raise MoeguardError("--markdown: allowed with --wheels alone")
    from rich.console import Console

    from moeguard.core.duration import duration
    from moeguard.engine.doctor import diagnose

    seconds = duration(timeout, "--timeout")
    console = Console(stderr=True)
    with console.status("probing") as status:
        found = diagnose(tuple(str(file.resolve()) for file in plugin or ()), device, timeout=seconds,
                         progress=lambda what: status.update(f"probing {what}"))
    if as_json:
        sys.stdout.write(json.dumps(found.to_data()) + "\n")
    else:
        _show(found)
    return 0


def _show(found: Diagnosis) -> None:
    from rich.markup import escape
    from rich.table import Table

    console, environment = output(), found.environment
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    gpu = environment["gpu"] and f"{environment['gpu']} ({environment['arch']})"
    dsl = environment["cutlass_dsl"]
    rows = [
        ("device", environment["device"]),
        ("GPU", gpu or ("none" if not environment["gpus"] else f"{environment['gpus']} present, not asked for")),
        ("driver", environment["driver"]), ("CUDA", environment["cuda"]),
        ("platform", f"{environment['platform']}, {environment['machine']}, {environment['cpus']} CPUs"),
        ("Python", environment["python"]),
        *((name, f"{entry['version']}{'' if entry['works'] else ': ' + str(entry['reason'])}" if entry["version"]
           else "not installed") for name, entry in environment["libraries"].items()),
        *environment["companions"].items(),
        ("cutlass-dsl flavour", dsl["flavour"] and f"{dsl['flavour']} ({', '.join(dsl['distributions'])})"),
    ]
    for name, value in rows:
        facts.add_row(escape(name), escape(str(value or "none")))
    console.print(facts)
    table = Table(box=None, pad_edge=False)
    for heading in ("backend", "recipe", "runs here", "reason"):
        table.add_column(heading, overflow="fold")
    for row in found.backends:
        table.add_row(row["name"], row["recipe"], "[green]yes[/]" if row["available"] else "[yellow]no[/]",
                      escape(row["reason"] or ""))
    console.print()
    console.print(table)
    if environment["flashinfer_contract"] is not None:
        _matrix(console, [environment["flashinfer_contract"]])
    for problem in environment["problems"]:
        console.print(f"\nproblem: {escape(problem)}", highlight=False, soft_wrap=True)


def _wheels(folders: Sequence[Path], timeout: str, target: Path | None, as_json: bool) -> int:
    """The matrix of some releases."""
    from rich.console import Console

    from moeguard.core.duration import duration
    from moeguard.engine.wheels import examine
    from moeguard.report.wheels import markdown

    seconds = duration(timeout, "--timeout")
    with Console(stderr=True).status("asking") as status:
        answers = examine(folders, timeout=seconds, progress=lambda what: status.update(f"asking {what}"))
    if target is not None:
        try:
            target.write_text(markdown(answers), encoding="utf-8")
        except OSError as error:
            raise MoeguardError(f"--markdown: cannot write {target} ({type(error).__name__})") from None
    if as_json:
        sys.stdout.write(json.dumps({"wheels": answers}) + "\n")
    else:
        _matrix(output(), answers)
    return 0


def _matrix(console: Any, answers: Sequence[Mapping[str, Any]]) -> None:
    """Adapters and recipes by release, then every reason and every layout that moved."""
    from rich.markup import escape
    from rich.table import Table

    from moeguard.report.wheels import cells

    table = Table(box=None, pad_edge=False)
    for heading in ("adapter", "recipe", *(f"FlashInfer {answer['version']}" for answer in answers)):
        table.add_column(heading, overflow="fold")
    for adapter, recipe, found in cells(answers):
        table.add_row(adapter, recipe, *(
            "-" if row is None else "[green]calls bind[/]" if row["holds"] else f"[yellow]no[/]: {escape(str(row['reason']))}"
            for row in found))
    console.print()
    console.print(table)
    for answer in answers:
        said = [answer["failure"]] if "failure" in answer else [
            *answer["table"], *(f"{one['function']}: {one['moved']}" for one in answer["layouts"] if one["moved"])]
        for line in said:
            console.print(f"\nFlashInfer {answer['version']}: {escape(line)}", highlight=False, soft_wrap=True)
        if answer.get("stood_in"):
            console.print(f"\nFlashInfer {answer['version']}: stood in for {', '.join(answer['stood_in'])}", highlight=False,
                          soft_wrap=True)
