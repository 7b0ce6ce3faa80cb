"""The compiled modules that FlashInfer needs here: whether they are there, and building them ahead of a run.

FlashInfer compiles what it does not find at first use. For the MoE kernels that takes half an hour, in which a call into the
library looks like a hang.
"""

from __future__ import annotations

from typing import Any

#: What builds them.
COMMAND = "python -m moeguard.backends.flashinfer_cutlass.build"


def needed() -> tuple[Any, ...]:
    """FlashInfer's ``JitSpec`` of the SM90 kernels and of the timer that its tuner uses; nothing is compiled.

    Raises what FlashInfer raises: ImportError, RuntimeError without a CUDA architecture, ...
    """
    from flashinfer.jit.fused_moe import gen_cutlass_fused_moe_sm90_module
    from flashinfer.jit.tllm_utils import gen_trtllm_utils_module

    return gen_cutlass_fused_moe_sm90_module(), gen_trtllm_utils_module()


def missing() -> str | None:
    """A sentence about modules that neither a package (flashinfer-jit-cache) nor an earlier build holds; None when all are there.

    Raises what ``needed`` raises.
    """
    names = [str(spec.name) for spec in needed() if not spec.is_compiled]
    if not names:
        return None
    return (f"FlashInfer's compiled {'module' if len(names) == 1 else 'modules'} {' and '.join(names)} "
            f"{'is' if len(names) == 1 else 'are'} missing; build with: {COMMAND}")


def build() -> list[tuple[str, bool]]:
    """Build what no package holds. Returns names and whether ninja was started, which does nothing for what is up to date.

    Raises what ``needed`` raises, and RuntimeError when the compiler fails.
    """
    done = []
    for spec in needed():
        if not spec.is_aot:
            spec.build(True, need_lock=True)
        done.append((str(spec.name), not spec.is_aot))
    return done
