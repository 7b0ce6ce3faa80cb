"""Has a tensor changed? Copies for the small inputs of each execution, digests for the weights of a scenario."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_PERIOD = 4096


def storage_bytes(tensor: Tensor) -> Tensor:
    """The whole storage behind ``tensor`` as uint8, padding between rows included."""
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(tensor.untyped_storage())


class Snapshot:
    """Copies of tensors by name, to see and undo changes."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._live = {name: storage_bytes(tensor) for name, tensor in tensors.items()}
        self._copies = {name: data.clone() for name, data in self._live.items()}

    def changed(self) -> list[str]:
        """Names of tensors whose bytes differ from the copy."""
        return [name for name, copy in self._copies.items() if not torch.equal(copy, self._live[name])]

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The bytes as they are and their copies, uint8, tensor by tensor."""
        return [(self._live[name], copy) for name, copy in self._copies.items()]

    def differing(self) -> Tensor:
        """Number of bytes that differ from the copies, 0-d int64 on the device, which is not waited for."""
        counts = [(copy != self._live[name]).sum() for name, copy in self._copies.items()]
        return torch.stack(counts).sum()

    def restore(self) -> None:
        """Write the copies back."""
        for name, copy in self._copies.items():
            self._live[name].copy_(copy)


def digest(tensor: Tensor) -> int:
    """A 64-bit position-weighted sum over the storage of ``tensor``; equal contents give equal digests.

    Any change of a single 64-bit word changes it; a random change goes unseen with probability 2**-64.
    """
    data = storage_bytes(tensor)
    padded = torch.nn.functional.pad(data, (0, -data.numel() % (8 * _PERIOD)))
    words = padded.view(torch.int64).view(-1, _PERIOD)
    columns = _odd_weights(_PERIOD, 1, str(tensor.device))
    rows = _odd_weights(words.shape[0], 2, str(tensor.device))
    return int(((words * columns).sum(1) * rows).sum())


@lru_cache(maxsize=64)
def _odd_weights(count: int, seed: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(-(2**62), 2**62, (count,), generator=generator, dtype=torch.int64) * 2 + 1
    return weights.to(device)
