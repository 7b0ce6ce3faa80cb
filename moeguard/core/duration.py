"""Durations as people write them."""

from __future__ import annotations

from moeguard.core.errors import MoeguardError


def duration(text: str, option: str = "--budget") -> float:
    """Seconds from ``30``, ``30s``, ``5m`` or ``2h``. Raises MoeguardError on anything else."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text and text[-1] in units else (text, 1.0)
    try:
        value = float(number) * unit
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise MoeguardError(f"{option}: {text!r}; allowed: a positive number of seconds, or one with s, m or h "
                            "(60s, 5m)")
    return value
