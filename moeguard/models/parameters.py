"""Parameters of a model from the counter-based generator: the same bits on every device, and no download."""

from __future__ import annotations

import torch
from torch import nn

from moeguard.tensors.counter import Stream


def fill(model: nn.Module, seed: int, device: str) -> None:
    """Give every parameter of ``model`` memory on ``device`` and its content, in float32.

    Matrices [N, D] are normal with variance 1/D, embeddings with variance 1; norms are 1, other vectors 0. Buffers are made
    by their modules again, since a model without memory has none.
    """
    stream = Stream("model", seed, device=device)
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0 if "norm" in name else 0.0)
                continue
            scale = 1.0 if "embed" in name else parameter.shape[-1] ** -0.5
            for row in range(0, len(parameter), ROWS):
                part = parameter[row: row + ROWS]
                part.copy_(stream.normal(f"{name}.{row}", part.numel()).view_as(part).mul_(scale))
        for module in model.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                if "inv_freq" not in name:
                    buffer.zero_()
    for child in list(model.model.children()):  # type: ignore[union-attr]
        if hasattr(child, "inv_freq"):
            model.model.rotary_emb = type(child)(model.config).to(device)  # type: ignore[union-attr]


#: Rows of a matrix that are made at a time.
ROWS = 1 << 13
