"""Which cap FlashInfer's tuner works with after ``tune_max_num_tokens`` was given.

``MoERunner.refine_tuning_config`` keeps the tuning configuration in its class, and an unbounded ``lru_cache`` is wrapped
around it: a cap that was given before is remembered and does nothing. So 8192, then 512, then 8192 leaves 512, in all
releases from 0.6.6 to 0.7.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def kept(caps: Sequence[int]) -> int | None:
    """The cap that holds after ``caps`` were given in turn in one process: the last one that was not given before."""
    return next(iter(reversed(list(dict.fromkeys(caps)))), None)


def effective_cap(runner_class: type, cap: int) -> int:
    """Give ``cap`` to the class and return the largest bucket that it is configured for afterwards.

    runner_class: a FlashInfer ``MoERunner``. Launches nothing, but changes the class. Raises AttributeError when the
    class is built in another way than the releases that are known (0.6.6 to 0.7.4).
    """
    refining: Any = runner_class
    refining.refine_tuning_config(cap)
    return largest_bucket(refining.tuning_config)


def effective_caps(runner_class: type, caps: Sequence[int]) -> list[int]:
    """``effective_cap`` for each cap in turn, on a throwaway subclass: the class itself stays as it was.

    The subclass has a configuration and remembered calls of its own, so the sequence starts afresh, whatever came before.
    FlashInfer's cache keeps it alive: ask once in a process.
    """
    throwaway = type(runner_class.__name__, (runner_class,), {})
    return [effective_cap(throwaway, cap) for cap in caps]


def largest_bucket(tuning_config: Any) -> int:
    """The largest token count that a FlashInfer ``TuningConfig`` is to be tuned for, by its first dynamic dimension."""
    buckets = tuning_config.dynamic_tensor_specs[0].gen_tuning_buckets
    return max(int(bucket) for bucket in buckets)
