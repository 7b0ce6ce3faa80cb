"""What the adapters of this package share: availability by version, entry point and GPU, tactics through the tuner, layouts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeguard.backends.flashinfer_blackwell import tuner
from moeguard.backends.flashinfer_blackwell.entries import Entry, unknown
from moeguard.backends.flashinfer_blackwell.library import Library, load, refusal
from moeguard.backends.flashinfer_cutlass.library import installed
from moeguard.backends.protocol import Availability, Backend, Support
from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.layouts.contract import Probe
from moeguard.tensors.operand import Batch, Weights


@dataclass(frozen=True, slots=True)
class Served:
    """What prepared weights of every adapter hold. weights: kept alive. offers: tactics that were enumerated, by tokens."""

    case: Case
    weights: Weights
    offers: dict[int, dict[Hashable, Any]]


class Blackwell(Backend):
    """A function of FlashInfer for compute capability 10.x. Calls are not guarded: ids, layouts and counts go as they come."""

    def __init__(self, library: Library | None = None) -> None:
        """library: stands in for the installed FlashInfer."""
        self._library = library

    @abstractmethod
    def entries(self, recipe: str, release: str) -> Sequence[Entry]:
        """The functions that a run of ``recipe`` calls in ``release``, the main one first."""

    @abstractmethod
    def capabilities(self, release: str) -> Sequence[tuple[int, int]]:
        """Compute capabilities that ``release`` has the kernels for."""

    @abstractmethod
    def prepare_with(self, library: Library, weights: Weights, case: Case) -> Any:
        """``prepare`` by the functions of ``library``."""

    @abstractmethod
    def launch(self, library: Library, prepared: Any, batch: Batch, out: Tensor, *, tactic: Any = None,
               workspace: Tensor | None = None) -> None:
        """The calls of one run. tactic: passed to the function, where ``forces`` says that it takes one."""

    def parameters(self, case: Case) -> Sequence[str]:
        """Parameters of the main function that ``case`` needs, and that some release lacks."""
        return ()

    def forces(self, release: str) -> bool:
        """Whether the function takes a tactic itself; otherwise the tuner's answer is replaced."""
        return False

    @abstractmethod
    def probes_with(self, library: Library, case: Case) -> Mapping[str, Probe]:
        """``layout_probes`` of the functions of ``library``."""

    def release(self) -> str | None:
        """The release that is driven; None when there is none, or none that the adapters know. Imports nothing."""
        found = installed() if self._library is None else self._library.release
        return None if found is None or unknown(found) is not None else found

    def library(self) -> Library:
        """The library. Raises RuntimeError when none is installed, or none that the adapters know."""
        return load() if self._library is None else self._library

    def known(self, case: Case) -> Support:
        """Whether the release has what ``case`` needs, by name and version; yes when there is no release to ask."""
        release = self.release()
        if release is None:
            return Support.yes()
        main, *others = self.entries(case.recipe, release)
        reasons = (main.lacking(release, self.parameters(case)), *(entry.lacking(release) for entry in others))
        reason = next((text for text in reasons if text is not None), None)
        return Support.yes() if reason is None else Support.no(reason)

    def availability(self) -> Availability:
        release = self.release()
        named = {entry: None for recipe in RECIPES for entry in (self.entries(recipe, release) if release else ())}
        reason = refusal(named, self.capabilities(release) if release else ())
        return Availability.yes() if reason is None else Availability.no(reason)

    def prepare(self, weights: Weights, case: Case) -> Any:
        return self.prepare_with(self.library(), weights, case)

    def layout_probes(self, case: Case) -> Mapping[str, Probe]:
        return self.probes_with(self.library(), case)

    def run(self, prepared: Any, batch: Batch, out: Tensor, *, tactic: Hashable | None = None,
            workspace: Tensor | None = None) -> None:
        library = self.library()
        if tactic is None:
            tuner.forced(library.tuner, tuner.DEFAULT, lambda: self.launch(library, prepared, batch, out, workspace=workspace))
            return
        chosen = self._original(library, prepared, batch, out, tactic)
        if self.forces(library.release):
            self.launch(library, prepared, batch, out, tactic=chosen, workspace=workspace)
        else:
            tuner.forced(library.tuner, chosen, lambda: self.launch(library, prepared, batch, out, workspace=workspace))

    def tactics(self, prepared: Any, batch: Batch) -> tuple[Hashable, ...]:
        """What the library's own runner declares valid for this batch; no kernel of the MoE is launched."""
        return tuple(self._offer(self.library(), prepared, batch, None))

    def tune(self, prepared: Any, batch: Batch) -> Hashable | None:
        """FlashInfer's ``autotune`` for the bucket of this batch; None for its default, or without tokens."""
        library, tokens = self.library(), _tokens(batch)
        if not tokens:
            return None
        out = _output(batch, prepared.case)
        chosen = tuner.tune(library.tuner, library.autotune, library.release, tokens,
                            lambda: self.launch(library, prepared, batch, out))
        return None if chosen in (tuner.DEFAULT, str(tuner.DEFAULT)) else chosen

    def _offer(self, library: Library, prepared: Any, batch: Batch, out: Tensor | None) -> dict[Hashable, Any]:
        tokens = _tokens(batch)
        if tokens not in prepared.offers:
            target = _output(batch, prepared.case) if out is None else out
            prepared.offers[tokens] = tuner.offer(library.tuner, lambda: self.launch(library, prepared, batch, target))
        known: dict[Hashable, Any] = prepared.offers[tokens]
        return known

    def _original(self, library: Library, prepared: Any, batch: Batch, out: Tensor, tactic: Hashable) -> Any:
        """The library's own object behind a tactic or its ``str``. Raises ValueError for anything else."""
        known = self._offer(library, prepared, batch, out)
        if tactic in known:
            return known[tactic]
        named = {str(one): original for one, original in known.items()}
        if str(tactic) not in named:
            raise ValueError(f"tactic {tactic!r}; allowed: one of the {len(named)} that FlashInfer lists for this batch")
        return named[str(tactic)]


def _tokens(batch: Batch) -> int:
    return batch.x.data.shape[0] if batch.topk_ids is None else batch.topk_ids.shape[0]


def _output(batch: Batch, case: Case) -> Tensor:
    return torch.empty((*batch.x.data.shape[:-1], case.shape.hidden_size), dtype=torch.bfloat16, device=batch.x.data.device)
