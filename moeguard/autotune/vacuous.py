"""Whether a tuning proved anything: FlashInfer ends with its fallback, and without a word, when it could measure nothing.

Seen on an H200: where the timing kernel cannot be built, every tactic counts as unsupported and nothing raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moeguard.autotune.statistics import FALLBACK, Choice, Statistics


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a tuning amounts to.

    reasons: one sentence for each op for which it was vacuous; empty when it was not. warm: by op, whether nothing was
    measured because every bucket was in the cache already. fallback: the (op, tokens) pairs that are served by the
    fallback although the tuning was not vacuous.
    """

    reasons: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    fallback: tuple[tuple[str, int], ...] = ()

    @property
    def vacuous(self) -> bool:
        """Whether at least one op was not tuned."""
        return bool(self.reasons)

    @property
    def sentence(self) -> str:
        """All reasons on one line."""
        return "; ".join(self.reasons)

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return {"vacuous": self.vacuous, "reasons": list(self.reasons), "warm": list(self.warm),
                "fallback": [list(pair) for pair in self.fallback]}


def conclude(before: Statistics, after: Statistics, chosen: Iterable[Choice],
             offered: Mapping[str, Iterable[str]]) -> Conclusion:
    """Decide from the counters around a tuning and from what was read back after it.

    chosen: what the tuner answers afterwards, for every bucket that matters. offered: by op, the tactics (by ``str``) that
    were up for choice; the fallback does not count. Every op of ``offered`` has to be tuned.
    """
    reasons, warm, fallback = [], [], []
    read = tuple(chosen)
    for op, tactics in offered.items():
        real = {str(tactic) for tactic in tactics} - {FALLBACK}
        mine = [choice for choice in read if choice.op == op]
        reason = _reason(op, before, after, mine, real)
        if reason is not None:
            reasons.append(reason)
            continue
        if after.tuned.get(op, 0) == before.tuned.get(op, 0):
            warm.append(op)
        fallback += [(op, choice.tokens) for choice in mine if not choice.found]
    return Conclusion(tuple(reasons), tuple(warm), tuple(fallback))


def _reason(op: str, before: Statistics, after: Statistics, mine: list[Choice], real: set[str]) -> str | None:
    """Why the tuning of ``op`` was vacuous, None when it was not."""
    if not real:
        return f"{op}: no tactic was offered but the fallback"
    failed = frozenset().union(*(tactics for key, tactics in after.failed_tactics.items() if key.startswith(f"{op}::")))
    if real <= failed and not any(choice.found and choice.tactic != FALLBACK for choice in mine):
        return f"{op}: each of the {len(real)} offered tactics failed while it was profiled"
    if any(choice.found for choice in mine):
        return None
    gained = after.tuned.get(op, 0) - before.tuned.get(op, 0)
    if gained > 0 and not mine:
        return f"{op}: {gained} buckets were tuned, but no choice was read back"
    if gained > 0:
        return (f"{op}: {gained} of {after.planned.get(op, 0)} buckets were tuned, and none of those that were asked for: "
                f"the fallback serves them")
    if op not in after.planned:
        return f"{op}: the tuner was not asked about it, or skipped it"
    if after.failing.get(op, 0) > before.failing.get(op, 0):
        return f"{op}: tactics failed while they were profiled, none of {after.planned[op]} buckets was tuned"
    return f"{op}: none of {after.planned[op]} buckets was tuned; memory ran out, or every tactic was left out"
