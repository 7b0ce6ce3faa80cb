"""Codecs: number formats, rounding, and scales per tensor, per row block and per weight block."""
