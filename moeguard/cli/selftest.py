"""``moeguard selftest``: the guard on its own mutants and on healthy backends."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from moeguard.cli.console import output
from moeguard.cli.run import DeviceOption, JsonOption


def selftest(
    profile: Annotated[str, typer.Option("--profile", help="smoke or ci: a quick look; nightly: 20,000 healthy executions; "
                                                           "soak: 100,000.")] = "smoke",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the drawn cases.")] = 0,
    device: DeviceOption = None,
    workers: Annotated[int, typer.Option("--workers", help="Worker processes.")] = 1,
    as_json: JsonOption = False,
) -> int:
    """Measure the guard: mutants caught, false alarms on healthy backends. A survivor or a false alarm exits 1."""
    from rich.console import Console
    from rich.progress import Progress

    from moeguard.core.errors import MoeguardError, UnknownNameError
    from moeguard.engine import selftest as engine
    from moeguard.engine.options import chosen_device

    if profile not in engine.HEALTHY_EXECUTIONS:
        raise UnknownNameError("--profile", profile, list(engine.HEALTHY_EXECUTIONS))
    if workers < 1:
        raise MoeguardError(f"--workers: {workers}; allowed: more than 0")
    device = chosen_device(device)
    console = Console(stderr=True)
    with Progress(console=console, disable=as_json or not console.is_terminal, transient=True) as bar:
        tasks = {stage: bar.add_task(stage, total=None) for stage in ("mutants", "healthy")}
        result = engine.selftest(
            profile_name=profile, device=device, seed=seed, workers=workers,
            progress=lambda stage, done, total: bar.update(tasks[stage], completed=done, total=total))
    if as_json:
        sys.stdout.write(json.dumps(result.to_data()) + "\n")
        return result.exit_code
    out = output()
    out.print(f"mutants caught: {result.caught} of {result.mutants}", highlight=False)
    out.print(f"false alarms: {result.false_alarms} in {result.healthy_executions} healthy executions", highlight=False)
    for survivor in result.survivors:
        out.print(f"survived: {survivor['mutant']} (expected {', '.join(survivor['expected'])}; seen {survivor['seen']})",
                  highlight=False, markup=False)
    for alarm in result.alarms:
        out.print(f"false alarm: {alarm['backend']} {alarm['kind']}: {alarm['sentence']}", highlight=False, markup=False)
    return result.exit_code
