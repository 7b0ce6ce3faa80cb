"""``moeguard replay``: one case again, exactly, or every case of a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeguard.cli.run import (
    DeviceOption,
    JsonOption,
    OutOption,
    PluginOption,
    StrictOption,
    TimeoutOption,
    ledger_file,
)


def replay(
    case: Annotated[Path | None, typer.Argument(help="Case file, for example from <run>/cases/.")] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="Backend to run.")] = None,
    after: Annotated[list[Path] | None, typer.Option(
        "--after", help="Case file to run first, in the same process; repeatable, in order.")] = None,
    tactic: Annotated[str | None, typer.Option("--tactic", help="Force this tactic only.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", help="Run the case this many times.")] = 1,
    device: DeviceOption = None,
    timeout: TimeoutOption = "10s",
    plugin: PluginOption = None,
    ledger: Annotated[str | None, typer.Option(
        "--ledger", metavar="[F]",
        help="File of known findings (default: packaged). Without a case: run the case of each of its entries.")] = None,
    strict: StrictOption = False,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run the checks of one case file again and say what they find.

    With --ledger and without a case: run the case of each known finding, and fail when one no longer occurs.
    """
    from moeguard.cli.campaign import conduct
    from moeguard.core.case import Case
    from moeguard.core.duration import duration
    from moeguard.core.errors import MoeguardError
    from moeguard.engine.options import Options, chosen_device
    from moeguard.engine.plugins import load_plugins
    from moeguard.engine.rundir import RunDirectory

    if case is None and ledger is not None:
        from moeguard.cli import recheck

        for option, given in (("--after", bool(after)), ("--tactic", tactic is not None), ("--out", out is not None),
                              ("--strict", strict)):
            if given:
                raise MoeguardError(f"{option}: needs a case file; allowed beside --ledger alone: --backend, --repeat, "
                                    "--device, --timeout, --plugin")
        if repeat < 1:
            raise MoeguardError(f"--repeat: {repeat}; allowed: more than 0")
        return recheck.conduct(ledger, backend, plugin or (), chosen_device(device), duration(timeout, "--timeout"), repeat,
                               as_json=as_json)
    if case is None:
        raise MoeguardError("CASE: missing; allowed: a case file, or --ledger for every case of the ledger")
    value = Case.load(case)
    cases = [*map(Case.load, after or ()), value]
    if backend is None:
        raise MoeguardError("--backend: missing; allowed: the name of a backend")
    load_plugins(plugin)
    device = chosen_device(device)
    options = Options(
        backends=(backend,), recipes=tuple(dict.fromkeys(one.recipe for one in cases)), profile="soak", device=device,
        timeout=duration(timeout, "--timeout"), plugins=tuple(str(file.resolve()) for file in plugin or ()),
        cases=tuple(one.model_dump(mode="json", by_alias=True) for one in cases), tactic=tactic, repeat=repeat,
        ledger=ledger_file(ledger), strict=strict)
    options.check()
    return conduct(RunDirectory.create(out, "replay", options), as_json=as_json)
