"""``moeguard doctor``: what this machine can run."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moeguard.cli.run import DeviceOption, JsonOption, PluginOption

if TYPE_CHECKING:
    from moeguard.engine.doctor import Diagnosis


def doctor(
    device: DeviceOption = None,
    timeout: Annotated[str, typer.Option("--timeout", help="Longest time of one probe.")] = "2m",
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what this machine is, and for each backend and recipe whether it runs here, or why not.

    Every library is probed in a process of its own, so that one that crashes on import is a line here and nothing more.
    """
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
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, environment = Console(), found.environment
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
    for problem in environment["problems"]:
        console.print(f"\nproblem: {escape(problem)}", highlight=False, soft_wrap=True)
