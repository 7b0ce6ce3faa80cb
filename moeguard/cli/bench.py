"""``moeguard bench``: default against tuned, backend beside backend, on the same layers."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli.run import BackendOption, DeviceOption, JsonOption, PluginOption

if TYPE_CHECKING:
    from moeguard.checks.bench import Arm

#: Header of the human table.
_COLUMNS = ("layer", "T", "backend", "arm", "tactic", "verdict", "µs", "of the fastest")


def bench(
    backend: BackendOption = None,
    recipe: Annotated[str, typer.Option("--recipe", help="Recipe.")] = "bf16",
    layer: Annotated[list[str] | None, typer.Option("--layer", help="Public model's layer; repeatable. MODEL/tpN: one "
                                                                    "tensor-parallel rank of N.")] = None,
    tokens: Annotated[str, typer.Option("--tokens", help="Numbers of tokens, separated by commas.")] = "512,8192",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the tensors.")] = 0,
    device: DeviceOption = None,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Time the default and the tuned tactic of each backend, each judged first, side by side in one process.

    Exit code 1 when an answer is wrong, 3 when nothing was timed.
    """
    from moeguard.backends import registry
    from moeguard.checks.bench import bench as measure
    from moeguard.checks.session import Session
    from moeguard.checks.subject import Resources
    from moeguard.cli.layers import cases
    from moeguard.core.environment import fingerprint
    from moeguard.engine.options import chosen_device
    from moeguard.engine.plugins import load_plugins

    columns = cases(layer or ["Qwen3-30B-A3B"], recipe, tokens, seed)
    added = load_plugins(plugin)
    device = chosen_device(device)
    names = list(dict.fromkeys(backend or added or list(registry.BUILTINS)))
    backends = [registry.get(name) for name in names]
    resources, rows = Resources(device), []
    for label, case in columns:
        for one in backends:
            availability = one.availability()
            if not availability.available:
                continue
            for arm in measure(Session(one, case, resources)):
                rows.append(_row(label, case.shape.num_tokens, one.name, arm))
        resources.release()
    for row in rows:
        fastest = min((other["seconds"] for other in rows if other["seconds"] and _place(other) == _place(row)), default=None)
        row["of_fastest"] = round(row["seconds"] / fastest, 3) if row["seconds"] and fastest else None
    if as_json:
        sys.stdout.write(json.dumps({"environment": fingerprint(device), "recipe": recipe, "rows": rows}) + "\n")
    else:
        _show(rows)
    if any(row["verdict"] in ("wrong", "crash") for row in rows):
        return 1
    return 0 if any(row["seconds"] for row in rows) else 3


def _place(row: dict[str, Any]) -> tuple[str, int]:
    return row["layer"], row["tokens"]


def _row(label: str, tokens: int, backend: str, arm: Arm) -> dict[str, Any]:
    return {"layer": label, "tokens": tokens, "backend": backend, "arm": arm.name, "tactic": arm.tactic,
            "verdict": arm.verdict, "seconds": arm.seconds, "runs": arm.runs}


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=None, box=None, pad_edge=False)
    for heading in _COLUMNS:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["layer"], str(row["tokens"]), row["backend"], row["arm"], escape(row["tactic"] or "-"),
                      escape(row["verdict"]), f"{row['seconds'] * 1e6:.1f}" if row["seconds"] else "-",
                      f"{row['of_fastest']:.2f}" if row["of_fastest"] else "-")
    Console().print(table)
