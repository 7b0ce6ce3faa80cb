"""Which token counts each tuning bucket serves: a table over all counts up to what is served, made without listing them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from moeguard.autotune.buckets import buckets, rule_of


@dataclass(frozen=True, slots=True)
class Span:
    """The token counts that one tactic serves.

    bucket: tokens that the tactic was tuned for; None for the untuned fallback. first, last: the smallest and the largest
    number of tokens that it serves; None when it serves none. worst_ratio: tokens / bucket that is furthest from 1 by
    factor, rounded to four digits; None without a bucket or a count.
    """

    bucket: int | None
    first: int | None
    last: int | None

    @property
    def worst_ratio(self) -> float | None:
        """Tokens over bucket, of the count that lies furthest from it."""
        if self.bucket is None or self.first is None or self.last is None:
            return None
        below, above = self.bucket / self.first, self.last / self.bucket
        return round(above if above > below else 1 / below, 4)

    def to_data(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self) | {"worst_ratio": self.worst_ratio}


def spans(version: str, cap: int, served: int) -> tuple[Span, ...]:
    """The spans of the counts 1 to ``served``, one for each bucket of ``cap`` in ascending order, the fallback last.

    version: of flashinfer-python. Agrees with ``buckets.bucket_of`` on every count. Raises MoeguardError on a version or a cap
    that is none.
    """
    known = buckets(version, cap)
    if rule_of(version) == "hybrid_above":
        starts, ends = [1, *(bucket + 1 for bucket in known[:-1])], [*known[:-1], served]
        return tuple(_span(bucket, first, last, served) for bucket, first, last in zip(known, starts, ends, strict=True))
    lost = 2 * known[-1]  # such a count is looked up under the cap, which is a bucket only when it is a power of two
    ends = [*(bucket - 1 for bucket in known[1:]), served if cap == known[-1] else lost - 1]
    found = [_span(bucket, bucket, last, served) for bucket, last in zip(known, ends, strict=True)]
    return (*found, Span(None, lost, served)) if cap != known[-1] and served >= lost else tuple(found)


def _span(bucket: int, first: int, last: int, served: int) -> Span:
    """The span cut at ``served``."""
    return Span(bucket, first, min(last, served)) if first <= served else Span(bucket, None, None)
