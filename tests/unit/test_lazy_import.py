"""``import moeguard`` is cheap: nothing heavy is loaded before it is used."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import pytest
from commandline import ROOT

import moeguard

HEAVY = ("torch", "hypothesis", "pydantic", "scipy", "numpy", "pandas", "pyarrow", "matplotlib", "jinja2", "rich",
         "typer", "pytest")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    return done.stdout


def test_nothing_heavy_is_imported() -> None:
    loaded = python("import sys, moeguard; print(*(name.partition('.')[0] for name in sys.modules))").split()
    assert set(HEAVY) & set(loaded) == set()


def test_nothing_heavy_is_imported_for_the_help_of_the_command() -> None:
    loaded = python("import sys, moeguard.cli.main; print(*(name.partition('.')[0] for name in sys.modules))").split()
    assert {"torch", "hypothesis", "scipy", "pandas", "matplotlib"} & set(loaded) == set()


def test_importing_takes_less_than_50_ms() -> None:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        python(code)
        return time.perf_counter() - start

    pairs = [seconds("import moeguard") - seconds("pass") for _ in range(7)]
    assert statistics.median(pairs) < 0.05


@pytest.mark.parametrize("name", moeguard.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(moeguard, name) is not None
    assert name in dir(moeguard)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="moeguard.*'nope'"):
        moeguard.nope  # noqa: B018
