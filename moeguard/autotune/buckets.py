"""Tuning buckets of FlashInfer's CUTLASS MoE: for which token counts it tunes, and which of them serves a batch.

Up to 0.6.9 the buckets are the powers of two, and a batch is served by the one below it; from 0.6.10 on they lie closer
together above 256, and a batch is served by the one above it. So tactics and allowlists do not carry over.
Source: ``flashinfer/fused_moe/utils.py`` and ``MoERunner`` in ``flashinfer/fused_moe/core.py`` of the releases.
"""

from __future__ import annotations

from typing import Literal

from packaging.version import InvalidVersion, Version

from moeguard.core.errors import MoeguardError

Rule = Literal["power_of_two_below", "hybrid_above"]

#: Releases whose sources were read, oldest first. The rule did not change between them, but at HYBRID_SINCE.
KNOWN = ("0.6.6", "0.6.9", "0.6.11.post2", "0.6.14", "0.6.18.post1", "0.7.4")
#: First release with the hybrid buckets.
HYBRID_SINCE = Version("0.6.10")
#: Hybrid buckets double up to 256 and above 4096; these lie between.
DOUBLING_UP_TO, DOUBLING_FROM = 256, 4096
LINEAR = (*range(512, 2049, 256), *range(2560, 4097, 512))


def rule_of(version: str) -> Rule:
    """How this release of flashinfer-python chooses buckets. Raises MoeguardError when it is no version."""
    try:
        return "hybrid_above" if Version(version) >= HYBRID_SINCE else "power_of_two_below"
    except InvalidVersion:
        raise MoeguardError(f"FlashInfer version: {version!r}; allowed: a release such as 0.7.4") from None


def buckets(version: str, cap: int) -> tuple[int, ...]:
    """Token counts, ascending, that are tuned for when ``tune_max_num_tokens`` is ``cap`` >= 1; MoeguardError below.

    The largest is ``cap`` itself, but with ``power_of_two_below`` the power of two that is not above it.
    """
    if cap < 1:
        raise MoeguardError(f"tune_max_num_tokens: {cap}; allowed: 1 or more")
    powers = tuple(1 << exponent for exponent in range(cap.bit_length()))
    if rule_of(version) == "power_of_two_below":
        return powers
    doubling = [power for power in powers if power <= DOUBLING_UP_TO or power > DOUBLING_FROM]
    return tuple(sorted({*doubling, *(bucket for bucket in LINEAR if bucket <= cap), cap}))


def bucket_of(version: str, cap: int, tokens: int) -> int | None:
    """The bucket whose tactic serves a batch of ``tokens`` when the tuner is configured for ``cap``.

    Beyond the cap that is the largest bucket, and 0 tokens are served as 1. None, so the untuned fallback, up to 0.6.9: for
    0 tokens, and when ``cap`` is no power of two and ``tokens`` reaches the next one, since such a batch is looked up under
    the cap itself, which was not tuned for.
    """
    known = buckets(version, cap)
    if rule_of(version) == "hybrid_above":
        return min((bucket for bucket in known if bucket >= tokens), default=known[-1])
    below = min(1 << (tokens.bit_length() - 1), cap) if tokens > 0 else 0
    return below if below in known else None
