"""``moeguard doctor``: what this machine can run, also when a library ends the process that imports it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import ROOT, Called

from moeguard.cli.doctor import _show as show
from moeguard.core.recipe import RECIPES
from moeguard.engine import doctor, probe

Cli = Callable[..., Called]

PLUGIN = '''
import ctypes, os, time
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

def backend(label, act):
    class Probed(TorchReference):
        name = label
        def availability(self):
            act()
            return mg.Availability.yes()
    mg.register(Probed())

backend("fine", lambda: print("noise"))
backend("exits", lambda: os._exit(4))
backend("aborts", os.abort)
backend("raises", lambda: 1 / 0)
backend("sleeps", lambda: time.sleep(600))

class Never(TorchReference):
    name = "never"
    def availability(self):
        return mg.Availability.no("needs SM 10.0")

class Only(TorchReference):
    name = "only"
    def supports(self, case):
        return mg.Support.yes() if case.recipe == "fp8_block" else mg.Support.no("fp8_block alone")

mg.register(Never())
mg.register(Only())
'''


def test_the_environment_and_every_backend_with_every_recipe(cli: Cli, spawned: None) -> None:
    done = cli("doctor", "--device", "cpu", "--json")
    assert (done.code, done.err, list(done.data)) == (0, "", ["environment", "backends"])
    environment = done.data["environment"]
    for name in ("arch", "gpu", "driver", "cuda", "packages", "libraries", "companions", "cutlass_dsl", "python"):
        assert name in environment
    assert environment["libraries"]["torch"]["works"] is True
    assert environment["libraries"]["torch"]["version"]
    mine = [row for row in done.data["backends"] if row["name"] == "torch_reference"]
    assert [row["recipe"] for row in mine] == list(RECIPES)
    assert {row["recipe"] for row in mine if row["available"]} == set(RECIPES)
    for row in done.data["backends"]:
        assert list(row) == ["name", "recipe", "available", "reason"]
        assert row["available"] == (row["reason"] is None)


def test_a_backend_that_ends_its_process_is_one_line(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "odd.py").write_text(PLUGIN)
    done = cli("doctor", "--plugin", tmp_path / "odd.py", "--timeout", "12s", "--json")
    assert done.code == 0
    said = {(row["name"], row["recipe"]): row for row in done.data["backends"]}
    assert said["fine", "bf16"]["available"]
    for name, reason in (("exits", "exit code 4"), ("aborts", "SIGABRT"), ("raises", "ZeroDivisionError"), ("sleeps", "12 s"),
                         ("never", "needs SM 10.0")):
        assert not said[name, "bf16"]["available"]
        assert reason in said[name, "bf16"]["reason"], said[name, "bf16"]
    assert [recipe for recipe in RECIPES if said["only", recipe]["available"]] == ["fp8_block"]
    assert said["only", "bf16"]["reason"] == "fp8_block alone"


def test_people_get_one_line_for_each_backend_and_recipe(monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    rows = [row for name in ("mine", "gone") for row in doctor._rows(name, probe.Answer(failure="SIGSEGV"))]
    facts = dict.fromkeys(("gpu", "arch", "gpus", "driver", "cuda", "platform", "machine", "cpus", "python", "device"))
    row = {"adapter": "adapted", "recipe": "nvfp4", "holds": False, "reason": "FlashInfer 9 has no moe"}
    contract = {"version": "9", "rows": [row], "table": [], "layouts": [], "stood_in": ["a library"]}
    show(doctor.Diagnosis({**facts, "libraries": {}, "companions": {}, "problems": [], "flashinfer_contract": contract,
                           "cutlass_dsl": {"flavour": None}}, tuple(rows)))
    out = capsys.readouterr().out
    assert any(line.split() == ["adapted", "nvfp4", "no:", "FlashInfer", "9", "has", "no", "moe"] for line in out.splitlines())
    assert "FlashInfer 9: stood in for a library" in out
    table = [line.split() for line in out.splitlines() if line.startswith(("mine", "gone"))]
    assert len(table) == 2 * len(RECIPES)
    assert [" ".join(row) for row in table if row[1] == "nvfp4"] == [
        f"{name} nvfp4 no its probe failed: SIGSEGV" for name in ("mine", "gone")]


def test_a_plugin_with_the_name_of_a_built_in_backend_is_a_problem(healthy_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "dup.py").write_text(healthy_plugin.read_text().replace('name = "loop"', 'name = "triton"'))
    done = cli("doctor", "--plugin", tmp_path / "dup.py", "--device", "cpu", "--json")
    assert "dup.py replaces the built-in backend 'triton'" in done.data["environment"]["problems"]


@pytest.mark.parametrize(("source", "words"), [
    ("import os\nos._exit(3)\n", "exit code 3"), ("import os\nos.abort()\n", "SIGABRT"), ("x = = 1\n", "SyntaxError")])
def test_a_plugin_that_does_not_import_is_bad_usage(source: str, words: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "plugin.py").write_text(source)
    done = cli("doctor", "--plugin", tmp_path / "plugin.py", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1 and "plugin.py" in done.err and words in done.err


def test_a_library_that_ends_the_process_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    done = subprocess.run([sys.executable, "-m", "moeguard", "doctor", "--json"], capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}, timeout=120)
    data = Called(done.returncode, done.stdout, done.stderr).data
    assert (done.returncode, done.stderr) == (0, "")
    assert data["environment"]["libraries"]["torch"] | {"version": ""} == {
        "version": "", "works": False, "reason": "import torch: ended the process (SIGSEGV)"}
    assert any("SIGSEGV" in problem for problem in data["environment"]["problems"])


def test_a_built_in_backend_that_ends_the_process_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that come with moeguard are asked in one process, and each by itself when one of them ends it."""
    fine = {"reason": None, "recipes": dict.fromkeys(RECIPES)}
    asked: list[tuple[str, ...]] = []

    def ask(question: str, arguments: tuple[str, ...] = (), *, timeout: float) -> probe.Answer:
        asked.append((question, *arguments))
        if question == "names":
            return probe.Answer({"names": ["one", "two", "mine"], "own": ["one", "two"], "replaced": {}})
        if question in ("backends", "backend"):
            return probe.Answer(failure="SIGSEGV") if "two" in arguments else probe.Answer(fine)
        return probe.Answer(None, "not now")

    monkeypatch.setattr(doctor, "ask", ask)
    rows = doctor.diagnose(("mine.py",), "cpu").backends
    reasons = {row["name"]: row["reason"] for row in rows}
    assert reasons == {"one": None, "two": "its probe failed: SIGSEGV", "mine": None}
    assert [row["name"] for row in rows] == [name for name in ("one", "two", "mine") for _ in RECIPES]
    assert {words for words in asked if words[0].startswith("backend")} == {
        ("backends", "one", "two"), ("backend", "one"), ("backend", "two"), ("backend", "mine", "mine.py")}


