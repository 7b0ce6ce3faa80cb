"""A built wheel, installed where the repository is not, runs the smoke campaign, finds a defect and is a pytest plug-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from commandline import ROOT


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel, and the dependencies of this environment, but no checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = subprocess.run(["git", "ls-files", "moeguard", "pyproject.toml", "README.md", "LICENSE"], cwd=ROOT,
                           capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    built = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check",
                            "-w", folder, source], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = next((folder / "venv" / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    # a .pth file inside the other folder is not read, so an editable install there stays out of sight
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "venv" / "bin" / "python"


def call(python: Path, where: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the interpreter in an empty folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run([python, *map(str, words)], cwd=where, env=environment, capture_output=True, text=True, check=False,
                          timeout=240)


def test_the_wheel_is_what_runs(python: Path, tmp_path: Path) -> None:
    done = call(python, tmp_path, "-c", "import moeguard; print(moeguard.__file__)")
    assert str(ROOT / "moeguard") not in done.stdout and "site-packages" in done.stdout, done.stderr


def test_the_packaged_ledger(python: Path, tmp_path: Path) -> None:
    done = call(python, tmp_path, "-m", "moeguard", "replay", "--ledger", "--backend", "flashinfer_cutlass", "--device", "cpu",
                "--json")
    assert done.returncode in (0, 1, 3), done.stderr
    assert json.loads(done.stdout)["entries"]


def test_the_packaged_policy(python: Path, tmp_path: Path) -> None:
    code = "from moeguard.gate.policy import Policy; print(Policy.load().thresholds('O2', 'sm90').max_bound)"
    done = call(python, tmp_path, "-c", code)
    assert done.stdout == "0.01\n", done.stderr


def test_smoke_campaign(python: Path, tmp_path: Path) -> None:
    done = call(python, tmp_path, "-m", "moeguard", "run", "--backend", "torch_reference", "--profile", "smoke",
                "--max-cases", 12, "--device", "cpu", "--json", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["executions"] > 50 and (tmp_path / "run" / "report.html").exists()


def test_a_defect_of_a_plug_in(python: Path, broken_plugin: Path, tmp_path: Path) -> None:
    done = call(python, tmp_path, "-m", "moeguard", "run", "--plugin", broken_plugin, "--profile", "smoke", "--max-cases", 20,
                "--device", "cpu", "--json", "--out", tmp_path / "run")
    assert done.returncode == 1, done.stderr
    assert {finding["kind"] for finding in json.loads(done.stdout)["findings"]} == {"unwritten_output"}


def test_pytest_plug_in(python: Path, healthy_plugin: Path, tmp_path: Path) -> None:
    done = call(python, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--moeguard",
                "--moeguard-plugin", healthy_plugin, "--moeguard-backend", "loop",
                "--moeguard-recipe", "bf16", "--moeguard-budget", "2s")
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
