"""FlashInfer's tactics blocklist: a file of tactic ids that its tuner leaves out when it profiles.

The tuner of FlashInfer 0.6.18 and later reads it once, when it is made, from the path in ``FLASHINFER_TACTICS_BLOCKLIST``. An
entry is about an operation and a runner class, whatever shapes and types they are called with. Where the file has metadata,
each key of the running environment must be there with the same value or ``*``, otherwise FlashInfer skips the whole file with
a warning. Choices that are cached already, and the default, are not affected.
Source: ``flashinfer/tactics_blocklist.py`` of 0.6.18.post1 and 0.7.4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from moeguard.core.errors import AllowlistError
from moeguard.gate.pair import DEFAULT, pair_of
from moeguard.gate.tables import text_of

VARIABLE = "FLASHINFER_TACTICS_BLOCKLIST"
#: Backends whose tactics are pairs of ids of these two operations, which one runner class serves.
BACKENDS = ("flashinfer_cutlass", "flashinfer_cutlass_unfused")
OPS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")
RUNNER = "MoERunner"
#: First release that reads such a file.
SINCE = Version("0.6.18")
#: What the releases compare; ``*`` stands for any value.
METADATA = ("flashinfer_version", "cuda_version", "cublas_version", "cudnn_version", "cudnn_frontend_version",
            "cutlass_dsl_version", "gpu")
ANY = "*"


@dataclass(frozen=True, slots=True)
class Blocklist:
    """metadata: None loads everywhere. gemm1, gemm2: ids that are blocked, by stage."""

    metadata: Mapping[str, Any] | None
    gemm1: frozenset[int]
    gemm2: frozenset[int]

    @classmethod
    def of(cls, tactics: Iterable[str], flashinfer: str, cuda: str | None = None, gpu: str | None = None) -> Blocklist:
        """That of single tactics, such as ``(3, -1)``, for one environment; None for any CUDA or GPU. Pairs of two ids are
        left out: they are blocked by the single one of theirs that is at fault."""
        pairs = [pair for name in tactics if (pair := pair_of(name)) is not None and DEFAULT in pair]
        stated = {"flashinfer_version": flashinfer, "cuda_version": cuda or ANY, "gpu": gpu or ANY}
        metadata = dict.fromkeys(METADATA, ANY) | stated
        return cls(metadata, frozenset(one.gemm1 for one in pairs) - {DEFAULT}, frozenset(one.gemm2 for one in pairs) - {DEFAULT})

    @classmethod
    def load(cls, path: Path) -> Blocklist:
        """Read a file. Raises AllowlistError with one sentence when it is none that FlashInfer reads."""
        try:
            data = json.loads(text_of(path, "tactics blocklist"))
        except (ValueError, RecursionError):
            raise AllowlistError(f"{path}: not valid JSON; allowed: a FlashInfer tactics blocklist") from None
        rows = data.get("invalid_tactics") if isinstance(data, dict) else None
        metadata = data.get("_metadata") if isinstance(data, dict) else None
        if not isinstance(rows, dict) or not isinstance(metadata, dict | None) or not all(
                isinstance(ids, list) for ids in rows.values()):
            raise AllowlistError(f"{path}: invalid_tactics: allowed: a list of tactics for each operation and runner")
        first, second = (frozenset(one for one in rows.get(f"{op}::{RUNNER}", ()) if type(one) is int) for op in OPS)
        return cls(metadata, first, second)

    def blocks(self, tactic: str) -> bool:
        """Whether the tuner cannot choose it: one of its ids is blocked."""
        pair = pair_of(tactic)
        return pair is not None and (pair.gemm1 in self.gemm1 or pair.gemm2 in self.gemm2)

    def loads(self, flashinfer: str | None, cuda: str | None, gpu: str | None) -> bool:
        """Whether FlashInfer takes the file in this environment; what is not known of it must be ``*``."""
        if self.metadata is None:
            return True
        here = dict.fromkeys(METADATA) | {"flashinfer_version": flashinfer, "cuda_version": cuda, "gpu": gpu}
        return all(found == ANY or (found is not None and found == value)
                   for name, value in here.items() for found in (self.metadata.get(name),))

    def to_data(self) -> dict[str, Any]:
        """JSON data, as FlashInfer reads it."""
        rows = {f"{op}::{RUNNER}": sorted(ids) for op, ids in zip(OPS, (self.gemm1, self.gemm2), strict=True) if ids}
        return ({} if self.metadata is None else {"_metadata": dict(self.metadata)}) | {"invalid_tactics": rows}


def reads(flashinfer: str | None) -> bool:
    """Whether this release of flashinfer-python reads a blocklist."""
    try:
        return flashinfer is not None and Version(flashinfer) >= SINCE
    except InvalidVersion:
        return False


def obstacle(backend: str, tactic: str, at_fault: Iterable[str]) -> str | None:
    """Why ``tactic`` of ``backend`` cannot be blocked, as a clause; None when it can.

    A pair of two ids cannot be blocked as a pair: it is blocked when one of its ids is ``at_fault`` alone.
    """
    if backend not in BACKENDS:
        return f"{backend} has no tactics blocklist; allowed: {', '.join(BACKENDS)}"
    pair = pair_of(tactic)
    if pair is None:
        return f"tactic {tactic} of {backend} is no pair of ids such as (3, -1)"
    if pair == (DEFAULT, DEFAULT):
        return f"the default tactic of {backend} cannot be blocked, since the tuner falls back to it; choose another backend"
    if DEFAULT not in pair and not set(pair.singles) & set(at_fault):
        return (f"tactic {tactic} of {backend} cannot be blocked: FlashInfer blocks ids of one stage, and neither "
                f"{' nor '.join(pair.singles)} alone is at fault; keep autotuning off")
    return None
