"""The Triton kernels in the interpreter, in a process of their own: TRITON_INTERPRET counts when triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import ROOT

pytest.importorskip("triton", reason="triton is not installed")

INNER = Path(__file__).with_name("interpreted_triton.py")


def test_kernels_are_right_in_the_interpreter() -> None:
    """All tests of interpreted_triton.py pass, and there are some."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in environment.items() if not name.startswith(("PYTEST_", "COV_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(INNER)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
                          check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
