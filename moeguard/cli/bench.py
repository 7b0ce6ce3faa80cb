"""``moeguard bench``: default against tuned, backend beside backend, on the same layers."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli.console import output
from moeguard.cli.run import BackendOption, DeviceOption, JsonOption, LayerOption, PluginOption

if TYPE_CHECKING:
    from moeguard.checks.bench import Arm
    from moeguard.checks.session import Session

#: Layer and numbers of tokens of a measurement that names none.
DEFAULT_LAYER, DEFAULT_TOKENS = "Qwen3-30B-A3B", "512,8192"
#: Executions of a throughput, and the number of tokens above which a twentieth of them is made.
EXECUTIONS, SMALL = 2000, 256
#: Header of the human table.
_COLUMNS = ("layer", "T", "backend", "arm", "tactic", "verdict", "time", "ratio")


def bench(
    backend: BackendOption = None,
    recipe: Annotated[str, typer.Option("--recipe", help="Recipe.")] = "bf16",
    layer: LayerOption = None,
    tokens: Annotated[str, typer.Option("--tokens", help="Numbers of tokens, separated by commas.")] = DEFAULT_TOKENS,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the tensors.")] = 0,
    checked: Annotated[bool, typer.Option("--throughput", help="Checked executions a second beside bare calls, on fixed "
                                                               "cases.")] = False,
    device: DeviceOption = None,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Time the default and the tuned tactic of each backend, each judged first, side by side in one process.

    Exit code 1 when an answer is wrong or a call crashed, 3 when nothing was timed or a tuning was vacuous.
    """
    from moeguard.backends import registry
    from moeguard.checks.bench import bench as measure
    from moeguard.checks.session import Session
    from moeguard.checks.subject import Resources
    from moeguard.cli.layers import columns, named
    from moeguard.core.environment import fingerprint
    from moeguard.core.errors import MoeguardError, UnknownNameError
    from moeguard.core.recipe import RECIPES
    from moeguard.engine.options import Options, chosen_device
    from moeguard.engine.plugins import load_plugins

    added = load_plugins(plugin)
    device = chosen_device(device)
    if checked:
        from moeguard.checks.throughput import cases as fixed

        for option, given in (("--layer", layer), ("--tokens", tokens != DEFAULT_TOKENS)):
            if given:
                raise MoeguardError(f"--throughput: measures fixed cases; {option} is not allowed beside it")
        if recipe not in RECIPES:
            raise UnknownNameError("--recipe", recipe, list(RECIPES))
        cases = fixed(device, recipe, seed)
    else:
        cases = columns(named(layer or [DEFAULT_LAYER]), recipe, tokens, seed)
    names = tuple(dict.fromkeys(backend or added or list(registry.BUILTINS)))
    Options(backends=names, recipes=(recipe,), seed=seed, device=device,
            cases=tuple(case.model_dump(mode="json", by_alias=True) for _, case in cases)).check()
    absent = {name: reason for name in names if (reason := registry.unavailable(name)) is not None}
    resources = Resources(device)
    if checked:
        return _throughput([(label, Session(registry.get(name), case, resources)) for label, case in cases for name in names
                            if name not in absent], absent, fingerprint(device), recipe, as_json=as_json)
    rows: list[dict[str, Any]] = []
    for label, case in cases:
        for name in names:
            if name not in absent:
                arms = measure(Session(registry.get(name), case, resources))
                rows += [_row(label, case.shape.num_tokens, name, arm) for arm in arms]
        resources.release()
    for row in rows:
        fastest = min((other["seconds"] for other in rows if other["seconds"] and other["verdict"] == "ok"
                       and _place(other) == _place(row)), default=None)
        row["of_fastest"] = round(row["seconds"] / fastest, 3) if row["seconds"] and fastest else None
    if as_json:
        data = {"environment": fingerprint(device), "recipe": recipe, "rows": rows, "not_run": absent}
        sys.stdout.write(json.dumps(data) + "\n")
    else:
        _show(rows, absent)
    return _exit_code({row["verdict"] for row in rows}, timed=any(row["seconds"] for row in rows))


def _throughput(sessions: list[tuple[str, Session]], absent: dict[str, str], environment: dict[str, Any], recipe: str, *,
                as_json: bool) -> int:
    from rich.markup import escape
    from rich.table import Table

    from moeguard.checks.throughput import throughput

    rows: list[dict[str, Any]] = []
    for label, session in sessions:
        shape = session.case.shape
        done = throughput(session, EXECUTIONS if shape.num_tokens <= SMALL else EXECUTIONS // 20)
        rows.append({"case": label, "shape": shape.model_dump(), "backend": session.backend.name, "tactics": done.tactics,
                     "executions": done.executions, "seconds": done.seconds, "bare_seconds": done.bare_seconds,
                     "findings": [one.kind for one in session.findings], "reason": done.reason})
    if as_json:
        sys.stdout.write(json.dumps({"environment": environment, "recipe": recipe, "rows": rows, "not_run": absent}) + "\n")
    else:
        table = Table(title=None, box=None, pad_edge=False)
        for heading in ("case", "backend", "tactics", "executions", "checked/s", "us each", "us bare", "ratio", ""):
            table.add_column(heading, overflow="fold", min_width=len(heading))
        for row in rows:
            table.add_row(row["case"], row["backend"], str(row["tactics"]), str(row["executions"]), *_rates(row),
                          escape(row["reason"]))
        output().print(table)
    measured = any(row["executions"] for row in rows)
    return 1 if any(row["findings"] for row in rows) else 0 if measured else 3


def _rates(row: dict[str, Any]) -> list[str]:
    """Checked executions a second, microseconds of a checked and of a bare one, and the ratio of both."""
    number, seconds, bare = row["executions"], row["seconds"], row["bare_seconds"]
    if not number:
        return ["-"] * 4
    return [f"{number / seconds:.0f}", f"{seconds / number * 1e6:.0f}", f"{bare / number * 1e6:.0f}", f"{seconds / bare:.2f}"]


def _exit_code(verdicts: set[str], *, timed: bool) -> int:
    if verdicts & {"wrong", "crash"}:
        return 1
    return 3 if "vacuous" in verdicts or not timed else 0


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["layer"], row["tokens"]


def _row(label: str, tokens: int, backend: str, arm: Arm) -> dict[str, Any]:
    return {"layer": label, "tokens": tokens, "backend": backend, "arm": arm.name, "tactic": arm.tactic,
            "verdict": arm.verdict, "reason": arm.reason, "seconds": arm.seconds, "runs": arm.runs}


def _show(rows: list[dict[str, Any]], absent: dict[str, str]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from moeguard.report.text import brief

    table = Table(title=None, box=None, pad_edge=False)
    for heading in _COLUMNS:
        table.add_column(heading, overflow="fold", min_width=len(heading))
    for row in rows:
        verdict = row["verdict"] + (f": {row['reason']}" if row["reason"] else "")
        table.add_row(row["layer"], str(row["tokens"]), row["backend"], row["arm"], escape(row["tactic"] or "-"),
                      escape(verdict), brief(row["seconds"]) if row["seconds"] else "-",
                      f"{row['of_fastest']:.2f}" if row["of_fastest"] else "-")
    console = output()
    if rows:
        console.print(table)
    for name, reason in absent.items():
        console.print(f"not run: {escape(name)}: {escape(reason)}", highlight=False, soft_wrap=True)
