"""``moeguard sweep``: every tactic of a backend at given shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from moeguard.cli.run import (
    DeviceOption,
    JsonOption,
    LedgerOption,
    OutOption,
    PluginOption,
    StrictOption,
    TimeoutOption,
    ledger_file,
)

if TYPE_CHECKING:
    from moeguard.core.case import Case

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
    layer: Annotated[str | None, typer.Option("--layer", help="Take H, I, E and K of this model instead.")] = None,
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
    from moeguard.core.duration import duration
    from moeguard.engine.options import Options, chosen_device
    from moeguard.engine.plugins import load_plugins
    from moeguard.engine.rundir import RunDirectory

    sizes = _sizes(layer, {"hidden": hidden, "intermediate": intermediate, "experts": experts, "top_k": top_k})
    cases = [_case(recipe, activation, seed, number, sizes) for number in _numbers(tokens)]
    load_plugins(plugin)
    device = chosen_device(device)
    options = Options(
        backends=(backend,), recipes=(recipe,), profile="soak", seed=seed, device=device,
        timeout=duration(timeout, "--timeout"), plugins=tuple(str(file.resolve()) for file in plugin or ()),
        cases=tuple(case.model_dump(mode="json", by_alias=True) for case in cases), repeat=repeat, sweep=True,
        ledger=ledger_file(ledger), strict=strict)
    options.check()
    return conduct(RunDirectory.create(out, "sweep", options), as_json=as_json)


def _numbers(tokens: str) -> list[int]:
    """Distinct numbers of ``1,64,8192``, in increasing order. Raises MoeguardError on anything else."""
    from moeguard.core.errors import MoeguardError

    try:
        numbers = sorted({int(part) for part in tokens.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise MoeguardError(f"--tokens: {tokens!r}; allowed: numbers of 1 or more, separated by commas (1,64,8192)")
    return numbers


def _sizes(layer: str | None, given: dict[str, int | None]) -> dict[str, int]:
    from moeguard.core.errors import MoeguardError, UnknownNameError
    from moeguard.fuzz.boundaries import LAYERS

    stated = {name: value for name, value in given.items() if value is not None}
    if layer is None:
        return DEFAULT_SHAPE | stated
    if stated:
        option = f"--{next(iter(stated)).replace('_', '-')}"
        raise MoeguardError(f"--layer: sets every size; {option} is not allowed beside it")
    for one in LAYERS:
        if one.model.lower() == layer.lower():
            return {"hidden": one.hidden_size, "intermediate": one.intermediate_size, "experts": one.num_experts,
                    "top_k": one.top_k}
    raise UnknownNameError("--layer", layer, [one.model for one in LAYERS])


def _case(recipe: str, activation: str, seed: int, tokens: int, sizes: dict[str, int]) -> Case:
    """The case of one column. Raises CaseError, or MoeguardError that names the option."""
    from pydantic import ValidationError

    from moeguard.core.case import Activation, Case, describe
    from moeguard.core.errors import CaseError, MoeguardError, UnknownNameError
    from moeguard.core.recipe import PLANNED_RECIPES, RECIPES

    if recipe not in (*RECIPES, *PLANNED_RECIPES):
        raise UnknownNameError("--recipe", recipe, list(RECIPES))
    activations = get_args(Activation.model_fields["kind"].annotation)
    if activation not in activations:
        raise UnknownNameError("--activation", activation, list(activations))
    for name, value in sizes.items():
        if value < 1:
            raise MoeguardError(f"--{name.replace('_', '-')}: {value}; allowed: 1 or more")
    if sizes["top_k"] > sizes["experts"]:
        raise MoeguardError(f"--top-k: {sizes['top_k']} exceeds --experts {sizes['experts']}")
    shape = {"num_tokens": tokens, "hidden_size": sizes["hidden"], "intermediate_size": sizes["intermediate"],
             "num_experts": sizes["experts"], "top_k": sizes["top_k"]}
    try:
        return Case.model_validate({"shape": shape, "recipe": recipe, "activation": {"kind": activation}, "seed": seed})
    except ValidationError as error:
        raise CaseError(f"sweep: {describe(error)}") from None
