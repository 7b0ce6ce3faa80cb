"""Which FlashInfer releases the adapter knows, and what differs between them. Nothing here imports FlashInfer.

Every row was read off the release's own Python sources (signatures of ``flashinfer.fused_moe.cutlass_fused_moe`` and of its
``MoERunner``, bucket functions of its tuning configuration); the shifted GEMM2 ids are flashinfer#3661.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """What one release has.

    profile_ids: a tactic can be passed to the call (flashinfer#4057); without, the tuner's choice is replaced.
    workspace: the caller may own the workspace. fused_finalize: the call takes ``use_fused_finalize``.
    humming: MXFP4 weights with FP8 activations. interleaved: 4-bit weights must be interleaved for Hopper
    (flashinfer#3084, first in 0.6.10), earlier releases take them as packed. interleaved_bits: MXFP4 weights go bit by bit
    and their scales are folded, where releases up to 0.6.14 move whole nibbles, and scales as before the interleaving.
    int4_scales: the interleaving of scales takes bf16 ones, of int4 weights. tuning_buckets: ``autotune`` takes them.
    geglu_tanh: the activation is there. shifted_gemm2: GEMM2 ids below the number of GEMM2 tactics run another tactic than
    the tuner chose (flashinfer#3661).
    """

    version: str
    profile_ids: bool = True
    workspace: bool = True
    fused_finalize: bool = True
    humming: bool = True
    interleaved: bool = True
    interleaved_bits: bool = True
    int4_scales: bool = True
    tuning_buckets: bool = True
    geglu_tanh: bool = True
    shifted_gemm2: bool = False


_EARLY = {"profile_ids": False, "workspace": False, "fused_finalize": False, "humming": False, "int4_scales": False,
          "interleaved_bits": False, "shifted_gemm2": True}
RELEASES: dict[str, Release] = {
    release.version: release
    for release in (
        Release("0.6.6", **_EARLY, interleaved=False, tuning_buckets=False, geglu_tanh=False),
        Release("0.6.9", **_EARLY, interleaved=False, tuning_buckets=False, geglu_tanh=False),
        Release("0.6.11.post2", **_EARLY, geglu_tanh=False),
        Release("0.6.14", **_EARLY),
        Release("0.6.18.post1"),
        Release("0.7.4"),
    )
}


def release(version: str) -> Release | str:
    """The row of ``version``, or one sentence that says why there is none."""
    known = RELEASES.get(version)
    if known is None:
        return f"FlashInfer {version} is not in the version table; known: {', '.join(RELEASES)}"
    return known
