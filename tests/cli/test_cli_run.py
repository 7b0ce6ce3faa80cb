"""``moeguard run``: result, files, exit codes, and how it is interrupted and resumed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from commandline import ROOT, SMOKE, Called, Run, call, without_times

Cli = Callable[..., Called]

FILES = ["cases", "executions.parquet", "findings.jsonl", "journal.jsonl", "junit.xml", "manifest.json", "report.html",
         "summary.md", "workers.log"]
FINDING = {"kind", "fingerprint", "backend", "recipe", "tactic", "case", "sentence", "replay", "reproduced", "known"}


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]


def test_a_clean_run_exits_0_with_one_object_on_stdout(clean_run: Run) -> None:
    assert (clean_run.called.code, clean_run.called.err) == (0, "")
    data = clean_run.data
    assert list(data) == ["verdict", "run_dir", "executions", "cases", "seconds", "findings", "cells", "not_verified"]
    assert (data["verdict"], data["findings"], data["cases"], data["run_dir"]) == ("clean", [], 30, str(clean_run.path))
    assert data["executions"] > 30
    assert data["seconds"] > 0
    (cell,) = data["cells"]
    assert (cell["backend"], cell["recipe"], cell["executions"]) == ("loop", "bf16", data["executions"])
    assert all(note["reason"] for note in data["not_verified"])


def test_a_run_with_findings_exits_1_and_says_how_to_replay(broken_run: Run) -> None:
    assert (broken_run.called.code, broken_run.called.err) == (1, "")
    assert broken_run.data["verdict"] == "findings"
    for finding in broken_run.data["findings"]:
        assert set(finding) == FINDING
        assert finding["replay"].startswith(f"moeguard replay {broken_run.path}/cases/")
        assert finding["sentence"]


def test_the_run_directory_is_complete(clean_run: Run, broken_run: Run) -> None:
    for run in (clean_run, broken_run):
        assert [name for name in FILES if (run.path / name).exists()] == [
            name for name in FILES if name != "cases" or run.data["findings"]]
        assert not [path.name for path in run.path.iterdir() if path.name not in FILES]
        assert len(pandas.read_parquet(run.path / "executions.parquet")) == run.data["executions"]
        manifest = json.loads((run.path / "manifest.json").read_text())
        assert manifest["options"]["max_cases"] == 30
        assert manifest["environment"]["arch"] == "cpu"


def test_every_case_is_journaled_before_it_is_launched(broken_run: Run) -> None:
    started = set()
    for event in events(broken_run.path):
        if event["event"] == "scenario_started":
            started.add(event["scenario"])
        elif event["event"] in ("executed", "scenario_finished"):
            assert event["scenario"] in started
    assert events(broken_run.path)[-1]["event"] == "run_finished"


def test_resume_of_a_complete_run_prints_the_result_again(broken_copy: Path, broken_run: Run, cli: Cli) -> None:
    journal = (broken_copy / "journal.jsonl").read_bytes()
    again = cli("run", "--resume", broken_copy, "--json")
    assert again.code == 1
    assert json.dumps(again.data) == json.dumps(broken_run.data).replace(str(broken_run.path), str(broken_copy))
    assert (broken_copy / "journal.jsonl").read_bytes() == journal


def test_a_killed_run_is_resumed_to_the_same_result(clean_run: Run, tmp_path: Path, cli: Cli) -> None:
    copy = Path(shutil.copytree(clean_run.path, tmp_path / "copy"))
    lines = (copy / "journal.jsonl").read_text().splitlines(keepends=True)
    (copy / "journal.jsonl").write_text("".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:20])
    resumed = cli("run", "--resume", copy, "--json")
    assert resumed.code == 0
    assert without_times(resumed.data) == without_times(clean_run.data)


def test_nothing_executed_is_inconclusive(healthy_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("run", "--plugin", healthy_plugin, "--recipe", "fp16", "--profile", "smoke", "--max-cases", 3, "--device", "cpu",
               "--json", "--out", tmp_path / "run")
    assert done.code == 3
    assert (done.data["verdict"], done.data["executions"]) == ("inconclusive", 0)
    assert done.data["not_verified"][0]["reason"] == "plain bf16 swiglu only"


def test_people_get_a_table_and_the_place_of_the_report(broken_copy: Path, cli: Cli) -> None:
    done = cli("run", "--resume", broken_copy)
    assert done.code == 1
    assert "unwritten_output" in done.out
    assert f"report: {broken_copy}/report.html" in done.out
    assert done.err == ""


def test_ctrl_c_leaves_a_complete_directory_that_resumes(healthy_plugin: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    arguments = ["run", "--plugin", str(healthy_plugin), *SMOKE, "--max-cases", "120", "--json", "--out", str(path)]
    process = subprocess.Popen([sys.executable, "-m", "moeguard", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if path.joinpath("journal.jsonl").exists() and path.joinpath("journal.jsonl").read_text().count("scenario_finished") > 5:
            break
        time.sleep(0.05)
    for _ in range(3):  # people press it again
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    stopped = json.loads(out)
    assert 5 < stopped["cases"] < 120
    assert [name for name in FILES if not (path / name).exists()] == ["cases"]
    resumed = call("run", "--resume", path, "--json")
    assert resumed.code == 0
    assert resumed.data["cases"] == 120
    assert resumed.data["executions"] > stopped["executions"]


def test_ctrl_c_while_workers_start_is_quiet(healthy_plugin: Path, tmp_path: Path) -> None:
    """It reaches every process of the terminal: those that still import their libraries say nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", "moeguard", "run", "--plugin", str(healthy_plugin), *SMOKE, "--workers", "2", "--out", "run"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"})
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None and not workers_of(process.pid):
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.endswith("resume: moeguard run --resume run\n")