@pytest.mark.parametrize(("installed", "flavour"), [
    ((), None), (("nvidia-cutlass-dsl",), "base"), (("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base"), "base"),
    (("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-cu13"), "cu13"), (("nvidia-cutlass-dsl-libs-cu12",), "cu12"),
    (("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13"), "cu12+cu13")])
def test_flavours_of_cutlass_dsl(installed: tuple[str, ...], flavour: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "4.8.1" if name in installed else None)
    assert doctor.cutlass_dsl() == {"flavour": flavour, "distributions": dict.fromkeys(installed, "4.8.1")}


def test_people_get_tables(cli: Cli) -> None:
    done = cli("doctor", "--device", "cpu")
    assert done.code == 0
    assert "torch_reference" in done.out and "cutlass-dsl flavour" in done.out and "yes" in done.out


def test_ctrl_c_leaves_no_probe_behind(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    (tmp_path / "slow.py").write_text(f"import os, time\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    process = subprocess.Popen([sys.executable, "-m", "moeguard", "doctor", "--plugin", str(tmp_path / "slow.py")],
                               env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    deadline = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_a_probe_of_an_unknown_question_says_so() -> None:
    assert probe.ask("nonsense").failure == "KeyError: 'nonsense'"


def test_a_release_that_does_not_import_is_a_line_of_the_matrix(tmp_path: Path, cli: Cli,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "subprocess", subprocess)  # a child that is forked has its modules already
    site, target = tmp_path / "site", tmp_path / "versions.md"
    (site / "flashinfer").mkdir(parents=True)
    (site / "flashinfer" / "__init__.py").write_text("raise RuntimeError('no CUDA flavour')")
    (site / "flashinfer_python-0.6.99.dist-info").mkdir()
    (site / "flashinfer_python-0.6.99.dist-info" / "METADATA").write_text("Name: flashinfer-python\nVersion: 0.6.99\n")
    done = cli("doctor", "--wheels", site, "--markdown", target, "--json")
    assert done.code == 0
    assert done.data == {"wheels": [{"version": "0.6.99", "failure": "RuntimeError: no CUDA flavour"}]}
    assert "- FlashInfer 0.6.99: RuntimeError: no CUDA flavour" in target.read_text()


def test_folders_that_hold_no_release(tmp_path: Path, cli: Cli) -> None:
    for arguments, reason in ((("--wheels", tmp_path),
                               f"--wheels: {tmp_path} holds no unpacked flashinfer-python; allowed: a folder"),
                              (("--wheels", tmp_path / "none"), f"--wheels: {tmp_path / 'none'} holds no unpacked"),
                              (("--markdown", tmp_path / "x.md"), "--markdown: allowed with --wheels alone")):
        done = cli("doctor", *arguments, "--json")
        assert done.code == 2 and done.out == "" and reason in done.err and done.err.count("\n") == 1
