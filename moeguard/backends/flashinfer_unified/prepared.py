"""One runner with its weights, and the packing of a batch for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_unified.library import Library
from moeguard.backends.protocol import Refused
from moeguard.core.case import Case
from moeguard.tensors.operand import Batch, Weights


@dataclass(frozen=True, slots=True)
class Prepared:
    """A built runner for one case, and its view of the weights.

    scaled: name in the view of the GEMM1 scale that the scale of x belongs to, in fp8_per_tensor. narrow_x: whether x is
    passed as e4m3; otherwise its codes are passed as bf16, which holds each of them. routing: name of the ``RoutingInputMode``.
    """

    case: Case
    runner: Any
    view: dict[str, Tensor]
    scaled: str | None
    narrow_x: bool
    routing: str
    weights: Weights

    def pack(self, library: Library, batch: Batch) -> Any:
        """The inputs of ``runner.forward``, whose first dimension is that of the batch. Raises what the runner raises."""
        api, view, x = library.api, self.view, batch.x.data
        if self.scaled is not None:
            assert batch.x.scale is not None
            view = view | {self.scaled: view[self.scaled] * batch.x.scale}
            x = x if self.narrow_x else x.to(torch.bfloat16)
        activations = api.MoEActivationPack(x, None, batch.topk_ids, batch.topk_weights,
                                            routing_input_mode=api.RoutingInputMode[self.routing])
        return self.runner.pack_inputs(activations, api.MoEWeightPack({self.runner.backend_key: view}))


def into(inputs: Any, out: Tensor) -> None:
    """Let the runner write into ``out`` in place of the tensor that it allocated in ``pack_inputs``.

    cuTile has it first; Frost, before the flag ``narrow``. Raises Refused for rows with gaps, which the runners never
    allocate, and RuntimeError when there is no such tensor.
    """
    if not out.is_contiguous():
        raise Refused("the runner allocates its output itself, without gaps between rows")
    flags = [place for place, value in enumerate(inputs) if isinstance(value, bool)]
    place = flags[0] - 1 if flags else 0
    own = inputs[place]
    if own.shape != out.shape or own.dtype != out.dtype:
        raise RuntimeError(f"no output {tuple(out.shape)} among the inputs of the runner")
    inputs[place] = out
