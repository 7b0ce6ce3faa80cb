"""``moeguard compare``: two backends on the same cases, who is wrong and where, and how far apart they are."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli.console import output
from moeguard.cli.run import DeviceOption, JsonOption, PluginOption, given_beside

if TYPE_CHECKING:
    from moeguard.checks.side_by_side import Comparison, Side
    from moeguard.core.case import Case

#: Cases of a comparison that names none.
MOST = 200


def compare(
    context: typer.Context,
    case: Annotated[list[Path] | None, typer.Argument(help="Case files; without any, cases are drawn.")] = None,
    backend: Annotated[list[str] | None, typer.Option("--backend", help="Backend to compare; twice.")] = None,
    recipe: Annotated[list[str] | None, typer.Option("--recipe", help="Recipe; repeatable. Default: all.")] = None,
    profile: Annotated[str, typer.Option("--profile", help="smoke, ci, nightly or soak.")] = "smoke",
    max_cases: Annotated[int, typer.Option("--max-cases", help="Cases to draw.")] = MOST,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    device: DeviceOption = None,
    plugin: PluginOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the cases on which a backend is wrong.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Hold two backends against each other on the same cases: who is wrong by the reference, where, and how far apart they are.

    One execution of each a case, in this process. A backend that has the batched activation format alone is combined as an engine
    does. Exit code 1 when a backend is wrong, 3 when no case could be compared.
    """
    from rich.console import Console
    from rich.progress import Progress

    from moeguard.backends import registry
    from moeguard.checks.side_by_side import side_by_side
    from moeguard.checks.subject import Resources
    from moeguard.core.case import Case
    from moeguard.core.errors import MoeguardError
    from moeguard.core.recipe import RECIPES
    from moeguard.engine.options import Options, chosen_device
    from moeguard.engine.plugins import load_plugins

    load_plugins(plugin)
    names = tuple(dict.fromkeys(backend or ()))
    if len(names) != 2:
        raise MoeguardError(f"--backend: {len(names)} named; allowed: two different ones")
    drawing = given_beside(context, "case", "backend", "device", "plugin", "out", "as_json") if case else None
    if drawing is not None:
        raise MoeguardError(f"{drawing}: says what is drawn; allowed: without case files")
    given = [Case.load(path) for path in case or ()]
    device = chosen_device(device)
    recipes = tuple(dict.fromkeys(recipe or list(RECIPES)))
    Options(backends=names, recipes=recipes, profile=profile, max_cases=max_cases, seed=seed, device=device,
            cases=tuple(one.model_dump(mode="json", by_alias=True) for one in given)).check()
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MoeguardError(f"--out: {out} cannot be made ({error.strerror}); allowed: a folder") from None
    absent = {name: reason for name in names if (reason := registry.unavailable(name)) is not None}
    comparisons: list[Comparison] = []
    console, total = Console(stderr=True), len(given) or max_cases
    if not absent:
        first, second = registry.get(names[0]), registry.get(names[1])
        with _few_threads(device), Progress(console=console, disable=as_json or not console.is_terminal, transient=True) as bar:
            task, resources = bar.add_task("cases", total=total), Resources(device)
            for one in given or _drawn(profile, device, recipes, seed, max_cases):
                comparisons.append(side_by_side(first, second, one, resources))
                bar.advance(task)
    if out is not None:
        _keep(comparisons, out)
    data = _data(comparisons, names, absent)
    if as_json:
        sys.stdout.write(json.dumps(data) + "\n")
    else:
        _show(data, names, out)
    outcomes = {one.outcome for one in comparisons}
    return 1 if any(one.wrong for one in comparisons) else 0 if "agree" in outcomes else 3


