"""Where results are printed for people."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: Columns where nothing says how wide the output is: in a file, a pipe, or the log of a CI job.
WIDTH = 160


def output() -> Console:
    """Standard output, as wide as the terminal or as COLUMNS says."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH)
