"""Campaigns whose processes are killed at random moments until the campaign is done, and what must be the same in the end."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pandas

#: Two backends, one of which forgets the last column where the number of tokens is odd. Only small cases, for speed.
PLUGIN = '''
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference


class Small(TorchReference):
    name = "small"

    def supports(self, case):
        shape = case.shape
        work = shape.hidden_size * shape.intermediate_size * shape.num_tokens * shape.num_experts
        return mg.Support.yes() if work < 1 << 15 else mg.Support.no("large")

    def tune(self, prepared, batch):
        return self.tactics(prepared, batch)[0]  # not the fastest, which is another one each time


class Odd(Small):
    name = "odd"

    def run(self, prepared, batch, out, *, tactic=None, workspace=None):
        last = out[..., -1].clone()
        super().run(prepared, batch, out, tactic=tactic, workspace=workspace)
        if batch.topk_ids.shape[0] % 2:
            out[..., -1] = last


mg.register(Small())
mg.register(Odd())
'''


def command(plugin: Path, cases: int, out: Path) -> list[str]:
    """The command line that begins the campaign, or resumes it when there is one."""
    if (out / "manifest.json").exists():
        return ["run", "--resume", str(out), "--json"]
    return ["run", "--plugin", str(plugin), "--recipe", "bf16", "--profile", "smoke", "--device", "cpu", "--workers", "2",
            "--max-cases", str(cases), "--json", "--out", str(out)]


class Attempt(NamedTuple):
    """A running campaign. ended: its exit code, None while it runs. processes: it and its workers."""

    ended: Callable[[], int | None]
    processes: Callable[[], list[int]]


def killed(start: Callable[[], Attempt], kills: int, source: random.Random, delays: tuple[float, float]) -> Counter[str]:
    """Kill a random process of the campaign after random delays, ``kills`` times, then let it end; what was killed.

    start: begins or resumes the campaign. It may be done before; then there were fewer kills.
    """
    count: Counter[str] = Counter()
    attempt = start()
    due = time.monotonic() + source.uniform(*delays)
    deadline = time.monotonic() + 120 + 20 * kills
    while True:
        assert time.monotonic() < deadline, "the campaign does not end"
        code = attempt.ended()
        if code == -signal.SIGKILL:
            attempt = start()
        elif code is not None:
            assert code == 1, code
            return count
        elif count.total() < kills and time.monotonic() >= due:
            main, *others = attempt.processes() or [0]
            victim = source.choice([main, *others])
            due = time.monotonic() + source.uniform(*delays)
            if victim and (victim != main or source.random() < (0.6 if others else 0.1)):
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                count["campaign" if victim == main else "worker"] += 1
        time.sleep(0.01)


def results(path: Path) -> dict[str, Any]:
    """Everything derived from a run, but for times and the place of the run."""
    frame = pandas.read_parquet(path / "executions.parquet")
    frame = frame.drop(columns=[name for name in frame.columns if "seconds" in name or name == "time"])
    texts = {name: _timeless((path / name).read_text(), path)
             for name in ("findings.jsonl", "summary.md", "junit.xml", "report.html")}
    return {"files": sorted(str(file.relative_to(path)) for file in path.rglob("*")), "executions": frame.to_json(), **texts}


def counted(path: Path) -> Counter[tuple[int, int]]:
    """How often each execution counts, by scenario and number."""
    from moeguard.core.events import Executed
    from moeguard.engine.journal import read_journal

    events = read_journal(path / "journal.jsonl")
    return Counter((event.scenario, event.number) for event in events if isinstance(event, Executed))


def _timeless(text: str, path: Path) -> str:
    """``text`` without what follows from the clock: durations, dates, run ids, plots of times."""
    run_id = json.loads((path / "manifest.json").read_text())["run_id"]
    text = text.replace(str(path), "RUN").replace(run_id, "ID")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:+]+|\d{8}-\d{6}", "WHEN", text)
    text = re.sub(r'time="[^"]*"|timestamp="[^"]*"', "", text)
    return re.sub(r"[\d.,]+(e-\d+)? ?(ms|\u00b5s|us|s|min|h)\b( \d+ ?(s|min))?", "TIME", text)


def children(parents: Iterable[int]) -> list[int]:
    """Processes that have one of ``parents``."""
    wanted, found = set(parents), []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) in wanted:
                found.append(int(status.parent.name))
        except OSError:  # it is gone
            continue
    return sorted(found)


def forked(arguments: list[str], log: str) -> None:
    """A campaign in a process that a fork server made; its workers come from there too, without importing torch again.

    What takes long and has nothing to do with kills is left out: the trial import of plug-ins, and plots.
    """
    import multiprocessing
    from multiprocessing import forkserver

    from moeguard.cli.main import main
    from moeguard.engine import plugins, process
    from moeguard.engine.probe import Answer
    from moeguard.report import plots

    plugins.ask = lambda *arguments, **named: Answer()  # type: ignore[assignment]
    plots.errors = plots.tokens = lambda frame: ""
    process.CONTEXT = multiprocessing.get_context("forkserver")
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]  # it runs: this process comes from it
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["moeguard", *arguments]
    main()
