"""The cuTile and Frost adapters beside the real FlashInfer in a child process without a GPU.

Configurations, weight preparation, checks and packing are the library's own. What needs a GPU is a stand-in: the device, and
the kernels, which are written here in torch from the layouts and rounding points that the library's sources state.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from moeguard.backends.flashinfer_unified.cutile import FlashInferCuTile
from moeguard.backends.flashinfer_unified.frost import FlashInferFrost
from moeguard.backends.protocol import REFUSALS, Availability, Backend, VacuousTuning
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case
from moeguard.quant.blocks import expand_blocks, expand_groups, fake_quantize
from moeguard.quant.e8m0 import decode_e8m0
from moeguard.quant.packed import decode_packed

BACKENDS: dict[str, type[Backend]] = {"cutile": FlashInferCuTile, "frost": FlashInferFrost}
#: Frost pads I to 128.
SHAPE = {"num_tokens": 3, "hidden_size": 128, "intermediate_size": 64, "num_experts": 4, "top_k": 2}
_SEEN: list[Any] = []


def run(questions: dict[str, list[Any]]) -> dict[str, Any]:
    """Answers by name; a question is a backend, a recipe, further fields of the case, and a tactic."""
    _stand_in()
    return {name: _answer(*question) for name, question in questions.items()}


def _answer(family: str, recipe: str, fields: dict[str, Any] | None = None, tactic: str | None = None) -> dict[str, Any]:
    """What came of one judged execution, and the tactic that reached the kernel."""
    backend, fields = BACKENDS[family](), fields or {}
    case = Case.model_validate({"recipe": recipe} | fields | {"shape": SHAPE | fields.get("shape", {})})
    session = Session(backend, case, Resources("cpu"))
    _SEEN.clear()
    done = session.execute("values", "base", tactic=tactic)
    return {"ok": done.ok, "failed": list(done.judgement.failed), "numbers": str(done.judgement.numbers), "seen": str(_SEEN[-1])}


def refused(questions: dict[str, list[Any]]) -> dict[str, str]:
    """What the library says to inputs that it does not take: each a backend and the fields of a case."""
    _stand_in()
    said = {}
    for name, (family, fields) in questions.items():
        backend, case = BACKENDS[family](), Case.model_validate({"recipe": "bf16", "shape": SHAPE} | fields)
        session = Session(backend, case, Resources("cpu"))
        problem = session.base.problem
        out = torch.full(problem.output_shape, 7.0, dtype=problem.output_dtype)
        try:
            backend.run(session.base.prepared, problem.batch, out)
            said[name] = "nothing"
        except REFUSALS as error:
            said[name] = f"{type(error).__name__}: {error}" if bool((out == 7).all()) else "after writing"
    return said


def offered(questions: dict[str, list[Any]]) -> dict[str, list[str]]:
    """Tactics by name of the question, a backend and a recipe."""
    _stand_in()
    listed = {}
    for name, (family, recipe) in questions.items():
        backend, case = BACKENDS[family](), Case.model_validate({"recipe": recipe, "shape": SHAPE})
        subject = Session(backend, case, Resources("cpu")).base
        listed[name] = [str(one) for one in backend.tactics(subject.prepared, subject.problem.batch)]
    return listed


def tuned(questions: dict[str, list[Any]]) -> dict[str, list[str]]:
    """What ``tune`` says where nothing can be timed, and with a timer to which a later tactic is always the faster one."""
    _stand_in()
    from flashinfer.autotuner import AutoTuner

    said = {}
    for name, (family, recipe) in questions.items():
        backend, case = BACKENDS[family](), Case.model_validate({"recipe": recipe, "shape": SHAPE})
        subject = Session(backend, case, Resources("cpu")).base
        try:
            said[name] = [str(backend.tune(subject.prepared, subject.problem.batch))]
        except VacuousTuning as error:
            said[name] = [str(error)]
        real, times = AutoTuner._profile_single_kernel, itertools.count(1000, -1)
        AutoTuner._profile_single_kernel = lambda *given, times=times, **named: float(next(times))
        AutoTuner.get().clear_cache()
        try:
            said[name].append(str(backend.tune(subject.prepared, subject.problem.batch)))
        finally:
            AutoTuner._profile_single_kernel = real
    return said


def all_answers(values: dict[str, list[Any]], refusals: dict[str, list[Any]], tactics: dict[str, list[Any]],
                tunings: dict[str, list[Any]]) -> dict[str, Any]:
    """Everything from one process, since an import of torch and FlashInfer costs seconds."""
    return {"values": run(values), "refused": refused(refusals), "offered": offered(tactics), "tuned": tuned(tunings)}


def _stand_in() -> None:
    """Make this process look like one on a Hopper GPU to FlashInfer's Python; once."""
    if "cutlass" in sys.modules:
        return
    import flashinfer.utils
    from flashinfer.fused_moe import prepare
    from flashinfer.fused_moe.backends.frost_low_latency import runner

    flashinfer.utils.get_compute_capability = lambda device: (9, 0)
    flashinfer.cutile = SimpleNamespace(is_cuda_tile_available=lambda device=None: True)
    sys.modules["flashinfer.cutile"] = flashinfer.cutile
    torch.cuda.device = lambda device: contextlib.nullcontext()
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
    torch.Tensor.is_cuda = property(lambda tensor: True)
    prepare._prepare_cutile_fp4_scales = lambda scale, **named: scale.contiguous()  # what it does below SM100
    runner.version = lambda name: "4.8.1"
    runner.get_compute_capability = lambda device: (9, 0)
    sys.modules["cutlass"] = SimpleNamespace(cute=SimpleNamespace(math=SimpleNamespace(erf=abs)))
    for name, kernel in (("moe", _cutile_bf16), ("fp8", _cutile_fp8), ("fp4", _cutile_fp4)):
        _module(f"flashinfer.fused_moe.cutile.{name}", run_moe=kernel, GemmConfig=lambda *values: values,
                allocate_workspace=lambda **named: None, _use_row_major_scale_layout=lambda *sizes: False)
    _module("flashinfer.fused_moe.backends.frost_low_latency.runtime", execute=_frost)
    for backend in BACKENDS.values():
        backend.availability = lambda self: Availability.yes()
        backend.runner = _on_cpu(backend.runner)


