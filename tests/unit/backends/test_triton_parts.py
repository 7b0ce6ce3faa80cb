"""The parts of the Triton backend that are plain Python and torch: alignment, tactics, workspace, availability."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeguard.backends import registry
from moeguard.backends.protocol import Refused
from moeguard.backends.triton_moe import device
from moeguard.backends.triton_moe.alignment import align, block_bound
from moeguard.backends.triton_moe.backend import Triton
from moeguard.backends.triton_moe.layout import load_unit
from moeguard.backends.triton_moe.tactics import TACTICS, default, offered, shared_bytes
from moeguard.backends.triton_moe.workspace import ALIGNMENT, Sizes, carve
from moeguard.core.case import Case
from moeguard.tensors.problem import build_problem
from moeguard.tensors.weights import WeightBank

#: Bytes of shared memory that a block of threads may use on Hopper, and on consumer Ampere and Ada.
HOPPER, ADA = 227 << 10, 99 << 10
ids = st.one_of(st.integers(-2, 9), st.sampled_from([2**31 - 1, -(2**31)]))


@given(st.lists(ids, min_size=1, max_size=80), st.integers(0, 4), st.integers(1, 6), st.sampled_from([1, 4, 16]))
def test_alignment_against_brute_force(flat: list[int], first: int, experts: int, block_m: int) -> None:
    """Every slot of every local expert is in exactly one block of that expert, in order, and no other slot is."""
    alignment = align(torch.tensor(flat, dtype=torch.int32)[:, None], first, experts, block_m)
    wanted = [(expert - first, slot) for expert in range(first, first + experts)
              for slot, value in enumerate(flat) if value == expert]
    got = [(expert, int(alignment.order[start + row])) for expert, start, count in alignment.blocks.T.tolist()
           for row in range(count)]
    assert got == wanted
    counts = alignment.blocks[2]
    assert int(counts.max()) <= block_m
    assert len(counts) == block_bound(len(flat), experts, block_m)
    assert sorted(alignment.order.tolist()) == list(range(len(flat)))
    needed = sum(-(-sum(value == expert for value in flat) // block_m) for expert in range(first, first + experts))
    assert int((counts > 0).sum()) == needed


@pytest.mark.parametrize("recipe", TACTICS)
def test_tactics_have_distinct_names_and_fit(recipe: str) -> None:
    """All on Hopper, and at least the one that is taken for a few tokens on smaller devices."""
    tactics = TACTICS[recipe]
    assert len({str(tactic) for tactic in tactics}) == len(tactics) == len(set(tactics)) <= 8
    assert all(shared_bytes(tactic, recipe, True) <= HOPPER for tactic in tactics)
    small = default(recipe, 8, 8, lambda tactic: shared_bytes(tactic, recipe, True) <= ADA)
    assert shared_bytes(small, recipe, True) <= ADA
    assert {tactic.splits for tactic in offered(recipe, 1 << 16, 1 << 13)} == {1}
    if recipe == "fp8_block":  # the scale of the intermediate is taken over one column tile
        assert all(t.gate_up.n == t.gate_up.k == t.down.k == 128 and t.down.n <= 128 for t in tactics)


def test_default_block_grows_with_the_load() -> None:
    blocks = [default("bf16", tokens * 8, 128).m for tokens in (1, 64, 512, 1024, 8192)]
    assert blocks == sorted(blocks)
    assert blocks[0] == 16
    assert blocks[-1] == 128


def test_load_unit() -> None:
    assert load_unit(2, 2880, 2880, 0) == 8
    assert load_unit(1, 512, 16, 520) == 8
    assert load_unit(1, 512, 16, 528) == 16
    assert load_unit(2, 37, 64) == 1


@pytest.mark.parametrize("offset", [0, 4, 64])
def test_workspace_parts_do_not_overlap(offset: int) -> None:
    """At any alignment of the first byte, every part is aligned and inside."""
    sizes = Sizes(3, 6, 130, 70, 2, torch.float8_e4m3fn, True)
    storage = torch.zeros(sizes.bytes() + offset + 8, dtype=torch.uint8)
    parts = carve(sizes, storage[offset: offset + sizes.bytes()], torch.device("cpu"))
    assert {name: tuple(part.shape) for name, part in parts.items()} == {
        "inter": (6, 80), "partial": (2, 6, 130), "codes": (3, 130), "scales": (3, 2), "inter_scales": (6, 1)}
    spans = sorted((part.data_ptr(), part.numel() * part.element_size()) for part in parts.values())
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))
    assert storage.data_ptr() + offset <= spans[0][0]
    assert sum(spans[-1]) <= storage.data_ptr() + offset + sizes.bytes()
    with pytest.raises(ValueError, match="needs"):
        carve(sizes, storage[: sizes.bytes() - 1], torch.device("cpu"))


def test_availability_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = registry.get("triton")
    monkeypatch.setattr(device, "installed", lambda: True)
    monkeypatch.delenv(device.INTERPRET, raising=False)
    monkeypatch.setattr(device, "capability", lambda: None)
    assert "TRITON_INTERPRET=1" in backend.availability().reason
    monkeypatch.setattr(device, "capability", lambda: (7, 5))
    assert "7.5" in backend.availability().reason
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    assert backend.availability().available
    monkeypatch.setattr(device, "installed", lambda: False)
    assert "pip install triton" in backend.availability().reason


def test_capabilities_are_known_without_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"num_tokens": 4, "hidden_size": 64, "intermediate_size": 64, "num_experts": 4, "top_k": 2}
    monkeypatch.delenv(device.INTERPRET, raising=False)
    monkeypatch.setattr(device, "capability", lambda: (8, 6))
    backend = Triton()
    assert backend.supports(Case.model_validate({"shape": shape})).supported
    assert "8.9" in backend.supports(Case.model_validate({"shape": shape, "recipe": "fp8_block"})).reason
    assert "nvfp4" in backend.supports(Case.model_validate({"shape": shape, "recipe": "nvfp4"})).reason
    assert "batched" in backend.supports(Case.model_validate({"shape": shape, "activation_format": "batched"})).reason
    case = Case.model_validate({"shape": shape, "recipe": "fp8_per_tensor"})
    assert backend.numerics(case).accumulate == "fp8_hopper"
    assert backend.numerics(case, TACTICS["fp8_per_tensor"][-1]).accumulate == "fp32"


def test_refuses_before_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors outside the interpreter, and tactics of no table."""
    monkeypatch.delenv(device.INTERPRET, raising=False)
    case = Case.model_validate({"shape": {"num_tokens": 4, "hidden_size": 64, "intermediate_size": 64, "num_experts": 4,
                                          "top_k": 2}})
    problem, backend = build_problem(case, WeightBank()), Triton()
    prepared = backend.prepare(problem.weights, case)
    out = torch.full(problem.output_shape, 3.0, dtype=torch.bfloat16)
    with pytest.raises(Refused, match="TRITON_INTERPRET"):
        backend.run(prepared, problem.batch, out)
    with pytest.raises(ValueError, match="not offered"):
        backend.run(prepared, problem.batch, out, tactic="m1")
    assert bool((out == 3.0).all())


def test_importing_the_backend_does_not_import_triton() -> None:
    code = "import sys, moeguard.backends.triton_moe.backend; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("recipe", ["bf16", "fp8_block"])
def test_kernels_compile_for_hopper(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To machine code of sm_90, without a device: tensor core instructions of the recipe's format."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from compiled_triton import compile_down, compile_gate_up

    tactic = TACTICS[recipe][3]
    for text in (compile_gate_up(recipe, tactic), compile_down(recipe, tactic)):
        assert "wgmma.mma_async" in text
        assert "e4m3" in text or recipe == "bf16"
