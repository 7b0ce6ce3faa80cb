"""Stand-ins that let the real ``AutoTuner`` of FlashInfer tune on a CPU: runners without kernels, a clock without a GPU."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

#: Name of the op that the stand-ins are tuned for.
OP = "moeguard::fake"
HIDDEN = 8


def runner(tactics: Sequence[int], microseconds: Callable[[int, int], float], name: str = "FakeRunner",
           failing: Callable[[int, int], BaseException | None] = lambda tokens, tactic: None) -> Any:
    """A ``TunableRunner`` of the installed FlashInfer, of a class called ``name``.

    microseconds: (tokens, tactic) to what the clock shows. failing: (tokens, tactic) to what a run raises, or None.
    """
    base = importlib.import_module("flashinfer.autotuner").TunableRunner

    def get_valid_tactics(self: Any, inputs: list[Any], profile: Any) -> list[int]:
        return list(tactics)

    def forward(self: Any, inputs: list[Any], tactic: int = -1, do_preparation: bool = False, **keywords: Any) -> Any:
        if do_preparation:
            return None
        self.ran.append((inputs[0].shape[0], tactic))
        error = failing(inputs[0].shape[0], tactic)
        if error is not None:
            raise error
        return microseconds(inputs[0].shape[0], tactic)

    made = type(name, (base,), {"get_valid_tactics": get_valid_tactics, "forward": forward, "ran": [],
                                "__hash__": lambda self: hash(name)})
    return made()


def inputs(tokens: int, linked: int = 1) -> list[torch.Tensor]:
    """``linked`` tensors [tokens, HIDDEN] on the CPU."""
    return [torch.zeros(tokens, HIDDEN) for _ in range(linked)]


def tuning_config(real: Any, linked: int = 1) -> Any:
    """A ``TuningConfig`` with the buckets of ``real``, whose first dimension is shared by ``linked`` tensors."""
    library = importlib.import_module("flashinfer.autotuner")
    (spec,) = real.dynamic_tensor_specs
    shared = library.DynamicTensorSpec(tuple(range(linked)), (0,) * linked, spec.gen_tuning_buckets, spec.map_to_tuning_buckets)
    return library.TuningConfig(dynamic_tensor_specs=(shared,))


@contextlib.contextmanager
def tuner() -> Iterator[Any]:
    """A fresh ``AutoTuner`` as the process-wide one, whose clock shows what a runner returns.

    ``_profile_single_kernel``, which needs CUDA, is replaced by one call of the runner, and so is torch's question whether
    a CUDA graph is being captured (no); all else is the library's own.
    """
    library = importlib.import_module("flashinfer.autotuner").AutoTuner
    held, clock, capturing = library._instance, library._profile_single_kernel, torch.cuda.is_current_stream_capturing

    def profile(self: Any, given: Any, tensors: list[Any], tactic: Any, config: Any, **keywords: Any) -> float:
        keywords.pop("input_tensor_batches", None)
        return float(given(tensors, tactic=tactic, **keywords))

    library._instance, library._profile_single_kernel = None, profile
    torch.cuda.is_current_stream_capturing = lambda: False
    try:
        yield library.get()
    finally:
        library._instance, library._profile_single_kernel = held, clock
        torch.cuda.is_current_stream_capturing = capturing


def tune(active: Any, runners: Sequence[Any], config: Any, tokens: int, linked: int = 1, *, op: str = OP,
         **options: Any) -> tuple[str, int]:
    """One ``choose_one`` inside ``autotune(True, **options)``: the class of the runner and the tactic that came back."""
    library = importlib.import_module("flashinfer.autotuner")
    with library.autotune(True, **options):
        chosen, tactic = active.choose_one(op, list(runners), config, inputs(tokens, linked))
    return type(chosen).__name__, tactic
