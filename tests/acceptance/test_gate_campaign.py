"""End to end: a campaign with a healthy and a broken backend; the gate allows the one, refuses the other and names the tactic."""

from __future__ import annotations

import os
import random
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from commandline import ROOT, SMOKE, call
from documents import commands, missing, python

import moeguard as mg
from moeguard.core.environment import fingerprint

PLUGIN = """
import moeguard as mg
from moeguard.mutants.broken_tactics import TacticWrongTile

mg.register(TacticWrongTile())
"""
MUTANT = "mutant_tactic_wrong_tile"


class Recorded(NamedTuple):
    """A run directory and the allowlist that records it."""

    run: Path
    allowlist: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("gate")
    (folder / "mutant.py").write_text(PLUGIN)
    found = Recorded(folder / "run", folder / "moeguard-allowlist.toml")
    done = call("run", "--plugin", folder / "mutant.py", "--backend", "torch_reference", "--backend", MUTANT, *SMOKE,
                "--max-cases", 70, "--json", "--out", found.run)
    assert done.code == 1 and {one["kind"] for one in done.data["findings"]} == {"bad_tactic"}
    updated = call("allow", "update", "--allowlist", found.allowlist, "--evidence", found.run, "--json")
    assert updated.code == 0
    assert {one["cell"]["backend"]: one["after"] for one in updated.data["changes"]} == {
        MUTANT: [], "torch_reference": ["O1", "O2", "O3"]}
    return found


def test_the_healthy_backend_is_allowed(recorded: Recorded) -> None:
    done = call("gate", "--allowlist", recorded.allowlist, "--evidence", recorded.run, "--level", "O2",
                "--cell", "torch_reference/bf16", "--json")
    assert (done.code, done.data["allowed"]) == (0, True)
    (cell,) = done.data["cells"]
    assert (cell["cell"]["backend"], cell["decision"], cell["failed_requirements"]) == ("torch_reference", "on", [])


def test_the_broken_one_is_refused_and_its_tactic_named(recorded: Recorded) -> None:
    done = call("gate", "--allowlist", recorded.allowlist, "--evidence", recorded.run, "--flip", "autotune=on", "--json")
    assert (done.code, done.data["allowed"]) == (1, False)
    broken = next(one for one in done.data["cells"] if one["cell"]["backend"] == MUTANT)
    assert broken["decision"] == "off"
    sentences = {one["name"]: one["sentence"] for one in broken["failed_requirements"]}
    assert sentences["open_findings"] == "open findings: bad_tactic of tactic halves"
    said = call("gate", "--allowlist", recorded.allowlist, "--evidence", recorded.run)
    assert said.code == 1 and "tactic halves" in said.out
    blocked = call("allow", "export", "--allowlist", recorded.allowlist, "--format", "flashinfer-blocklist")
    assert blocked.code == 2 and f"{MUTANT} and torch_reference has no tactics blocklist" in blocked.err


def test_a_program_can_ask(recorded: Recorded) -> None:
    here = fingerprint("cpu")
    known = mg.Allowlist.load(recorded.allowlist)
    assert known.decide("torch_reference", "bf16", "O2", here).allowed
    assert not known.decide(MUTANT, "bf16", "O2", here).allowed
    assert not known.decide("torch_reference", "fp16", "O2", here).allowed
    changed = here | {"packages": here["packages"] | {"torch": "1.0"}}
    assert [one.name for one in known.decide("torch_reference", "bf16", "O2", changed).failed] == ["versions"]


def test_the_exit_code_stands_when_nobody_reads_on(recorded: Recorded) -> None:
    command = [sys.executable, "-m", "moeguard", "gate", "--allowlist", str(recorded.allowlist), "--evidence", str(recorded.run)]
    for more, code in (([], 1), (["--cell", "torch_reference/bf16"], 0)):
        process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == code


def test_a_misspelt_cell_is_named(recorded: Recorded, tmp_path: Path) -> None:
    done = call("allow", "update", "--allowlist", tmp_path / "a.toml", "--evidence", recorded.run, "--cell",
                "torch_referenc/bf16")
    assert done.code == 3 and "no cell of the evidence is torch_referenc/bf16; it has " in done.err
    assert "torch_reference/bf16" in done.err


def test_any_changed_byte_is_exit_code_3(recorded: Recorded, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded.run, tmp_path / "run"))
    draw = random.Random(0)
    for file in (run / "manifest.json", run / "journal.jsonl", next((run / "cases").iterdir())):
        data = file.read_bytes()
        for _ in range(4):
            place, value = draw.randrange(len(data)), draw.randrange(1, 256)
            file.write_bytes(data[:place] + bytes([data[place] ^ value]) + data[place + 1:])
            done = call("gate", "--allowlist", recorded.allowlist, "--evidence", run, "--json")
            assert (done.code, done.data["allowed"]) == (3, False), (file.name, place, value)
        file.write_bytes(data)
    assert call("gate", "--allowlist", recorded.allowlist, "--evidence", run, "--json").code == 1


