"""Buckets of token counts, as evidence counts them."""

from __future__ import annotations


def token_bucket(num_tokens: int) -> int:
    """The largest power of two that is not above ``num_tokens`` (tuners once rounded down to it); 0 for no tokens."""
    return 1 << (num_tokens.bit_length() - 1) if num_tokens > 0 else 0
