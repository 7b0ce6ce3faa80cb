"""Spot checks of small servers of our own, over HTTP on loopback."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from commandline import ROOT

from moeguard.evals.arithmetic import problems

SERVER = ROOT / "tests" / "eval_server.py"
#: Where a stand-in for lm-eval lies, for machines that do not have it.
STAND_IN = ROOT / "tests" / "lm_eval_stand_in"


def data(folder: Path, count: int = 60) -> Path:
    """A file of problems."""
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in problems(count)), encoding="utf-8")
    return path


def server(rows: Path, **faults: Any) -> str:
    """The command of a server with these faults."""
    return f"exec {shlex.join([sys.executable, str(SERVER)])} {{port}} {shlex.join([str(rows), json.dumps(faults)])}"


def arguments(rows: Path, out: Path, baseline: str, candidate: str, *more: object) -> list[object]:
    """The command line of a spot check without examples, in chunks of 20, as JSON."""
    return ["eval", "gsm8k", "--baseline-cmd", baseline, "--candidate-cmd", candidate, "--data", rows, "--shots", 0,
            "--chunk", 20, "--concurrency", 4, "--start-timeout", "60s", "--out", out, "--json", *more]
