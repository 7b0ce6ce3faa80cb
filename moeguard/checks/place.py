"""Where in the output a finding lies: a coarse map of tokens x hidden that fits into a report."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Cells of a map along each axis, at most.
CELLS = 32


def place_map(value: Tensor, meaning: str) -> dict[str, Any]:
    """The largest of ``value`` [T, H] (non-negative) in each cell of a grid of at most CELLS x CELLS.

    JSON data: meaning; tokens, hidden; rows, columns of one cell; values [ceil(T/rows)][ceil(H/columns)], 3 digits.
    """
    tokens, hidden = value.shape
    rows, columns = max(1, -(-tokens // CELLS)), max(1, -(-hidden // CELLS))
    padded = torch.nn.functional.pad(value.double().nan_to_num(posinf=1e30), (0, -hidden % columns, 0, -tokens % rows))
    cells = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns).amax((1, 3))
    return {"meaning": meaning, "tokens": tokens, "hidden": hidden, "rows": rows, "columns": columns,
            "values": [[float(f"{cell:.3g}") for cell in line] for line in cells.tolist()]}
