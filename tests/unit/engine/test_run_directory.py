"""Run directories: created whole, opened when sound, never mixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import moeguard
from moeguard.core.errors import RunDirectoryError
from moeguard.engine.options import Options
from moeguard.engine.rundir import RunDirectory

OPTIONS = Options(backends=("torch_reference",), recipes=("bf16", "fp16"), budget=2.5, plugins=("/a b.py",), seed=3,
                  cases=({"schema": 1, "shape": {"num_tokens": 1}},))


def test_create_and_open(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path / "a" / "run", "run", OPTIONS)
    assert [path.name for path in made.path.iterdir()] == ["manifest.json"]
    opened = RunDirectory.open(made.path)
    assert opened.options == OPTIONS
    assert opened.manifest == made.manifest
    assert (opened.manifest["command"], opened.manifest["moeguard"]) == ("run", moeguard.__version__)
    assert opened.manifest["environment"]["packages"]["torch"]
    assert opened.events() == []


def test_the_default_place_is_below_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = RunDirectory.create(None, "replay", OPTIONS)
    assert made.path.parent == Path("reports")
    assert made.path.name == made.manifest["run_id"]
    assert RunDirectory.create(None, "replay", OPTIONS).path != made.path


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path, "run", OPTIONS).path == tmp_path


def test_another_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "run", "run", OPTIONS)
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    with pytest.raises(RunDirectoryError, match="--out: .*run holds another run; allowed: "):
        RunDirectory.create(tmp_path / "run", "run", OPTIONS)
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunDirectoryError, match="holds other files"):
        RunDirectory.create(tmp_path, "run", OPTIONS)


def test_a_place_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        RunDirectory.create(tmp_path / "file" / "run", "run", OPTIONS)


@pytest.mark.parametrize(("change", "message"), [
    (lambda manifest: {**manifest, "schema": 2}, "schema 2 is not supported; allowed: 1"),
    (lambda manifest: [], "schema None is not supported"),
    (lambda manifest: {name: value for name, value in manifest.items() if name != "options"}, "damaged"),
    (lambda manifest: {name: value for name, value in manifest.items() if name != "run_id"}, "damaged"),
    (lambda manifest: {**manifest, "environment": {}}, "damaged"),
    (lambda manifest: {**manifest, "options": {**manifest["options"], "colour": "red"}}, "damaged"),
    (lambda manifest: {**manifest, "options": {**manifest["options"], "workers": "two"}}, "damaged"),
    (lambda manifest: {**manifest, "options": {**manifest["options"], "backends": "mine"}}, "damaged"),
    (lambda manifest: {**manifest, "options": {"recipes": []}}, "damaged"),
    (lambda manifest: {**manifest, "options": 3}, "damaged"),
])
def test_manifests_that_are_refused(change: object, message: str, tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path / "run", "run", OPTIONS)
    (made.path / "manifest.json").write_text(json.dumps(change(made.manifest)))  # type: ignore[operator]
    with pytest.raises(RunDirectoryError, match=message):
        RunDirectory.open(made.path)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_manifests_that_are_no_json(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(RunDirectoryError):
        RunDirectory.open(tmp_path)


def test_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        RunDirectory.open(tmp_path / "missing")
