"""Numbers that JSON has."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """``value``, JSON data but for numbers that are not finite, which become text, and tuples, which become lists."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {str(name): finite(item) for name, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value
