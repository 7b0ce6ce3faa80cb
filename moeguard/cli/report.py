"""``moeguard report``: the report again, from the stored run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from moeguard.cli.run import JsonOption


def report(directory: Annotated[Path, typer.Argument(help="Run directory.")], as_json: JsonOption = False) -> int:
    """Write every derived file of a run again and print its result. Exits as the run did."""
    from moeguard.cli.campaign import derive, show
    from moeguard.engine.rundir import RunDirectory

    run = RunDirectory.open(directory)
    outcome = derive(run, run.events())
    if as_json:
        sys.stdout.write(json.dumps(outcome.to_data(str(run.path))) + "\n")
    else:
        show(outcome, run)
    return outcome.exit_code
