"""``moeguard run``: the fuzz campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BackendOption = Annotated[list[str] | None, typer.Option("--backend", help="Backend to run; repeatable. Default: all built-in.")]
PluginOption = Annotated[list[Path] | None, typer.Option(
    "--plugin", help="Python file that registers backends or routers; repeatable.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Run directory. Default: reports/<run-id>.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu or cuda. Default: cuda when there is one.")]
TimeoutOption = Annotated[str, typer.Option("--timeout", help="Longest time of one call; prepare and tune get 12 times it.")]
LayerOption = Annotated[list[str] | None, typer.Option(
    "--layer", help="Take H, I, E and K of this public model; MODEL/tpN: one tensor-parallel rank of N. Repeatable.")]
LedgerOption = Annotated[str | None, typer.Option(
    "--ledger", help="File of known findings, or 'packaged'. Default: packaged.")]
StrictOption = Annotated[bool, typer.Option(
    "--strict", help="Known findings fail the run too; cases that are known to kill the process are launched.")]

#: Budget of a run that names neither a budget nor a number of cases.
DEFAULT_BUDGET = 60.0


def run(
    context: typer.Context,
    backend: BackendOption = None,
    recipe: Annotated[list[str] | None, typer.Option("--recipe", help="Recipe; repeatable. Default: all.")] = None,
    profile: Annotated[str, typer.Option("--profile", help="smoke, ci, nightly or soak.")] = "ci",
    budget: Annotated[str | None, typer.Option("--budget", help="Time to spend, for example 60s or 5m.")] = None,
    max_cases: Annotated[int | None, typer.Option("--max-cases", help="Cases to draw at most.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    device: DeviceOption = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Worker processes. Default: 1; for cuda half of the CPUs, "
                                                               "at most 6.")] = None,
    timeout: TimeoutOption = "10s",
    plugin: PluginOption = None,
    ledger: LedgerOption = None,
    strict: StrictOption = False,
    ray: Annotated[str | None, typer.Option(
        "--ray", help="Run on the hosts of this Ray cluster (HOST:PORT, or auto): one actor a GPU or CPU slot.")] = None,
    out: OutOption = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with an interrupted run; takes its options.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Fuzz backends side by side, watch and judge every execution, and write a report."""
    from moeguard.backends import registry
    from moeguard.cli.campaign import conduct
    from moeguard.core.duration import duration
    from moeguard.core.recipe import RECIPES
    from moeguard.engine.options import Options, check_device, chosen_device, known_device, usual_workers
    from moeguard.engine.plugins import load_plugins
    from moeguard.engine.rundir import RunDirectory

    if resume is not None:
        nothing_beside_resume(context)
        directory = RunDirectory.open(resume)
        load_plugins(directory.options.plugins)
        directory.options.check()
        if directory.options.ray is None:
            check_device(directory.options.device)
        return conduct(directory, as_json=as_json)
    plugins = tuple(str(file.resolve()) for file in plugin or ())
    from_plugins = load_plugins(plugin)
    site = None
    if ray is not None:
        from moeguard.engine.cluster import survey

        site = survey(ray, known_device(device))
    device = site.device if site else chosen_device(device)
    usual = site.slots if site else usual_workers(device)
    options = Options(
        backends=tuple(dict.fromkeys(backend or from_plugins or list(registry.BUILTINS))),
        recipes=tuple(dict.fromkeys(recipe or list(RECIPES))), profile=profile,
        budget=duration(budget) if budget is not None else None if max_cases is not None else DEFAULT_BUDGET,
        max_cases=max_cases, seed=seed, device=device, workers=usual if workers is None else workers,
        timeout=duration(timeout, "--timeout"), plugins=plugins,
        ledger=ledger_file(ledger), strict=strict, ray=ray)
    options.check()
    return conduct(RunDirectory.create(out, "run", options, site.environment if site else None), as_json=as_json)


def nothing_beside_resume(context: typer.Context) -> None:
    """Raises MoeguardError when ``--resume`` has an option beside it, other than ``--json``."""
    from moeguard.core.errors import MoeguardError

    option = given_beside(context, "resume", "as_json")
    if option is not None:
        raise MoeguardError(f"--resume: takes every option from the run directory; {option} is not allowed beside it")


def given_beside(context: typer.Context, *allowed: str) -> str | None:
    """The first option on the command line whose parameter is not among ``allowed``."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in allowed and source is not None and source.name == "COMMANDLINE":
            return parameter.opts[0]
    return None


def ledger_file(name: str | None) -> str | None:
    """The absolute path of a ledger; None for the packaged one."""
    from moeguard.ledger.file import PACKAGED

    return None if name is None or name == PACKAGED else str(Path(name).resolve())
