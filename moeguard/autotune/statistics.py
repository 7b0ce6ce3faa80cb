"""What FlashInfer's tuner counts, and what it would choose: immutable values, read from a live ``AutoTuner``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

#: The tactic of FlashInfer that means "no tuned one".
FALLBACK = "-1"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters of an ``AutoTuner`` at one moment; per process and cumulative. Tactics are named by their ``str``.

    planned: by op, the buckets of its last tuning. tuned: by op, the buckets that got a winner, summed over all tunings.
    failing: by op, the number of buckets and runners with a tactic that raised. failed_tactics: by ``op::RunnerClass``,
    the tactics that raised, whatever the bucket; empty before 0.6.18, which does not record them.
    """

    planned: Mapping[str, int] = field(default_factory=dict)
    tuned: Mapping[str, int] = field(default_factory=dict)
    failing: Mapping[str, int] = field(default_factory=dict)
    failed_tactics: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, tuner: Any) -> Statistics:
        """The counters of ``AutoTuner.get()`` now. Source: ``AutoTunerStatistics``, releases 0.6.6 to 0.7.4."""
        live = tuner.stats
        failed = getattr(live, "failed_tactics", {})
        return cls(dict(live.tuned_op_total_configs), dict(live.tuned_op_successful_configs),
                   {op: len(keys) for op, keys in live.failed_profiling_count.items()},
                   {key: frozenset(map(str, tactics)) for key, tactics in failed.items()})

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"planned": dict(self.planned), "tuned": dict(self.tuned), "failing": dict(self.failing),
                "failed_tactics": {key: sorted(tactics) for key, tactics in self.failed_tactics.items()}}


@dataclass(frozen=True, slots=True)
class Choice:
    """What the tuner answers for ``tokens`` of ``op``. found: whether that was in its cache.

    tactic: by its ``str``; ``-1`` is the fallback, which is a measured choice only when it was found.
    """

    op: str
    tokens: int
    runner: str
    tactic: str
    found: bool

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self)


def choices(tuner: Any, op: str, runners: Sequence[Any], tuning_config: Any, inputs: Callable[[int], list[Any]],
            tokens: Iterable[int]) -> tuple[Choice, ...]:
    """Read back what the tuner would choose for each token count, outside of tuning and without launching.

    runners, tuning_config: as the library gives them to ``choose_one``. inputs: a token count to the tensors of a call.
    """
    read = []
    for count in tokens:
        given = inputs(count)
        shapes = tuple(tuner._get_input_sizes(given))
        more = {"inputs": given} if "inputs" in inspect.signature(tuner.search_cache).parameters else {}
        found, index, tactic, _ = tuner.search_cache(op, runners, shapes, tuning_config, **more)
        read.append(Choice(op, count, type(runners[index]).__name__, str(tactic), bool(found)))
    return tuple(read)
