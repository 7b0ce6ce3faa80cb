"""Did the candidate get what the run is about? Lines of the engines' logs that say it did not.

Texts of vLLM 0.33.0 (warmup/kernel_warmup.py) and of FlashInfer's tuner.
"""

from __future__ import annotations

from pathlib import Path

#: vLLM's words for a server that does not tune, and FlashInfer's for a tuning that chose nothing.
DISABLED = "Skipping FlashInfer autotune because it is disabled"
OUT_OF_MEMORY = "OOM detected, falling back to default tactic"


def void(baseline: Path, candidate: Path) -> str | None:
    """Why the arms with these logs do not differ in what was tuned, None when nothing says so."""
    ours, theirs = _text(baseline), _text(candidate)
    if OUT_OF_MEMORY in theirs:
        return f"the candidate ran out of memory while it tuned, and its log says: {OUT_OF_MEMORY}"
    if DISABLED in theirs:
        which = "neither arm was tuned, the logs of both say" if DISABLED in ours else \
            "the candidate was not tuned (are the arms exchanged?), and its log says"
        return f"{which}: {DISABLED}"
    return None


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
