"""``moeguard replay``: one case again, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeguard.cli.run import DeviceOption, JsonOption, OutOption, PluginOption, TimeoutOption


def replay(
    case: Annotated[Path, typer.Argument(help="Case file, for example from <run>/cases/.")],
    backend: Annotated[str, typer.Option("--backend", help="Backend to run.")],
    tactic: Annotated[str | None, typer.Option("--tactic", help="Force this tactic only.")] = None,
    repeat: Annotated[int, typer.Option("--repeat", help="Run the case this many times.")] = 1,
    device: DeviceOption = None,
    timeout: TimeoutOption = "10s",
    plugin: PluginOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run the checks of one case file again and say what they find."""
    from moeguard.cli.campaign import conduct
    from moeguard.core.case import Case
    from moeguard.core.duration import duration
    from moeguard.engine.options import Options, chosen_device
    from moeguard.engine.plugins import load_plugins
    from moeguard.engine.rundir import RunDirectory

    value = Case.load(case)
    load_plugins(plugin)
    device = chosen_device(device)
    options = Options(
        backends=(backend,), recipes=(value.recipe,), profile="soak", device=device,
        timeout=duration(timeout, "--timeout"), plugins=tuple(str(file.resolve()) for file in plugin or ()),
        cases=(value.model_dump(mode="json", by_alias=True),), tactic=tactic, repeat=repeat)
    options.check()
    return conduct(RunDirectory.create(out, "replay", options), as_json=as_json)