@contextlib.contextmanager
def _few_threads(device: str) -> Iterator[None]:
    """One thread of torch on a CPU, as in a worker: the problems are small, and threads would wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _drawn(profile: str, device: str, recipes: tuple[str, ...], seed: int, most: int) -> Iterator[Case]:
    from moeguard.fuzz.generation import draw_round
    from moeguard.fuzz.profiles import profile as named

    count = number = 0
    while True:
        for one in draw_round(named(profile, device), recipes, seed, number):
            if count == most:
                return
            yield one
            count += 1
        number += 1


def _keep(comparisons: list[Comparison], folder: Path) -> None:
    for one in comparisons:
        if one.wrong:
            (folder / f"{one.case.fingerprint}.json").write_text(one.case.to_json() + "\n", encoding="utf-8")


def _data(comparisons: list[Comparison], names: tuple[str, ...], absent: dict[str, str]) -> dict[str, Any]:
    rows = []
    for recipe in dict.fromkeys(one.case.recipe for one in comparisons):
        mine = [one for one in comparisons if one.case.recipe == recipe]
        shares = [one.distance.share for one in mine if one.outcome == "agree" and one.distance is not None]
        rows.append({"recipe": recipe, "cases": len(mine), "outcomes": dict(Counter(one.outcome for one in mine)),
                     "wrong": {name: sum(name in one.wrong for one in mine) for name in names},
                     "largest_distance": max(shares, default=None)})
    return {"backends": list(names), "cases": len(comparisons), "executions": sum(one.executions for one in comparisons),
            "rows": rows, "wrong": [_item(one) for one in comparisons if one.wrong], "not_run": absent,
            "refused": dict(Counter(f"{side.backend}: {side.reason}" for one in comparisons for side in one.sides
                                    if side.standing == "refused"))}


def _item(one: Comparison) -> dict[str, Any]:
    distance = one.distance
    place = None if distance is None else {"share": distance.share, "row": distance.row, "column": distance.column,
                                           "values": [distance.first, distance.second]}
    return {"case": one.case.model_dump(mode="json", by_alias=True), "fingerprint": one.case.fingerprint,
            "outcome": one.outcome, "sides": [_side(side) for side in one.sides], "distance": place}


def _side(side: Side) -> dict[str, Any]:
    return {"backend": side.backend, "activation_format": side.activation_format, "standing": side.standing,
            "findings": [{"kind": finding.kind, "sentence": finding.sentence} for finding in side.findings]}


def _show(data: dict[str, Any], names: tuple[str, ...], out: Path | None) -> None:
    from rich.table import Table

    console = output()
    table = Table(title=None, box=None, pad_edge=False)
    for heading in ("recipe", "cases", "agree", "A wrong", "B wrong", "both wrong", "skipped", "distance"):
        table.add_column(heading, justify="left" if heading == "recipe" else "right", no_wrap=True)
    for row in data["rows"]:
        found, far = row["outcomes"], row["largest_distance"]
        both = found.get("both wrong, alike", 0) + found.get("both wrong, apart", 0)
        table.add_row(row["recipe"], str(row["cases"]), str(found.get("agree", 0)),
                      *(str(row["wrong"][name] - both) for name in names), str(both), str(found.get("not compared", 0)),
                      "-" if far is None else f"{far:.2f}")
    console.print(f"A: {names[0]}, B: {names[1]}", markup=False, highlight=False, soft_wrap=True)
    if data["rows"]:
        console.print(table)
    shown: set[tuple[Any, ...]] = set()
    for item in data["wrong"]:
        kinds = tuple((side["backend"], finding["kind"]) for side in item["sides"] for finding in side["findings"])
        if (item["outcome"], kinds) in shown:
            continue
        shown.add((item["outcome"], kinds))
        lines = [f"{item['outcome']}: {item['case']['recipe']}, case {item['fingerprint']}"]
        lines += [f"  {side['backend']} ({side['activation_format']}): {finding['kind']}: {finding['sentence']}"
                  for side in item["sides"] for finding in side["findings"]]
        if item["distance"] is not None:
            one = item["distance"]
            lines.append(f"  furthest apart at row {one['row']}, column {one['column']}: {one['values'][0]:.4g} and "
                         f"{one['values'][1]:.4g}, {one['share']:.3g} times what both may be off together")
        console.print("", *lines, sep="\n", markup=False, highlight=False, soft_wrap=True)
    for name, reason in (data["not_run"] | data["refused"]).items():
        text = f"not run: {name}: {reason}" if name in data["not_run"] else f"not compared: {reason} cases: {name}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if out is not None and data["wrong"]:
        console.print(f"cases: {out}/", markup=False, highlight=False, soft_wrap=True)
