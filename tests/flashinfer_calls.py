"""Questions to the adapter that run beside a real FlashInfer in a child process; the compiled module is a stand-in."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import torch

from moeguard.autotune.buckets import bucket_of
from moeguard.autotune.runner_class import unbuilt_runner_class
from moeguard.backends.flashinfer_cutlass import call, layouts, library, modules, tuning
from moeguard.backends.flashinfer_cutlass.backend import FlashInferCutlass, FlashInferCutlassUnfused
from moeguard.backends.flashinfer_cutlass.tactics import Tactic
from moeguard.core.case import Case
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

SHAPE = {"num_tokens": 5, "hidden_size": 256, "intermediate_size": 128, "num_experts": 4, "top_k": 2}


def _case(recipe: str, **fields: Any) -> Case:
    return Case.model_validate({"shape": SHAPE, "recipe": recipe, **fields})


def features() -> dict[str, bool]:
    """What the real signatures show, in the terms of the version table."""
    core = library.load().core
    named = inspect.signature(core.cutlass_fused_moe).parameters
    from flashinfer.autotuner import autotune

    return {
        "profile_ids": "profile_ids" in named, "workspace": "workspace_buffer" in named,
        "fused_finalize": "use_fused_finalize" in named, "humming": "use_wfp4afp8_humming" in named,
        "interleaved": hasattr(core, "interleave_moe_weights_for_sm90_mixed_gemm"),
        "tuning_buckets": "tuning_buckets" in inspect.signature(autotune).parameters,
    }


def table_row() -> dict[str, bool]:
    """The same from the version table."""
    release = library.load().release
    return {name: getattr(release, name) for name in features()}


def bound(recipe: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Every argument of the adapter's call, bound to the real signature: name to a short text."""
    case, one = _case(recipe, **fields), library.load()
    problem = build_problem(case, WeightBank())
    prepared = layouts.prepare(problem.weights, case, one)
    out = torch.empty(problem.output_shape, dtype=problem.output_dtype)
    arguments = call.arguments(one, prepared, problem.batch, out, fused=True, workspace=torch.empty(8, dtype=torch.uint8))
    signature = inspect.signature(inspect.unwrap(one.core.cutlass_fused_moe))
    filled = signature.bind(**arguments).arguments
    return {name: _short(value) for name, value in filled.items()}


def _short(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [str(value.dtype).removeprefix("torch."), *value.shape]
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return value if isinstance(value, int | float | bool | str | None.__class__) else str(value)


def runner_arguments() -> list[str]:
    """Names that the adapter passes to the real ``MoERunner``; binding fails with a message otherwise."""
    seen: list[str] = []
    real = unbuilt_runner_class("90")

    class Recorded(real):  # type: ignore[misc, valid-type]
        def __init__(self, **named: Any) -> None:
            inspect.signature(real.__init__).bind(self, **named)
            seen.extend(named)

    Recorded.__name__ = "MoERunner"
    one = library.load()
    stand_in = type("Module", (), {"MoERunner": Recorded})
    stood = library.Library(one.release, type("Core", (), {
        "get_cutlass_fused_moe_module": staticmethod(lambda arch: stand_in), "ActivationType": one.core.ActivationType}),
        one.tuner, one.autotune)
    case = _case("bf16")
    problem = build_problem(case, WeightBank())
    tuning.runner(stood, layouts.prepare(problem.weights, case, one), 2, fused=True)
    return seen


def forced() -> dict[str, Any]:
    """What reaches the library when a tactic is forced: by ``profile_ids``, or by the answers of the tuner."""
    one, got = library.load(), {}
    case = _case("bf16")
    problem = build_problem(case, WeightBank())

    def fake(**named: Any) -> None:
        got["profile_ids"] = named.get("profile_ids")
        tuner = one.tuner.get()
        got["answers"] = [one.tuner.choose_one(tuner, op, ["runner"], None, [])[1] for op in tuning.OPS.values()] \
            if not one.release.profile_ids else None

    real, one.core.cutlass_fused_moe = one.core.cutlass_fused_moe, fake
    try:
        out = torch.empty(problem.output_shape, dtype=problem.output_dtype)
        tuning.call(one, layouts.prepare(problem.weights, case, one), problem.batch, out, Tactic(3, 50), fused=True)
    finally:
        one.core.cutlass_fused_moe = real
    return got


def buckets(tokens: list[int], cap: int) -> list[int | None]:
    """The bucket that serves each number of tokens by the adapter."""
    return [bucket_of(library.load().release.version, cap, count) for count in tokens]


def caps(wanted: list[int]) -> list[int]:
    """The adapter's ``tuning_caps`` on the real, unbuilt runner class."""
    one, stand_in = library.load(), type("Module", (), {"MoERunner": unbuilt_runner_class("90")})
    core = type("Core", (), {"get_cutlass_fused_moe_module": staticmethod(lambda arch: stand_in)})
    return tuning.caps(library.Library(one.release, core, one.tuner, one.autotune), wanted)


def modules_found(folder: str) -> dict[str, Any]:
    """What is said to be missing before files lie where a build puts them (``jit``), and where a package does (``aot``)."""
    os.environ |= {"FLASHINFER_CUDA_ARCH_LIST": "9.0a", "FLASHINFER_WORKSPACE_BASE": folder}
    from flashinfer.jit import env

    before, specs, said = modules.missing(), modules.needed(), {}
    for kind in ("jit", "aot"):
        if kind == "aot":
            env.FLASHINFER_AOT_DIR = Path(folder) / "packaged"
        paths = [Path(spec.aot_path if kind == "aot" else spec.jit_library_path) for spec in specs]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        said[kind] = modules.missing()
        if kind == "jit":
            for path in paths:
                path.unlink()
    return {"names": [spec.name for spec in specs], "before": before, **said, "ahead of time": [spec.is_aot for spec in specs],
            "arguments of a build": [len(inspect.signature(spec.build).bind(True, need_lock=True).arguments) for spec in specs]}


def availability() -> list[str]:
    """Why neither backend can run here."""
    return [backend.availability().reason for backend in (FlashInferCutlass(), FlashInferCutlassUnfused())]


def run(wanted: dict[str, list[Any]]) -> dict[str, Any]:
    """Several answers from one process. wanted: by name of an answer, the function's name and its arguments."""
    return {name: globals()[function](*arguments) for name, (function, *arguments) in wanted.items()}