def workers_of(parent: int) -> list[Path]:
    """Processes that multiprocessing started for ``parent``."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"PPid:\t{parent}\n" in status.read_text() and b"spawn_main" in status.with_name("cmdline").read_bytes():
                found.append(status.parent)
        except OSError:  # it is gone
            continue
    return found


def test_a_plugin_with_the_name_of_a_built_in_backend_says_so(healthy_plugin: Path, tmp_path: Path, cli: Cli,
                                                             clean_registry: None) -> None:
    plugin = tmp_path / "dup.py"
    plugin.write_text(healthy_plugin.read_text().replace('name = "loop"', 'name = "triton"'))
    done = cli("run", "--plugin", plugin, *SMOKE, "--max-cases", 2, "--json", "--out", tmp_path / "run")
    said = "dup.py replaces the built-in backend 'triton'"
    assert (done.code, done.err) == (0, f"--plugin: {said}\n")
    reasons = [note["reason"] for note in done.data["not_verified"] if note["what"] == "built-in"]
    assert reasons == [f"{said}: nothing here is evidence about the built-in one"]
    assert said in (tmp_path / "run" / "summary.md").read_text()


def test_a_budget_is_kept_by_slow_backends_too(healthy_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    """A scenario of many seconds is under way when the time is up: it is stopped, and what was executed counts."""
    slow = tmp_path / "slow.py"
    slow.write_text(healthy_plugin.read_text().replace('"loop"', '"slow"').replace(
        "        first, gates", "        __import__('time').sleep(0.4)\n        first, gates"))
    done = cli("run", "--plugin", slow, *SMOKE, "--budget", "4s", "--json", "--out", tmp_path / "run")
    assert done.code == 0
    assert 4 * 0.95 <= done.data["seconds"] <= 4 * 1.05
    assert done.data["executions"] >= 1
    reasons = [note["reason"] for note in done.data["not_verified"] if note["what"] == "budget"]
    assert reasons and all(reason.startswith("the budget ended during the scenario") for reason in reasons)
    assert [event["status"] for event in events(tmp_path / "run") if event["event"] == "scenario_finished"][-1] == "stopped"


@pytest.mark.soak  # in short: test_a_disk_that_fills_up_leaves_a_run_that_can_be_resumed
def test_a_full_disk_stops_the_run_and_loses_nothing(clean_run: Run, healthy_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    """No file may grow beyond what two thirds of the journal take; then there is space again."""
    limit = (clean_run.path / "journal.jsonl").stat().st_size * 2 // 3
    path = tmp_path / "run"
    command = [sys.executable, "-m", "moeguard", "run", "--plugin", str(healthy_plugin), *SMOKE, "--max-cases", "30", "--json",
               "--out", str(path)]
    full = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert (full.returncode, full.stdout, full.stderr.count("\n")) == (2, "", 1), full.stderr
    assert "journal.jsonl: cannot be written (File too large); what is there can be resumed" in full.stderr
    assert (path / "journal.jsonl").read_bytes().endswith(b"}\n")
    resumed = cli("run", "--resume", path, "--json")
    assert without_times(resumed.data) == without_times(clean_run.data)


def test_a_damaged_journal_is_refused_as_it_is(broken_copy: Path, cli: Cli) -> None:
    journal = broken_copy / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[6] = lines[6][:-9] + b"\n"
    journal.write_bytes(damaged := b"".join(lines[:40]))
    done = cli("run", "--resume", broken_copy, "--json")
    assert (done.code, done.out) == (2, "") and "journal.jsonl: line 7 is damaged" in done.err and done.err.count("\n") == 1
    assert journal.read_bytes() == damaged


def test_a_run_that_died_before_its_manifest_may_begin_again(tmp_path: Path) -> None:
    from moeguard.engine.options import Options
    from moeguard.engine.rundir import RunDirectory

    (tmp_path / ".manifest.123.tmp").write_text("{")
    RunDirectory.create(tmp_path, "run", Options(backends=("torch_reference",), recipes=("bf16",)))
    assert (tmp_path / "manifest.json").exists()


def test_results_do_not_depend_on_workers(clean_run: Run, healthy_plugin: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("run", "--plugin", healthy_plugin, *SMOKE, "--max-cases", 30, "--workers", 2, "--json", "--out", tmp_path / "run")
    assert done.code == 0
    assert without_times(done.data) == without_times(clean_run.data)


@pytest.mark.parametrize("option", ["--help", "run --help", "replay --help", "selftest --help", "report --help"])
def test_help(option: str, cli: Cli) -> None:
    done = cli(*option.split())
    assert done.code == 0
    assert "Usage" in done.out


def test_version(cli: Cli) -> None:
    import moeguard

    assert cli("--version") == (0, f"moeguard {moeguard.__version__}\n", "")
