"""``python -m moeguard.backends.flashinfer_cutlass.build``: compile FlashInfer's modules before a run needs them.

Exit codes: 0 all are there; 1 a build failed; 2 no release of FlashInfer that the adapter knows, or bad usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from moeguard.backends.flashinfer_cutlass import modules
from moeguard.backends.flashinfer_cutlass.library import load


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, and print one line a module. Returns the exit code; the compiler's output goes to stdout too."""
    parser = argparse.ArgumentParser(prog=modules.COMMAND, description=(
        "Compile FlashInfer's CUTLASS MoE kernels for Hopper and the timer of its tuner, as far as no package holds them. Needs "
        "nvcc, and a GPU or FLASHINFER_CUDA_ARCH_LIST=9.0a. Takes up to half an hour; MAX_JOBS bounds the parallel compilers. "
        "Goes on where an earlier build stopped."))
    parser.parse_args(arguments)
    try:
        release = load().release
    except Exception as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        done = modules.build()
    except Exception as error:
        print(f"error: FlashInfer {release.version}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    for name, built in done:
        print(f"{name}: {'built' if built else 'found in a package'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