def _module(name: str, **members: Any) -> None:
    stub = ModuleType(name)
    for member, value in members.items():
        setattr(stub, member, value)
    sys.modules[name] = stub


def _on_cpu(real: Any) -> Any:
    """The runner class, made for a GPU as the library demands, then told that the tensors lie on the CPU."""
    def runner(self: Any, library: Any, case: Case) -> Any:
        def make(layer: Any, device: torch.device) -> Any:
            made = real(self, library, case)(layer, torch.device("cuda:0"))
            made.device = device
            return made
        return make
    return runner


def _gate_up(pre: Tensor, spec: Any) -> Tensor:
    """The activation [.., I] of a projection whose halves are gate and up; without a gate, of the projection itself."""
    kind = type(spec).__name__
    plain = {"ReLU2": lambda v: functional.relu(v) ** 2, "SiLU": functional.silu, "GELU": functional.gelu}
    if kind in plain:
        return plain[kind](pre)
    gate, up = pre.chunk(2, -1)
    if kind == "SwiGLU":
        gate, up = gate.clamp(max=spec.limit), up.clamp(-spec.limit, spec.limit)
        return gate * torch.sigmoid(spec.alpha * gate) * (up + spec.beta)
    return functional.gelu(gate, approximate="tanh" if kind == "GeGLUTanh" else "none") * up


def _moe(x: Tensor, ids: Tensor, weights: Tensor, first: Tensor, second: Tensor, out: Tensor, spec: Any, *,
         projection: torch.dtype | None, intermediate: Any) -> Tensor:
    """The dataflow of every kernel here: dequantised weights [E, gate; up, H] and [E, H, I], outputs rounded, then combined."""
    answer = torch.zeros(out.shape, dtype=torch.float32)
    for token in range(x.shape[0]):
        for slot, expert in enumerate(ids[token].tolist()):
            pre = first[expert] @ x[token].float()
            pre = pre if projection is None else pre.to(projection).float()
            row = second[expert] @ intermediate(_gate_up(pre, spec))
            answer[token] += weights[token, slot] * row.to(out.dtype).float()
    return out.copy_(answer)


def _through(dtype: torch.dtype) -> Any:
    return lambda value: value.to(dtype).float()


