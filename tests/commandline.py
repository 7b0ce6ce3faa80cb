"""The command line in this process, and what it did."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: Options of the campaigns in these tests.
SMOKE = ("--recipe", "bf16", "--profile", "smoke", "--device", "cpu")


class Called(NamedTuple):
    """What a command did: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        assert self.out.count("\n") == 1, self.out
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


class Run(NamedTuple):
    """A finished campaign and its directory."""

    called: Called
    path: Path

    @property
    def data(self) -> dict[str, Any]:
        """What ``--json`` printed."""
        return self.called.data


def call(*arguments: object) -> Called:
    """``moeguard`` with these arguments, in this process."""
    from moeguard.cli.main import main

    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["moeguard", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = argv
    code = ended.value.code
    assert isinstance(code, int)
    return Called(code, out.getvalue(), err.getvalue())


def without_times(data: dict[str, Any]) -> dict[str, Any]:
    """What ``--json`` printed, but for times and the place of the run."""
    timeless: dict[str, Any] = json.loads(
        json.dumps(data | {"run_dir": "", "seconds": 0}),
        object_hook=lambda value: {name: item for name, item in value.items() if "seconds" not in name})
    return timeless
