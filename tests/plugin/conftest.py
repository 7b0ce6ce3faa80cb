"""pytest with moeguard's plug-in, in a folder of its own."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import pytest
from commandline import ROOT

#: What makes pytest load the plug-in where the package is not installed.
LOADED = () if "moeguard" in entry_points(group="pytest11").names else ("-p", "moeguard.pytest_plugin")
#: One cell of one backend, quickly.
QUICK = ("--moeguard", "--moeguard-backend=loop", "--moeguard-recipe=bf16", "--moeguard-budget=1s")


class Ran(NamedTuple):
    """A finished test run: exit code, stdout, and outcome by test id from its JUnit file."""

    code: int
    out: str
    tests: dict[str, str]
    junit: ElementTree.Element


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package can be imported, and the outer test run is not seen."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in [name for name in os.environ if name.startswith(("PYTEST_XDIST", "PYTEST_CURRENT", "PYTEST_ADDOPTS"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def in_process(environment: None, clean_registry: None) -> None:
    """What a test run in this process must find loaded: it forgets modules that it was the first to import."""
    import hypothesis
    import torch

    import moeguard.plugin.collection
    import moeguard.plugin.parameters

    assert torch and hypothesis and moeguard


@pytest.fixture
def run(pytester: pytest.Pytester, in_process: None) -> Callable[..., Ran]:
    """``pytest`` with these arguments in the test's folder: in this process, with xdist in one of its own."""
    def once(*arguments: object) -> Ran:
        words = (*LOADED, "--junitxml=results.xml", *map(str, arguments))
        done = pytester.runpytest_subprocess(*words, timeout=170) if "-n" in words else pytester.runpytest_inprocess(*words)
        file = pytester.path / "results.xml"
        root = ElementTree.parse(file).getroot() if file.exists() else ElementTree.Element("none")
        return Ran(int(done.ret), done.stdout.str() + done.stderr.str(), outcomes(root), root)
    return once


def outcomes(root: ElementTree.Element) -> dict[str, str]:
    """Test id (with ``::`` between its parts) to passed, failure, error or skipped."""
    found = {}
    for case in root.iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found["::".join([*case.attrib["classname"].split("."), case.attrib["name"]])] = kinds[0] if kinds else "passed"
    return found


def reason(root: ElementTree.Element, name: str) -> str:
    """Message and text of a test that did not pass."""
    (case,) = [one for one in root.iter("testcase") if one.attrib["name"] == name]
    child = next(child for child in case if child.tag in ("failure", "error", "skipped"))
    return f"{child.attrib.get('message', '')}\n{child.text or ''}"


@pytest.fixture
def loop(healthy_plugin: Path) -> str:
    """Option that loads the healthy plug-in."""
    return f"--moeguard-plugin={healthy_plugin}"


@pytest.fixture
def holey(broken_plugin: Path) -> str:
    """Option that loads the plug-in with a defect."""
    return f"--moeguard-plugin={broken_plugin}"
