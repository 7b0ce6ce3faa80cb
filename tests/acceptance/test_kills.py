"""kill -9 of any process of a campaign, at any moment: nothing is lost, nothing counts twice, and the results are the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fork_server
import pytest
from commandline import ROOT
from killed_campaigns import PLUGIN, Attempt, children, command, counted, forked, killed, results

Begin = Callable[[Path], Attempt]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "backends.py"
    path.write_text(PLUGIN)
    return path


def survive(begin: Begin, folder: Path, kills: int, delays: tuple[float, float]) -> None:
    """Kill campaigns ``kills`` times; each must end as one that was left alone."""
    calm = folder / "calm"
    assert killed(lambda: begin(calm), 0, random.Random(), delays).total() == 0
    seed = random.randrange(1 << 32)
    source, count, number = random.Random(seed), Counter[str](), 0
    while count.total() < kills:
        out = folder / f"killed{number}"
        count += killed(partial(begin, out), kills - count.total(), source, delays)
        assert results(out) == results(calm), f"seed {seed}: {count}"
        assert counted(out) == counted(calm) and set(counted(out).values()) == {1}
        number += 1
    print(f"seed {seed}: {count.total()} kills ({dict(count)}) in {number} campaigns")


def test_ten_kills(plugin: Path, tmp_path: Path) -> None:
    """With processes from a fork server, which start at once."""
    def begin(out: Path) -> Attempt:
        process = fork_server.context().Process(target=forked, args=(command(plugin, 134, out), str(tmp_path / "log")))
        process.start()
        assert process.pid is not None
        main, server = process.pid, int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
        return Attempt(lambda: process.exitcode, lambda: [main, *(pid for pid in children([server]) if pid != main)])

    survive(begin, tmp_path, 10, (0.05, 0.5))


@pytest.mark.soak
def test_a_hundred_kills(plugin: Path, tmp_path: Path) -> None:
    """As a user runs it."""
    def begin(out: Path) -> Attempt:
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen([sys.executable, "-m", "moeguard", *command(plugin, 300, out)], stdout=log, stderr=log,
                                       env=os.environ | {"PYTHONPATH": str(ROOT)})
        return Attempt(process.poll, lambda: [process.pid, *children([process.pid])])

    survive(begin, tmp_path, 100, (0.1, 8.0))
