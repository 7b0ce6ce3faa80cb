"""``moeguard eval model``: what backends do to the logits and the text of a model, against float32 and healthy noise."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeguard.cli.console import output
from moeguard.cli.run import BackendOption, DeviceOption, JsonOption, PluginOption

if TYPE_CHECKING:
    from moeguard.models.differential import Result, Setting
    from moeguard.models.experts import Arm


def model(
    arch: Annotated[str, typer.Option("--arch", help="mixtral, qwen3_moe, deepseek_v3 or gpt_oss.")] = "mixtral",
    backend: BackendOption = None,
    tuned: Annotated[bool, typer.Option("--tuned", help="Each backend once more, on the tactics of its tuning.")] = False,
    mutants: Annotated[bool, typer.Option("--mutants", help="Broken arms as well, to see what this can tell apart.")] = False,
    recipe: Annotated[str, typer.Option("--recipe", help="Recipe of the experts.")] = "bf16",
    layers: Annotated[int, typer.Option("--layers", help="Layers of the model.")] = 2,
    size: Annotated[str | None, typer.Option("--size", help="real or toy layers. Default: real on a GPU, toy on a CPU.")] = None,
    texts: Annotated[int, typer.Option("--texts", help="Prompts.")] = 4,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of each prompt.")] = 64,
    length: Annotated[int, typer.Option("--length", help="Greedy tokens after each prompt.")] = 16,
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights and prompts.")] = 0,
    device: DeviceOption = None,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a model of random weights with its experts computed by each backend, and compare with the same in float32.

    Everything but the experts is float32 and equal, and tokens are routed as in the float32 run, so that logits differ by what
    the backends answer alone. Greedy texts are routed by each arm itself. No download.

    Exit codes: 0 within the noise of two healthy low-precision arms, 1 outside it, 3 nothing was compared.
    """
    from rich.console import Console
    from rich.progress import Progress

    from moeguard.core.environment import fingerprint
    from moeguard.core.errors import MoeguardError
    from moeguard.engine.options import chosen_device
    from moeguard.engine.plugins import load_plugins
    from moeguard.models.architecture import architecture
    from moeguard.models.differential import Setting, differential

    added = load_plugins(plugin)
    device = chosen_device(device)
    for option, value, least in (("--layers", layers, 1), ("--texts", texts, 1), ("--tokens", tokens, 1), ("--length", length, 0),
                                 ("--seed", seed, 0)):
        if value < least:
            raise MoeguardError(f"{option}: {value}; allowed: {least} or more")
    if size not in (None, "real", "toy"):
        raise MoeguardError(f"--size: {size!r}; allowed: real, toy")
    setting = Setting(architecture(arch), "toy" if size == "toy" or (size is None and device == "cpu") else "real", layers,
                      recipe, texts, tokens, length, seed, device)
    setting.check()
    arms, absent = _arms(backend or added or None, setting, tuned=tuned, mutants=mutants)
    console = Console(stderr=True)
    with Progress(console=console, disable=as_json or not console.is_terminal, transient=True) as bar:
        task = bar.add_task("arms", total=len(arms) + 3)  # and float32 and the healthy ones
        results = differential(setting, arms, lambda name: bar.advance(task))
    broken = {arm.name for arm in arms if arm.broken}
    judged = [one for one in results if not one.healthy and one.arm not in broken]
    code = _exit_code(judged)
    if as_json:
        verdict = {0: "within noise", 1: "outside noise", 3: "inconclusive"}[code]
        sys.stdout.write(json.dumps({"verdict": verdict, "setting": setting.to_data(), "environment": fingerprint(device),
                                     "arms": [_row(one, broken) for one in results], "not_run": absent}) + "\n")
    else:
        _show(results, broken, absent)
    return code


def _arms(names: Sequence[str] | None, setting: Setting, *, tuned: bool, mutants: bool) -> tuple[list[Arm], dict[str, str]]:
    """The arms, and why a backend has none."""
    from moeguard.backends import registry
    from moeguard.models.differential import broken_arms
    from moeguard.models.experts import Arm, OfBackend

    case, arms, absent = setting.cases()[0], list[Arm](), {}
    for name in dict.fromkeys(names or registry.BUILTINS):
        one = registry.get(name)
        reason = registry.unavailable(name)
        if reason is None and not (support := one.supports(case)).supported:
            reason = support.reason or "the backend does not support the layer"
        if reason is not None:
            absent[name] = reason
            continue
        arms += [OfBackend(one), *([OfBackend(one, tuned=True)] if tuned else [])]
    return arms + (broken_arms(case) if mutants else []), absent


def _exit_code(judged: Sequence[Result]) -> int:
    outcomes = {"outside noise" if one.failed or one.placed is None else one.placed.outcome for one in judged}
    return 1 if "outside noise" in outcomes else 0 if "within noise" in outcomes else 3


def _row(one: Result, broken: set[str]) -> dict[str, Any]:
    """An arm as JSON; numbers that are not finite are null."""
    kind = "healthy" if one.healthy else "broken" if one.arm in broken else "backend"
    row: dict[str, Any] = {"name": one.arm, "kind": kind, "failed": one.failed or None}
    if one.distance is None or one.placed is None:
        return row | {"outcome": "outside noise"}
    return row | {
        "outcome": one.placed.outcome, "overall": _finite(one.placed.overall), "position": _finite(one.placed.position),
        "worst": one.placed.worst, "error": _finite(one.distance.overall), "kl_mean": _finite(one.distance.kl[0]),
        "kl_max": _finite(one.distance.kl[1]), "flips": one.distance.flips, "positions": len(one.distance.error),
        "diverged": list(one.distance.diverged), "tactics": one.tactics}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _show(results: Sequence[Result], broken: set[str], absent: dict[str, str]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("arm", "", "error", "worst", "KL", "flips", "text"):
        table.add_column(heading, overflow="fold")
    for one in results:
        name = f"{one.arm} (healthy)" if one.healthy else f"{one.arm} (broken)" if one.arm in broken else one.arm
        if one.distance is None or one.placed is None:
            table.add_row(name, "outside noise", escape(one.failed))
            continue
        steps = [step for step in one.distance.diverged if step is not None]
        text = "same" if not steps else f"{len(steps)} of {len(one.distance.diverged)} differ, the first at {min(steps)}"
        table.add_row(name, one.placed.outcome, f"x{one.placed.overall:.2f}", f"x{one.placed.position:.2f} at {one.placed.worst}",
                      f"{one.distance.kl[0]:.1e}", f"{one.distance.flips} of {len(one.distance.error)}", text)
    console = output()
    console.print(table)
    for name, reason in absent.items():
        console.print(f"{name} was not run: {escape(reason)}", highlight=False)
    apart = [one for one in results if one.arm in broken]
    if apart:
        told = sum(one.placed is None or one.placed.outcome == "outside noise" for one in apart)
        console.print(f"{told} of {len(apart)} broken arms are outside the noise", highlight=False)
