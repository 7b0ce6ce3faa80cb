"""Everything that one release is asked, in the process that has it first on its path."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import torch

from moeguard.backends.flashinfer_blackwell import entries
from moeguard.backends.flashinfer_blackwell.backend import Blackwell
from moeguard.backends.flashinfer_blackwell.cutedsl import FlashInferCuteDSL
from moeguard.backends.flashinfer_blackwell.cutedsl_batched import FlashInferCuteDSLBatched
from moeguard.backends.flashinfer_blackwell.entries import Entry
from moeguard.backends.flashinfer_blackwell.library import MissingEntry
from moeguard.backends.flashinfer_blackwell.trtllm import FlashInferTRTLLM, FlashInferTRTLLMLogits
from moeguard.backends.flashinfer_cutlass import library
from moeguard.backends.flashinfer_cutlass.backend import FlashInferCutlass, FlashInferCutlassUnfused
from moeguard.backends.flashinfer_unified.backend import FlashInferUnified
from moeguard.backends.flashinfer_unified.cutile import FlashInferCuTile
from moeguard.backends.flashinfer_unified.frost import FlashInferFrost
from moeguard.backends.protocol import Backend
from moeguard.backends.wheel_contract import cutlass, standins, unified, witnesses
from moeguard.backends.wheel_contract.recorder import Mismatch, Recorder
from moeguard.backends.wheel_contract.row import Row
from moeguard.backends.wheel_contract.samples import refusal, samples
from moeguard.core.case import Case
from moeguard.core.recipe import RECIPES
from moeguard.layouts import hopper, scales
from moeguard.layouts.contract import Probe
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

BLACKWELL = (FlashInferCuteDSL, FlashInferCuteDSLBatched, FlashInferTRTLLM, FlashInferTRTLLMLogits)
CUTLASS = (FlashInferCutlass, FlashInferCutlassUnfused)
UNIFIED = (FlashInferCuTile, FlashInferFrost)


def examine(recipes: Sequence[str] = tuple(RECIPES)) -> dict[str, Any]:
    """JSON data: ``version``, ``stood_in`` (what is missing here), ``rows`` (of Row), ``table`` (where it is wrong), ``layouts``,
    ``changed`` (what kernels of this release read in another layout than those of an earlier one).

    Raises what the import of FlashInfer raises.
    """
    torch.set_num_threads(1)  # small tensors
    stood_in = standins.install()
    release = version(library.PACKAGE)
    import flashinfer  # noqa: F401 - so that a release that does not import says so, and not in every row

    rows: list[Row] = []
    for kind in (*CUTLASS, *UNIFIED, *BLACKWELL):
        for recipe in recipes:
            rows.append(_row(kind, recipe, release))
    return {"version": release, "stood_in": stood_in, "rows": [row.to_data() for row in rows], "table": list(_table(release)),
            "layouts": [*_layouts(release), *witnesses.asked(release)], "changed": list(_changed(release))}


def _row(kind: type[Backend], recipe: str, release: str) -> Row:
    """One adapter with one recipe."""
    reason = entries.unknown(release) if issubclass(kind, Blackwell) else None
    if reason is not None:
        return Row(kind.name, recipe, False, reason)
    called: dict[str, None] = {}
    executed: set[str] = set()
    tried: list[str] = []
    backend = _asked(kind, release)
    try:
        for name, case in samples(backend, recipe):
            calls, ran = _calls(kind, case, release)
            called |= dict.fromkeys(calls)
            executed |= set(ran)
            tried.append(name)
    except (Mismatch, MissingEntry) as error:
        return Row(kind.name, recipe, False, str(error), tuple(tried))
    except Exception as error:
        return Row(kind.name, recipe, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", tuple(tried))
    if not tried:
        return Row(kind.name, recipe, False, refusal(backend, recipe))
    return Row(kind.name, recipe, True, None, tuple(tried), tuple(sorted(called)), tuple(sorted(executed)))


def _asked(kind: type[Backend], release: str) -> Backend:
    return kind(Recorder(release)) if issubclass(kind, Blackwell) else kind()


def _calls(kind: type[Backend], case: Case, release: str) -> tuple[list[str], list[str]]:
    """Names of the functions that the run of ``case`` was bound to, and of the helpers that ran."""
    if not issubclass(kind, Blackwell):
        backend = kind()
        if isinstance(backend, FlashInferUnified):
            called, ran = unified.bound(backend, case)
            return list(called), list(ran)
        assert isinstance(backend, FlashInferCutlass)
        if not backend.fused and not library.load().release.fused_finalize:
            raise Mismatch(f"FlashInfer {release} has no use_fused_finalize")
        called, ran = cutlass.bound(backend, case)
        return list(called), list(ran)
    recorder = Recorder(release)
    adapter = kind(recorder)
    problem = build_problem(case, WeightBank())
    prepared = adapter.prepare(problem.weights, case)
    shape = (*problem.batch.x.shape[:-1], case.shape.hidden_size)
    adapter.launch(recorder, prepared, problem.batch, torch.zeros(shape, dtype=torch.bfloat16))
    if adapter.forces(release):
        adapter.launch(recorder, prepared, problem.batch, torch.zeros(shape, dtype=torch.bfloat16), tactic=(1,))
    return [name for name, _ in recorder.called], list(recorder.executed)


def _table(release: str) -> Iterator[str]:
    """Where the version table of the adapters disagrees with the release."""
    if entries.unknown(release) is not None:
        return
    recorder = Recorder(release)
    known = [value for value in (*vars(entries).values(), *entries.TRTLLM.values()) if isinstance(value, Entry)]
    for entry in known:
        lacking = entry.lacking(release)
        try:
            function = getattr(__import__(entry.module, fromlist=["_"]), entry.name)
        except (ImportError, AttributeError):
            if lacking is None:
                yield f"{entry.path}: the table has it, FlashInfer {release} has not"
            continue
        if lacking is not None:
            yield f"{entry.path}: FlashInfer {release} has it, the table has not"
            continue
        named = inspect.signature(inspect.unwrap(function)).parameters
        for parameter in entry.since:
            if entry.takes(recorder.release, parameter) != (parameter in named):
                yield f"{entry.path}: the table is wrong about {parameter} in FlashInfer {release}"


def _changed(release: str) -> Iterator[str]:
    """Layouts of this release beside those of an earlier one, by their rules."""
    row = library.installed_release()
    if row is None or not row.interleaved_bits:
        return
    for what, new, old, shape in (("weights", hopper.MXFP4_BITS, hopper.MXFP4_NIBBLES, (1, 16, 32)),
                                  ("scales", scales.SM90_MXFP4, scales.SM90_MXFP4_EARLY, (1, 128, 8))):
        moved = Probe(new, old.place, shape).examine()
        assert moved is not None
        yield f"`flashinfer_cutlass`, MXFP4 {what} made with FlashInfer 0.6.11 to 0.6.14 for a later release: {moved.sentence}"


def _layouts(release: str) -> Iterator[dict[str, Any]]:
    """Preparations of the adapters that run without a GPU, against the layouts that they must keep to.

    Nothing for a release that the adapters do not know.
    """
    seen: set[tuple[str, str]] = set()
    for kind in BLACKWELL if entries.unknown(release) is None else ():
        for gated in ("swiglu", "relu2"):
            recorder = Recorder(release)
            case = Case.model_validate({"shape": {"num_tokens": 1, "hidden_size": 256, "intermediate_size": 256, "num_experts": 2,
                                                  "top_k": 1}, "activation": {"kind": gated}})
            for probe in kind(recorder).probes_with(recorder, case).values():
                recorder.executed.clear()
                recorder.called.clear()
                found = witnesses.judged("", probe.layout, probe.examine)
                used = recorder.called[-1][0] if recorder.called else "the adapter's own interleaving"
                if recorder.called and used not in recorder.executed:
                    continue  # a stand-in proves nothing
                if (used, probe.layout.name) not in seen:
                    seen.add((used, probe.layout.name))
                    yield found | {"function": used}
