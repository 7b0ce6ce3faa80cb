"""``moeguard router``: routers against float64, from logits to experts and weights."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moeguard.cli.console import output
from moeguard.cli.run import DeviceOption, JsonOption, PluginOption

if TYPE_CHECKING:
    from moeguard.engine.routers import RouterRun


def router(
    routers: Annotated[list[str] | None, typer.Option(
        "--router", help="Router to run; repeatable. Default: those of the plug-ins, or else all built-in ones.")] = None,
    method: Annotated[list[str] | None, typer.Option(
        "--method", help="softmax_topk, renormalize, sigmoid_bias, grouped_topk or llama4_sigmoid; repeatable. "
                         "Default: all.")] = None,
    max_cases: Annotated[int, typer.Option("--max-cases", help="Cases to draw.")] = 200,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the drawn cases.")] = 0,
    case: Annotated[str | None, typer.Option("--case", help="Run this case, as JSON, instead of drawn ones.")] = None,
    device: DeviceOption = None,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check what routers select and weigh: NaN, -inf, ties, negative scores, bias and groups, each token by a derived margin.

    Runs in this process. Exit code 1 on findings, 3 when no router could run.
    """
    from rich.console import Console
    from rich.progress import Progress

    from moeguard.backends.routers import registry
    from moeguard.core.errors import MoeguardError, UnknownNameError
    from moeguard.core.router import METHODS, RouterCase
    from moeguard.engine.options import chosen_device
    from moeguard.engine.plugins import load_plugins
    from moeguard.engine.routers import run_routers
    from moeguard.fuzz.router_cases import draw_router_cases

    methods = tuple(known for known in METHODS if known in (method or METHODS))
    for name in method or ():
        if name not in METHODS:
            raise UnknownNameError("--method", name, list(METHODS))
    if max_cases < 1:
        raise MoeguardError(f"--max-cases: {max_cases}; allowed: more than 0")
    if case is not None and method:
        raise MoeguardError("--method: the case names its method; allowed: --method without --case")
    cases = [RouterCase.from_json(case)] if case is not None else list(draw_router_cases(max_cases, seed, methods))
    chosen = chosen_device(device)
    from_plugins = load_plugins(plugin, routers=True)
    names = list(dict.fromkeys(routers or from_plugins or registry.BUILTINS))
    for name in names:
        registry.get(name)
    console = Console(stderr=True)
    with Progress(console=console, disable=as_json or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("routers", total=len(names) * len(cases))
        run = run_routers(names, cases, chosen, [str(file) for file in plugin or ()], lambda: bar.advance(task))
    if as_json:
        sys.stdout.write(json.dumps(run.to_data()) + "\n")
    else:
        _show(run)
    return run.exit_code


def _show(run: RouterRun) -> None:
    from rich.table import Table

    from moeguard.cli.gate import say
    from moeguard.report.text import count

    table = Table(box=None, pad_edge=False)
    table.add_column("router")
    for heading in ("cases", "refused", "tokens", "undefined", "near ties"):
        table.add_column(heading, justify="right")
    for one in run.tallies:
        if one.reason is None:
            table.add_row(one.router, *map(str, (one.cases, one.refused, one.tokens, one.undefined, one.near_ties)))
    if table.row_count:
        output().print(table)
    for one in run.tallies:
        if one.reason is not None:
            say(f"not verified: {one.router}: {one.reason}", "yellow")
    for finding in run.findings:
        say(f"{finding.kind}: {finding.router}: {finding.sentence} "
            f"({count(run.occurrences[finding.fingerprint], 'case')})", "red")
        say(f"  {run.replay(finding)}")
    say(f"{run.verdict}: {count(run.cases, 'case')} in {run.seconds:.1f} s")
