"""The Triton kernels in the interpreter. Run by test_triton_interpreted.py in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

import moeguard as mg
from moeguard.backends.triton_moe import kernels
from moeguard.backends.triton_moe.arithmetic import narrow, widen
from moeguard.backends.triton_moe.backend import Triton
from moeguard.backends.triton_moe.tactics import TACTICS, Tactic
from moeguard.checks.session import Session
from moeguard.checks.subject import Resources
from moeguard.core.case import Case

ACTIVATIONS: tuple[dict[str, Any], ...] = (
    {"kind": "swiglu"}, {"kind": "geglu"}, {"kind": "geglu_tanh"}, {"kind": "relu2"}, {"kind": "silu"}, {"kind": "gelu"},
    {"kind": "swiglu_oai", "alpha": 1.5, "beta": 0.5, "limit": 2.0}, {"kind": "swiglu_oai"})
LAYOUTS = ("nan_padding", "contiguous", "noncontiguous")
ROUTINGS = ("uniform", "invalid_ids", "duplicate_ids")
RESOURCES = Resources("cpu")


def make_case(recipe: str, shape: tuple[int, int, int, int, int], **fields: Any) -> Case:
    names = ("num_tokens", "hidden_size", "intermediate_size", "num_experts", "top_k")
    return Case.model_validate({"recipe": recipe, "shape": dict(zip(names, shape, strict=True)), **fields})


def force(case: Case, tactic: Tactic) -> torch.Tensor:
    """The answer of ``tactic``, guarded, judged and witnessed."""
    session = Session(Triton(), case, RESOURCES)
    run = session.execute("tactics", "forced", tactic=tactic)
    assert not session.findings, session.findings[0].sentence
    assert run.ok
    assert session.backend.executed_tactic() == tactic
    return run.answer


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """numpy warns of what float32 hardware does silently: exp overflows to infinity."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("recipe", TACTICS)
def test_every_tactic_on_ragged_shapes(recipe: str) -> None:
    """H and I are no multiple of any tile; activations, layouts, biases, shards and routings take turns."""
    for number, tactic in enumerate(TACTICS[recipe]):
        shard = {"ep_size": 2, "ep_rank": number % 2} if number % 3 == 2 else {}
        shape = (6, 136, 72, 4, 2) if number % 2 else (5, 72, 136, 2, 2)
        force(make_case(recipe, shape, activation=ACTIVATIONS[number % 8], weights={"bias": number % 3 != 1},
                        layout={"kind": LAYOUTS[number % 3]}, routing={"kind": ROUTINGS[number % 3]}, parallel=shard),
              tactic)


@pytest.mark.parametrize("recipe", TACTICS)
def test_exact_answers_are_equal_for_all_tactics(recipe: str) -> None:
    """Bit for bit, odd extents included: 21 rows of 37 columns are addressed element by element."""
    case = make_case(recipe, (7, 37, 21, 2, 2), inputs={"kind": "exact"})
    answers = [force(case, tactic) for tactic in TACTICS[recipe]]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("case", [
    make_case("bf16", (5, 64, 40, 3, 2), weights={"bias": True}, activation={"kind": "swiglu_oai", "limit": 7.0}),
    make_case("fp16", (17, 40, 64, 2, 1), parallel={"ep_size": 2, "ep_rank": 1}),
    make_case("fp8_per_tensor", (3, 64, 72, 2, 2), activation={"kind": "relu2"}, scales={"kind": "saturating"}),
    make_case("fp8_block", (3, 136, 136, 2, 2), inputs={"kind": "outlier"}),
    make_case("fp16", (4, 32, 32, 4, 2), routing={"kind": "nan_logits"}),
    make_case("fp8_block", (0, 128, 128, 4, 2)),
], ids=lambda case: f"{case.recipe}-{case.routing.kind}-T{case.shape.num_tokens}")
def test_all_checks_are_clean(case: Case) -> None:
    backend = Triton()
    assert backend.supports(case).supported
    verdict = mg.check(backend, case)
    assert verdict.passed, verdict.findings[0].sentence
    assert verdict.executions >= 4


def test_ids_of_no_expert_leave_zeros() -> None:
    """-1, E and the extremes of int32: nothing is gathered, out is written."""
    case = make_case("bf16", (4, 32, 32, 4, 2))
    problem = RESOURCES.problem(case)
    backend = Triton()
    prepared = backend.prepare(problem.weights, case)
    problem.batch.topk_ids.copy_(torch.tensor([[-1, 4], [2**31 - 1, -(2**31)], [-1, -1], [4, 5]]))  # type: ignore[union-attr]
    out = torch.full(problem.output_shape, 7.0, dtype=torch.bfloat16)
    backend.run(prepared, problem.batch, out)
    assert not out.any()