def test_derived_files_do_not_count(recorded: Recorded, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded.run, tmp_path / "run"))
    assert call("report", run, "--json").code == 1
    (run / "summary.md").write_text("other")
    done = call("gate", "--allowlist", recorded.allowlist, "--evidence", run, "--cell", "torch_reference/bf16", "--json")
    assert done.code == 0


# The documentation

@pytest.fixture
def checkout(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with evidence, its allowlist and a serving configuration, and commands that need no installation."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "run").symlink_to(recorded.run)
    shutil.copy(recorded.allowlist, tmp_path)
    (tmp_path / "serving.yaml").write_text("kernel-config:\n  enable_flashinfer_autotune: true\n")
    (tmp_path / "bin").mkdir()
    for name, line in (("moeguard", f'exec {shlex.quote(sys.executable)} -m moeguard "$@"'), ("pip", 'echo "$@" > pip.txt')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def workflow(checkout: Path, cell: str) -> int:
    """The ``run:`` steps of the GitHub workflow, one after the other until one fails, as a runner would: the exit code."""
    data = yaml.safe_load((ROOT / "docs" / "ci" / "github-actions.yml").read_text(encoding="utf-8"))
    files = {name: checkout / name for name in ("GITHUB_ENV", "GITHUB_STEP_SUMMARY")}
    environment: dict[str, Any] = os.environ | data["env"] | {name: str(file) for name, file in files.items()} | {"CELL": cell}
    for step in data["jobs"]["gate"]["steps"]:
        if "run" in step:
            done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", step["run"]], env=environment, check=False, timeout=60)
            if done.returncode:
                return done.returncode
        if files["GITHUB_ENV"].exists():
            environment |= dict(line.split("=", 1) for line in files["GITHUB_ENV"].read_text().splitlines())
    return 0


@pytest.mark.parametrize(("backend", "code", "said"), [
    ("torch_reference", 0, "Allowed."), (MUTANT, 1, "open findings: bad_tactic of tactic halves")])
def test_the_github_workflow(backend: str, code: int, said: str, checkout: Path) -> None:
    (checkout / "GITHUB_STEP_SUMMARY").write_text("before\n")
    assert workflow(checkout, f"{backend}/bf16") == code
    summary = (checkout / "GITHUB_STEP_SUMMARY").read_text()
    assert summary.startswith("before\n## moeguard gate, level O2, autotune=on\n") and said in summary
    assert (checkout / "pip.txt").read_text().startswith("install moeguard ")


@pytest.mark.parametrize(("backend", "code", "said"), [("torch_reference", 0, "Allowed."), (MUTANT, 1, "Not allowed: 1 of 1")])
def test_the_shell_script(backend: str, code: int, said: str, checkout: Path) -> None:
    environment = os.environ | {"MOEGUARD_CELL": f"{backend}/bf16"}
    done = subprocess.run([ROOT / "docs" / "ci" / "gate.sh", "evidence/run"], env=environment, capture_output=True, text=True,
                          check=False, timeout=60)
    assert (done.returncode, said in done.stdout, said in (checkout / "gate.md").read_text()) == (code, True, True), done


def test_the_story_of_the_levels(recorded: Recorded, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shutil.rmtree(checkout / "evidence")
    (checkout / "moeguard-allowlist.toml").unlink()
    (checkout / "evidence").symlink_to(recorded.run)
    shown = [one for one in commands("docs/stories.md") if one.command.split()[1] not in ("tune-audit", "compare")]
    assert len(shown) == 5 and shown[0].command.endswith("--max-cases 70 --out evidence")
    for command, lines in shown[1:]:
        if not command.startswith("moeguard "):
            subprocess.run(["bash", "-c", command], check=True)
            continue
        done = call(*shlex.split(command)[1:])
        assert missing(lines, done.out) is None, done.out
        assert done.code == ("Not allowed" in lines[-1])


@pytest.mark.parametrize(("backend", "flag"), [
    ("torch_reference", "--enable-flashinfer-autotune"), (MUTANT, "--no-enable-flashinfer-autotune")])
def test_the_start_up_example(backend: str, flag: str, checkout: Path, monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:
    script = checkout / "start.py"
    script.write_text(python("docs/gate.md", "decide("))
    assert len(script.read_text().splitlines()) == 10
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the evidence is about the CPU
    monkeypatch.setattr(sys, "argv", ["start.py", backend, "bf16", "O2"])
    runpy.run_path(str(script), run_name="__main__")
    out = capsys.readouterr()
    assert out.out == f"vllm serve MODEL {flag} --moe-backend {backend} -O2\n"
    assert out.err.startswith("autotune on: 0 failures" if backend == "torch_reference" else "autotune off: off: the allowlist")
