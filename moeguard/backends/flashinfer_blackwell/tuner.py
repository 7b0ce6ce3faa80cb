"""FlashInfer's tuner around one call: what it is asked for, which tactics there are, one forced, and its own choice.

The functions of this package ask ``AutoTuner.choose_one`` once a call, before anything is launched; the runner, the tuning
configuration and the inputs that they hand over are the same in every release, and differ in nothing that is used here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from moeguard.autotune.buckets import bucket_of
from moeguard.autotune.statistics import Statistics, choices
from moeguard.autotune.vacuous import conclude
from moeguard.backends.protocol import VacuousTuning

#: Tokens up to which FlashInfer tunes by default, and its fallback tactic.
CAP, DEFAULT = 8192, -1


@dataclass(frozen=True, slots=True)
class Asked:
    """What one call asks of the tuner."""

    op: str
    runners: Any
    config: Any
    inputs: Any


class _Captured(BaseException):
    """Ends a call once it has asked the tuner. Not an Exception, so that no handler of the library takes it."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked


@contextlib.contextmanager
def answering(tuner: Any, answer: Callable[[Asked], Any]) -> Iterator[None]:
    """Within, ``answer`` takes the place of ``choose_one`` of the class ``tuner``."""
    before = tuner.choose_one

    def choose_one(self: Any, custom_op: str, runners: Any, tuning_config: Any, inputs: Any, **named: Any) -> Any:
        return answer(Asked(custom_op, runners, tuning_config, inputs))

    tuner.choose_one = choose_one
    try:
        yield
    finally:
        tuner.choose_one = before


def capture(tuner: Any, call: Callable[[], object]) -> Asked:
    """What ``call`` asks of the tuner; it is ended there, before its own kernels. Raises RuntimeError when it never asks."""
    def stop(asked: Asked) -> Any:
        raise _Captured(asked)

    with answering(tuner, stop):
        try:
            call()
        except _Captured as caught:
            return caught.asked
    raise RuntimeError("the call did not ask the tuner for a tactic")


def forced(tuner: Any, tactic: Any, call: Callable[[], object]) -> None:
    """``call`` with ``tactic``, whatever the tuner knows."""
    with answering(tuner, lambda asked: (asked.runners[0], tactic)):
        call()


def offer(tuner: Any, call: Callable[[], object]) -> dict[Hashable, Any]:
    """Every tactic that the runner of ``call`` declares valid, in a hashable form, and as the library wants it."""
    asked = capture(tuner, call)
    return {frozen(tactic): tactic for tactic in asked.runners[0].get_valid_tactics(asked.inputs, None)
            if frozen(tactic) != DEFAULT}


def tune(tuner: Any, autotune: Any, release: str, tokens: int, call: Callable[[], object]) -> Hashable:
    """Let the library tune the bucket of ``tokens`` for ``call``, and return what it would serve it with; -1 is its default.

    Raises VacuousTuning when it measured nothing.
    """
    served = bucket_of(release, CAP, tokens)
    if served is None:
        raise VacuousTuning(f"no bucket up to {CAP} serves {tokens} tokens")
    options: dict[str, Any] = {} if release == "0.6.6" else {"tuning_buckets": (served,), "round_up": True}
    live = tuner.get()
    before, known = Statistics.of(live), offer(tuner, call)
    with autotune(True, **options):
        call()
        asked = capture(tuner, call)
        read = choices(live, asked.op, asked.runners, asked.config, lambda _: asked.inputs, (served,))
    done = conclude(before, Statistics.of(live), read, {asked.op: [str(original) for original in known.values()]})
    if done.vacuous:
        raise VacuousTuning(done.sentence)
    by_name = {str(original): tactic for tactic, original in known.items()}
    return by_name.get(read[0].tactic, read[0].tactic)


def frozen(tactic: Any) -> Hashable:
    """Lists within a tactic as tuples."""
    return tuple(frozen(part) for part in tactic) if isinstance(tactic, list | tuple) else tactic
