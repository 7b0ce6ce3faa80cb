"""The backend plug-in protocol, version 1: what a kernel author implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from moeguard.core.case import Case
from moeguard.core.numerics import Numerics
from moeguard.layouts.contract import Probe
from moeguard.tensors.operand import Batch, Weights

PROTOCOL_VERSION = 1


class Refused(Exception):
    """Raised by a backend that will not run a case; must come before anything is written."""


class VacuousTuning(Exception):
    """Raised by ``Backend.tune`` when the library's tuning ran but measured nothing; the text says why.

    For example: every tactic was skipped, failed or ran out of memory, and the library went on with its default. It is a
    finding of kind ``vacuous_autotune``, and makes a run without other findings inconclusive.
    """


#: What a backend may raise to refuse a case that it does not support.
REFUSALS = (Refused, ValueError, NotImplementedError, RuntimeError, AssertionError)


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend can run on this machine at all."""

    available: bool
    reason: str = ""

    @classmethod
    def yes(cls) -> Availability:
        """It can."""
        return cls(True)

    @classmethod
    def no(cls, reason: str) -> Availability:
        """It cannot; ``reason`` is shown to the user."""
        return cls(False, reason)


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a backend has the capability that a case asks for."""

    supported: bool
    reason: str = ""

    @classmethod
    def yes(cls) -> Support:
        """It has."""
        return cls(True)

    @classmethod
    def no(cls, reason: str) -> Support:
        """It has not; the case is never launched."""
        return cls(False, reason)


@dataclass(frozen=True, slots=True)
class Traits:
    """What a backend declares about itself; every declaration is tested.

    deterministic: equal inputs give equal bits. graph_safe: may be captured in a CUDA graph. batch_invariant: a token's
    bits do not depend on the other tokens. noncontiguous: rows of ``batch.x`` and ``out`` with gaps between them.
    invalid_ids, duplicate_ids, zero_tokens, noncontiguous: ``supported`` (right answer),
    ``unsupported`` (raises before writing); invalid_ids may also be ``drop`` (the slot contributes nothing).
    Raises ValueError on any other value.
    """

    deterministic: bool = True
    graph_safe: bool = False
    batch_invariant: bool = False
    invalid_ids: Literal["supported", "unsupported", "drop"] = "unsupported"
    duplicate_ids: Literal["supported", "unsupported"] = "supported"
    zero_tokens: Literal["supported", "unsupported"] = "supported"
    noncontiguous: Literal["supported", "unsupported"] = "supported"

    def __post_init__(self) -> None:
        for name in ("deterministic", "graph_safe", "batch_invariant"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"traits.{name}: {getattr(self, name)!r}; allowed: True, False")
        for name in ("invalid_ids", "duplicate_ids", "zero_tokens", "noncontiguous"):
            allowed = ("supported", "unsupported", *(("drop",) if name == "invalid_ids" else ()))
            if getattr(self, name) not in allowed:
                raise ValueError(f"traits.{name}: {getattr(self, name)!r}; allowed: {', '.join(allowed)}")


class Backend(ABC):
    """One MoE kernel, or one way to call a library. Instances live as long as the worker process."""

    name: str

    def availability(self) -> Availability:
        """Whether this machine can run the backend: import, device, version."""
        return Availability.yes()

    def supports(self, case: Case) -> Support:
        """Whether the backend has the capability; decided without trying."""
        return Support.yes()

    @abstractmethod
    def prepare(self, weights: Weights, case: Case) -> Any:
        """Bring canonical weights into the layout that the kernel wants. The result is reused over many batches."""

    def tactics(self, prepared: Any, batch: Batch) -> Sequence[Hashable]:
        """Every tactic that an autotuner could pick for this batch."""
        return ()

    @abstractmethod
    def run(self, prepared: Any, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        """Write the answer into ``out`` and return None. ``workspace``: uint8 of ``workspace_bytes``, or None."""

    def traits(self, case: Case, tactic: Hashable | None = None) -> Traits:
        """Declared properties, which may differ per tactic."""
        return Traits()

    def numerics(self, case: Case, tactic: Hashable | None = None) -> Numerics:
        """Declared rounding points, which may differ per tactic."""
        return Numerics.of(case.recipe)

    def tune(self, prepared: Any, batch: Batch) -> Hashable | None:
        """Run the library's own autotuning; the tactic that it chose, None if it kept the default.

        Raises VacuousTuning when the library measured nothing, so that what it chose proves nothing.
        """
        return None

    def tuning_caps(self, prepared: Any, batch: Batch, caps: Sequence[int]) -> Sequence[int] | None:
        """Ask the library to tune for at most so many tokens, for each cap in turn and in this order.

        Launches no kernel, and leaves the library as it was. Returns for each cap the largest number of tokens that the
        tuner is configured for after it; None when the library has no such state.
        """
        return None

    def foreign_layouts(self, weights: Weights, case: Case) -> Mapping[str, Any]:
        """The weights prepared as other releases of the library expect them, by a short name that follows "weights".

        For example ``packed as for release 1``. The library must refuse each (raise before anything is written) or be right.
        Launches no kernel on the batch. Empty when the layouts of all releases are one, or none can be made here.
        """
        return {}

    def layout_probes(self, case: Case) -> Mapping[str, Probe]:
        """Functions of the library that ``prepare`` uses for ``case``, by a short name, with the layout that each must keep to.

        They are given index-encoded tensors before anything else runs: where an element is not where the layout puts it, the
        weights would be read wrongly.
        """
        return {}

    def executed_tactic(self) -> Hashable | None:
        """Witness after ``run``: the tactic that really ran, None when the backend cannot tell."""
        return None

    def workspace_bytes(self, prepared: Any, batch: Batch) -> int:
        """Bytes of caller-owned workspace that ``run`` needs."""
        return 0
