"""The layers of ARCHITECTURE.md, enforced: imports point down, modules stay small and are named after what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import ROOT
from importlinter import api
from importlinter.cli import lint_imports

MODULES = sorted((ROOT / "moeguard").rglob("*.py"))
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "stuff"}


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_import_contracts_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    code = lint_imports(no_cache=True)
    assert code == 0, capsys.readouterr().out


def test_every_layer_is_named_by_the_contract() -> None:
    layers = next(c for c in api.read_configuration()["contracts_options"] if c["type"] == "layers")["layers"]
    named = {name.strip(" ()") for layer in layers for name in layer.split("|")}
    packages = {path.name for path in (ROOT / "moeguard").iterdir() if (path / "__init__.py").exists()}
    assert packages <= named


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in MODULES}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_modules_are_small() -> None:
    long = {str(path): lines for path in MODULES if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400}
    assert long == {}


def test_names_say_what_a_module_holds() -> None:
    everything = [*MODULES, *(ROOT / "tests").rglob("*.py")]
    assert [path for path in everything if path.stem in VAGUE or path.parent.name in VAGUE] == []


def test_every_module_says_what_it_is() -> None:
    undocumented = [str(path) for path in MODULES if not path.read_text(encoding="utf-8").lstrip().startswith('"""')]
    assert undocumented == []


def test_the_package_speaks_of_no_machine() -> None:
    texts = [path for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".txt") or path.name == "Makefile"] + MODULES
    home = str(Path("/", "work")), str(Path("/", "tmp"))
    assert [str(path) for path in texts if any(f"{place}/" in path.read_text(encoding="utf-8") for place in home)] == []
