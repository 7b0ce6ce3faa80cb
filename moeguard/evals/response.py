"""What is kept of a response: no text, only what lets two of them be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Words of a repeated sequence, share of repeated sequences above which a response runs in circles, and words below which
#: it is too short to say so.
SEQUENCE, CIRCLES, SHORT = 4, 0.5, 24
#: Hexadecimal digits of a link of the chain.
DIGITS = 8


@dataclass(frozen=True, slots=True)
class Response:
    """words: separated by white space. characters: in all. repetition: share of sequences of 4 words that occurred before.
    unprintable: share of characters that are neither printable nor white space, replacement characters among them. digest:
    sha256 of the text. chain: hashes of the text up to the end of each ``block`` of words, the last one up to its end, so that
    the first difference of two responses is found without either text. With a large block they cannot be guessed word by word.
    """

    words: int
    characters: int
    repetition: float
    unprintable: float
    digest: str
    chain: tuple[str, ...]
    block: int

    @classmethod
    def of(cls, text: str, block: int = 1) -> Response:
        """What is kept of ``text``."""
        words = text.split()
        sequences = [tuple(words[place:place + SEQUENCE]) for place in range(len(words) - SEQUENCE + 1)]
        repeated = 1 - len(set(sequences)) / len(sequences) if sequences else 0.0
        odd = sum(not (one.isprintable() or one.isspace()) or one == "\ufffd" for one in text)
        total, chain = hashlib.sha256(), []
        for place in range(0, len(words), block):
            total.update("\0".join([*words[place:place + block], ""]).encode("utf-8", "surrogatepass"))
            chain.append(total.hexdigest()[:DIGITS])
        return cls(len(words), len(text), round(repeated, 4), round(odd / len(text), 4) if text else 0.0,
                   hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), tuple(chain), block)

    @property
    def circles(self) -> bool:
        """Whether it runs in circles, as a model does that has lost its way."""
        return self.words >= SHORT and self.repetition > CIRCLES

    @property
    def garbage(self) -> bool:
        """Whether more than a twentieth of it cannot be printed."""
        return self.unprintable > 0.05

    def first_difference(self, other: Response) -> int | None:
        """Words after which the two part, rounded down to a multiple of ``block``; None when their words are equal."""
        if self.block != other.block:
            raise ValueError(f"block: {self.block} and {other.block}; allowed: equal ones")
        for place, (one, another) in enumerate(zip(self.chain, other.chain, strict=False)):
            if one != another:
                return place * self.block
        return None if len(self.chain) == len(other.chain) else min(len(self.chain), len(other.chain)) * self.block

    def to_data(self) -> dict[str, Any]:
        """JSON data; the chain as one string."""
        return {"words": self.words, "characters": self.characters, "repetition": self.repetition,
                "unprintable": self.unprintable, "digest": self.digest, "chain": "".join(self.chain), "block": self.block}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Response:
        """From JSON data. Raises KeyError, TypeError or ValueError when it is none."""
        joined = data["chain"]
        chain: Sequence[str] = [joined[place:place + DIGITS] for place in range(0, len(joined), DIGITS)]
        return cls(int(data["words"]), int(data["characters"]), float(data["repetition"]), float(data["unprintable"]),
                   str(data["digest"]), tuple(chain), int(data["block"]))