def test_large_cases_are_declined_with_the_cost() -> None:
    support = Triton().supports(make_case("bf16", (257, 512, 512, 32, 8)))
    assert not support.supported
    assert "ms" in support.reason


@triton.jit
def _round_trip(source, target, DTYPE: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(target + at, widen(narrow(tl.load(source + at), DTYPE, True), True))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn"])
def test_roundings_are_those_of_torch(name: str) -> None:
    """Random bits, every tie, subnormals, infinities and NaN."""
    kind = getattr(torch, name)
    generator = torch.Generator().manual_seed(1)
    bits = torch.randint(-(2**31), 2**31, (4096,), generator=generator, dtype=torch.int64).to(torch.int32)
    small = torch.randn(2048, generator=generator) * torch.exp2(torch.randint(-14, 10, (2048,), generator=generator))
    grid = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = torch.cat([grid, (grid + grid.roll(1)) / 2, torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0])])
    value = torch.cat([bits.view(torch.float32), small, ties])
    value = torch.cat([value, value.new_zeros(8192 - len(value))])
    got = torch.empty_like(value)
    dtype = {"bfloat16": tl.bfloat16, "float16": tl.float16, "float8_e4m3fn": tl.float8e4nv}[name]
    _round_trip[(1,)](value, got, DTYPE=dtype, SIZE=8192)
    wanted = (value.clamp(-448, 448) if name == "float8_e4m3fn" else value).to(kind).float()
    assert torch.equal(got.nan_to_num(nan=12345.0), wanted.nan_to_num(nan=12345.0))


class _Recorded:
    """Loads and stores by address: real where they fall into ``real`` tensors, else zeros that are noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *real: torch.Tensor) -> None:
        self.loads: list[int] = []
        self.stores: list[int] = []
        spans = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in real]
        builder = triton_interpreter.InterpreterBuilder
        load = builder.create_masked_load

        def masked_load(this: Any, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
            at = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].astype(object)
            if not at.size or any(low <= at.min() and at.max() < high for low, high in spans):
                return load(this, ptrs, mask, other, *rest)
            self.loads.append(int(at.max()))
            kind = ptrs.get_element_ty()
            return triton_interpreter.TensorHandle(np.zeros(ptrs.data.shape, triton_interpreter._get_np_dtype(kind)), kind)

        def masked_store(this: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> None:
            self.stores.append(int(ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].max()))

        monkeypatch.setattr(builder, "create_masked_load", masked_load)
        monkeypatch.setattr(builder, "create_masked_store", masked_store)


def test_offsets_are_computed_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expert, a token, a position and a slot whose offsets are beyond 2**31; the interpreter refuses int32 overflow."""
    expert, start, slot, hidden, inter = 2**28, 2**30, 2**31 - 2, 32, 64
    blocks = torch.tensor([[expert], [0], [1]], dtype=torch.int32)
    order = torch.full((16,), slot, dtype=torch.int64)
    nothing = torch.zeros(1)
    tensor = torch.zeros(1, dtype=torch.bfloat16)
    base, tile = tensor.data_ptr(), {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "INTERPRETED": True}
    common = {"SCHEME": 0, "WIDE": False, "UNIT": 1, **tile}
    seen = _Recorded(monkeypatch, blocks, order, nothing)
    kernels.gate_up[(1,)](tensor, nothing, tensor, tensor, nothing, nothing, nothing, nothing, nothing, tensor, nothing,
                          order, blocks, hidden, inter, hidden, inter, 1, 2, 8, 0, 0, 0, 1.0, 1.0, 1.0,
                          GATED=True, RAGGED=True, **common)
    assert base + 2 * (slot // 2 * hidden + hidden - 1) in seen.loads
    assert base + 2 * ((expert + 1) * inter * hidden - 1) in seen.loads
    down = (tensor, nothing, nothing, tensor, nothing, nothing, nothing, order, blocks, hidden, inter, inter, 1, 2**30, 2, 8,
            0, 0)
    seen = _Recorded(monkeypatch, blocks, order, nothing)
    kernels.down[(1, 2)](*down, RAGGED=False, **common)
    assert base + 2 * ((expert + 1) * hidden * inter - 1) in seen.loads
    assert nothing.data_ptr() + 4 * ((2**30 + slot) * hidden + hidden - 1) in seen.stores
    blocks[1] = start
    kernels.down[(1, 1)](*down, RAGGED=False, **common)
    assert base + 2 * (start * inter + inter - 1) in seen.loads
