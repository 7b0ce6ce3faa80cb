"""What is kept of a compiled kernel."""

from __future__ import annotations

from typing import Any


def loaded(compiled: Any) -> None:
    """Drop the texts that Triton keeps of a variant's compilation, once it was launched (None in the interpreter).

    The binary is loaded, the texts are up to a MiB, and a campaign meets some hundred variants.
    """
    if compiled is not None:
        compiled.asm.clear()
