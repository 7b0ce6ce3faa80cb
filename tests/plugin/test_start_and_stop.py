"""The plug-in costs nothing when it is not asked for, and leaves nothing behind when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugin.conftest import LOADED, QUICK

SPY = '''
import sys
import pytest

def pytest_unconfigure(config):
    with open("modules.txt", "w") as file:
        file.write("\\n".join(sys.modules))
'''


@pytest.mark.parametrize("arguments", [("--collect-only",), (), ("--fixtures",)])
def test_without_the_flag_nothing_heavy_is_imported(
        arguments: tuple[str, ...], pytester: pytest.Pytester, environment: None) -> None:
    """Hypothesis brings a plug-in of its own, which imports it at the end of every run and is left out here."""
    pytester.makeconftest(SPY)
    pytester.makepyfile("def test_mine():\n    pass\n")
    done = pytester.runpytest_subprocess("-p", "no:hypothesispytest", *LOADED, *arguments)
    assert done.ret == 0
    modules = (pytester.path / "modules.txt").read_text().split()
    assert "moeguard.pytest_plugin" in modules
    heavy = {"torch", "hypothesis", "numpy", "pydantic", "scipy", "pandas", "typer", "rich"} & set(modules)
    assert not heavy
    assert not [name for name in modules if name.startswith("moeguard.") and name != "moeguard.pytest_plugin"]


def test_help_and_marker_are_described(pytester: pytest.Pytester, environment: None) -> None:
    text = pytester.runpytest_subprocess(*LOADED, "--help").stdout.str()
    for option in ("backend", "recipe", "profile", "budget", "seed", "plugin", "ledger", "out"):
        assert f"--moeguard-{option}=" in text
    assert "@pytest.mark.moeguard(" in pytester.runpytest_subprocess(*LOADED, "--markers").stdout.str()


def descendants(process: int) -> set[int]:
    """Ids of everything that ``process`` started, directly or not."""
    children: dict[int, set[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), set()).add(int(stat.parent.name))
    found: set[int] = set()
    waiting = {process}
    while waiting:
        waiting = {child for parent in waiting for child in children.get(parent, ())} - found
        found |= waiting
    return found


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_ctrl_c_leaves_no_process_behind(workers: tuple[str, ...], pytester: pytest.Pytester, environment: None) -> None:
    arguments = ["--moeguard", "--moeguard-backend=torch_reference", "--moeguard-recipe=bf16,fp16", "--moeguard-budget=60s",
                 "--moeguard-out=out", *workers]
    process = subprocess.Popen([sys.executable, "-m", "pytest", *LOADED, *arguments], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, cwd=pytester.path, start_new_session=True)
    journals = [pytester.path / "out" / f"torch_reference-{recipe}" / "journal.jsonl" for recipe in ("bf16", "fp16")]
    wanted = journals if workers else journals[:1]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if all(one.exists() and one.read_text().count("scenario_finished") > 2 for one in wanted):
            break
        time.sleep(0.1)
    assert process.poll() is None
    started = descendants(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2, out
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{one}").exists() for one in started):
        time.sleep(0.1)
    assert [one for one in started if Path(f"/proc/{one}").exists()] == []
    if not workers:
        assert (pytester.path / "out" / "torch_reference-bf16" / "report.html").exists()


def test_a_killed_pytest_leaves_no_worker_behind(pytester: pytest.Pytester, environment: None, loop: str) -> None:
    arguments = [*QUICK[:-1], "--moeguard-budget=60s", "--moeguard-out=out", loop]
    process = subprocess.Popen([sys.executable, "-m", "pytest", *LOADED, *arguments],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=pytester.path)
    journal = pytester.path / "out" / "loop-bf16" / "journal.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (journal.exists() and "scenario_finished" in journal.read_text()):
        time.sleep(0.1)
    started = descendants(process.pid)
    assert started
    process.kill()
    process.wait(10)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(Path(f"/proc/{one}").exists() for one in started):
        time.sleep(0.1)
    assert [one for one in started if Path(f"/proc/{one}").exists()] == []
