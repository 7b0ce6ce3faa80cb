"""What a call leaves on the device: errors that are told later, and contexts that an illegal access has made useless."""

from __future__ import annotations

import torch

#: Exit code of a worker that ends for this reason.
DEVICE_LOST = 70


def settle(device: torch.device | str) -> None:
    """Wait for what was launched on ``device``. Raises RuntimeError for what it left behind: a fault, or a launch that failed.

    A wait does not tell of the latter: the runtime keeps it until somebody asks, as torch does after each kernel of its own.
    """
    if torch.device(device).type == "cuda":
        torch.ones(1, device=device)
        torch.cuda.synchronize()


def device_lost(device: torch.device | str) -> bool:
    """Whether an error sticks to the CUDA context of this process; never on a CPU."""
    if torch.device(device).type != "cuda":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
