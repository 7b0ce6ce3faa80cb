"""Text that any reader of a report can show: printable characters, counted nouns, plain numbers."""

from __future__ import annotations

import math
import re

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: object) -> str:
    """``str(text)`` without control characters, lone surrogates and whatever else XML 1.0 forbids or discourages."""
    return _UNPRINTABLE.sub("", str(text))


def line(text: object) -> str:
    """``printable`` text on one line: runs of white space become one space."""
    return " ".join(printable(text).split())


def count(number: int, noun: str, nouns: str | None = None) -> str:
    """A counted noun: ``1 case``, ``1,204 cases``."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def duration(seconds: float) -> str:
    """Seconds as people say them: ``0.42 s``, ``12.3 s``, ``4 min 10 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def brief(seconds: float) -> str:
    """The time of a call: ``401 us``, ``1.85 ms``, ``12.3 s``."""
    if seconds >= 1:
        return duration(seconds)
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def number(value: object) -> str:
    """A number of a finding for people: four significant digits, thousands separated; anything else as a line."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else line(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.4g}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.3e}"


def yes_no(value: bool | None, unknown: str = "not tried") -> str:
    """``yes``, ``no``, or ``unknown`` for None."""
    return unknown if value is None else "yes" if value else "no"
