"""``moeguard sweep``: every tactic of a backend at given shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from moeguard.cli.run import (
    DeviceOption,
    JsonOption,
    LayerOption,
    LedgerOption,
    OutOption,
    PluginOption,
    StrictOption,
    TimeoutOption,
    ledger_file,
)

if TYPE_CHECKING:
    from moeguard.cli.layers import Sizes

#: H, I, E and K of a sweep that names neither sizes nor a layer.
DEFAULT_SHAPE = {"hidden": 256, "intermediate": 256, "experts": 8, "top_k": 2}


def sweep(
    backend: Annotated[str, typer.Option("--backend", help="Backend to run.")],
    recipe: Annotated[str, typer.Option("--recipe", help="Recipe.")],
    tokens: Annotated[str, typer.Option("--tokens", help="Numbers of tokens, separated by commas.")] = "1,64,8192",
    hidden: Annotated[int | None, typer.Option("--hidden", help="Hidden size H. Default: 256.")] = None,
    intermediate: Annotated[int | None, typer.Option("--intermediate",
                                                     help="Intermediate size I. Default: 256.")] = None,
    experts: Annotated[int | None, typer.Option("--experts", help="Experts E. Default: 8.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Experts of a token, K. Default: 2.")] = None,
    layer: LayerOption = None,
    activation: Annotated[str, typer.Option("--activation", help="Activation.")] = "swiglu",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the tensors.")] = 0,
    repeat: Annotated[int, typer.Option("--repeat", help="Force every tactic this many times.")] = 1,
    device: DeviceOption = None,
    timeout: TimeoutOption = "10s",
    plugin: PluginOption = None,
    ledger: LedgerOption = None,
    strict: StrictOption = False,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> int:
    """Force every tactic, judge and time it, and show which is right and which is fast.

    A tactic that crashes or hangs is a finding; the sweep goes on with the next one.
    """
    from moeguard.cli.campaign import conduct
    from moeguard.cli.layers import columns
    from moeguard.core.duration import duration
    from moeguard.engine.options import Options, chosen_device
    from moeguard.engine.plugins import load_plugins
    from moeguard.engine.rundir import RunDirectory

    layers = _layers(layer, {"hidden": hidden, "intermediate": intermediate, "experts": experts, "top_k": top_k})
    cases = columns(layers, recipe, tokens, seed, activation)
    load_plugins(plugin)
    device = chosen_device(device)
    options = Options(
        backends=(backend,), recipes=(recipe,), profile="soak", seed=seed, device=device,
        timeout=duration(timeout, "--timeout"), plugins=tuple(str(file.resolve()) for file in plugin or ()),
        cases=tuple(case.model_dump(mode="json", by_alias=True) for _, case in cases),
        labels=tuple(name for name, _ in cases) if layer else (), repeat=repeat, sweep=True,
        ledger=ledger_file(ledger), strict=strict)
    options.check()
    return conduct(RunDirectory.create(out, "sweep", options), as_json=as_json)


def _layers(names: list[str] | None, given: dict[str, int | None]) -> list[tuple[str, Sizes]]:
    """The layers of a sweep: those that are named, or one without a name that has the sizes."""
    from moeguard.cli.layers import named
    from moeguard.core.errors import MoeguardError

    stated = {name: value for name, value in given.items() if value is not None}
    if not names:
        return [("", DEFAULT_SHAPE | stated)]
    if stated:
        option = f"--{next(iter(stated)).replace('_', '-')}"
        raise MoeguardError(f"--layer: sets every size; {option} is not allowed beside it")
    return named(names)
