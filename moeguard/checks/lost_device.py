"""A CUDA context that an illegal access has made useless: nothing that its process runs later can be trusted."""

from __future__ import annotations

import torch

#: Exit code of a worker that ends for this reason.
DEVICE_LOST = 70


def device_lost(device: torch.device | str) -> bool:
    """Whether an error sticks to the CUDA context of this process; never on a CPU."""
    if torch.device(device).type != "cuda":
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