def _cutile_bf16(x: Tensor, ids: Tensor, weights: Tensor, w1: Tensor, w2: Tensor, out: Tensor, workspace: Any,
                 **named: Any) -> Tensor:
    _SEEN.append((named["block_size"], *named["gemm1_config"], *named["gemm2_config"]))
    return _moe(x, ids, weights, w1.float().mT, w2.float().mT, out, named["activation"], projection=torch.bfloat16,
                intermediate=_through(torch.bfloat16))


def _cutile_fp8(x: Tensor, ids: Tensor, weights: Tensor, w1: Tensor, s1: Tensor, w2: Tensor, s2: Tensor, out: Tensor,
                workspace: Any, **named: Any) -> Tensor:
    assert not named["activation_fp8"] and not named["block_scaled"] and x.dtype == torch.bfloat16
    _SEEN.append((named["sorted_input"], named["block_size"], *named["gemm1_config"], *named["gemm2_config"]))
    return _moe(x, ids, weights, w1.float() * s1[:, None, None], w2.float() * s2[:, None, None], out, named["activation"],
                projection=torch.bfloat16, intermediate=_through(torch.bfloat16))


def _mxfp4(packed: Tensor, scale: Tensor) -> Tensor:
    value = decode_packed(packed, "e2m1", torch.float32)
    return value * expand_groups(decode_e8m0(scale.view(torch.uint8), torch.float32), value.shape[-1])


def _cutile_fp4(x: Tensor, ids: Tensor, weights: Tensor, w1: Tensor, s1: Tensor, g1: Tensor, w2: Tensor, s2: Tensor, g2: Tensor,
                out: Tensor, workspace: Any, **named: Any) -> Tensor:
    assert not named["activation_fp4"] and named["scale_block_size"] == 32
    _SEEN.append((named["block_size"], named["fuse_gemm1"], *named["gemm1_config"], *named["gemm2_config"]))
    return _moe(x, ids, weights, _mxfp4(w1, s1) * g1[:, None, None], _mxfp4(w2, s2) * g2[:, None, None], out,
                named["activation"], projection=torch.bfloat16, intermediate=_through(torch.bfloat16))


def _frost(inputs: list[Any], config: Any, tactic: Any) -> Tensor:
    _SEEN.append(tactic)
    spec, weight, place = config.activation, config.quant.weight.name, [isinstance(one, bool) for one in inputs].index(True)
    assert inputs[place] is False, "router weights would be rounded to bf16"
    assert config.quant.output.name == ("FP16" if weight == "FP16" else "BF16")
    out = inputs[place - 1]
    if weight in ("BF16", "FP16"):
        x, ids, scores, w1, w2 = inputs[:5]
        return _moe(x, ids, scores, _gate_first(w1.float(), spec), w2.float(), out, spec, projection=None,
                    intermediate=_through(x.dtype))
    if weight == "FP8PerTensor":
        x, ids, scores, w1, w2 = inputs[:5]
        one, quant, two = inputs[place + 1:]
        narrow = x.dtype == torch.float8_e4m3fn
        return _moe(x, ids, scores, _gate_first(w1.float() * one[:, None, None], spec), w2.float() * two[:, None, None], out,
                    spec, projection=torch.bfloat16, intermediate=_static(quant) if narrow else _through(torch.bfloat16))
    if weight == "DeepSeekFp8":
        x, _, _, w1, s1, w2, s2, ids, scores = inputs[:9]
        x, _ = fake_quantize(x.float(), "e4m3_1x128")
        return _moe(x, ids, scores, _gate_first(w1.float() * expand_blocks(s1, *w1.shape[1:]), spec),
                    w2.float() * expand_blocks(s2, *w2.shape[1:]), out, spec, projection=None,
                    intermediate=lambda value: fake_quantize(value, "e4m3_1x128")[0])
    x, w1, s1, a1, w2, s2, a2, ids, scores = inputs[:9]
    assert bool((a1 == 1).all() and (a2 == 1).all())
    return _moe(x, ids, scores, _gate_first(_mxfp4(w1, s1), spec), _mxfp4(w2, s2), out, spec, projection=torch.bfloat16,
                intermediate=_through(torch.bfloat16))


def _static(quant: Tensor) -> Any:
    return lambda value: (value * quant).clamp(-448, 448).to(torch.float8_e4m3fn).float()


def _gate_first(rows: Tensor, spec: Any) -> Tensor:
    """Frost keeps [up; gate]."""
    return torch.cat(tuple(reversed(rows.chunk(2, 1))), 1) if spec.is_gated else rows
