"""What was raised: the end of a scenario, and exceptions that are kept as values."""

from __future__ import annotations

from typing import TypeVar

Raised = TypeVar("Raised", bound=BaseException)


class ScenarioAborted(Exception):
    """The backend crashed; nothing more can be learned from this scenario."""


def frameless(error: Raised) -> Raised:
    """``error`` without tracebacks, its own and those of all that it came from.

    Their frames, and those that called them, hold the session and the exception itself: such a circle keeps its tensors until
    Python's collector finds it.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return error
