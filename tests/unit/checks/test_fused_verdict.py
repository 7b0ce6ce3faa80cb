"""The fused verdict says what torch's operations say, and compiles for the GPU that need not be there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moeguard.checks.burst_verdict import PLACES, WIDTH
from moeguard.oracle.quick import SHARES

COLUMNS = (*PLACES, *SHARES)
SHAPE = {"num_tokens": 70, "hidden_size": 72, "intermediate_size": 64, "num_experts": 4, "top_k": 2}


CASES: dict[str, dict[str, Any]] = {
    "bf16": {}, "fp16 with gaps": {"recipe": "fp16", "layout": {"kind": "nan_padding"}}, "exact": {"inputs": {"kind": "exact"}},
    "batched": {"activation_format": "batched"}, "sampled": {"sampled": True}}


@pytest.fixture(scope="module")
def rows() -> dict[str, list[list[list[float]]]]:
    """By case: the rows of torch's verdict and of the fused one."""
    script = Path(__file__).with_name("interpreted_verdict.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    cases = json.dumps([{"shape": SHAPE, "recipe": "bf16"} | fields for fields in CASES.values()])
    done = subprocess.run([sys.executable, script, cases], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_both_measure_the_same(name: str, rows: dict[str, list[list[list[float]]]]) -> None:
    plain, fused = rows[name]
    assert len(plain) == len(fused) >= 8
    for row, other in zip(plain, fused, strict=True):
        assert other == pytest.approx(row, rel=1e-4, abs=1e-6), dict(zip(COLUMNS, zip(row, other, strict=True), strict=True))
    named = [dict(zip(COLUMNS, row, strict=True)) for row in fused]
    clean, guard, area, changed, unwritten, wrong, _, broken = named[:8]
    assert not any(clean[place] for place in PLACES) and all(clean[share] <= 1 for share in SHARES)
    assert (guard["guards"], area["guards"], changed["inputs"], unwritten["unwritten"]) == (1, 1, 1, 4)
    assert wrong["element"] > 1 and wrong["bits"] == 1 and broken["finite"] > 1
    if "gaps" in name:
        assert named[8]["guards"] == 1


def test_it_compiles_and_reads_rows_in_any_order_in_vectors() -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from moeguard.checks.verdict_kernels import tiles

    constants = {"RESULTS": WIDTH, "EXACT": False, "HALF": False, "TILE": 32}
    kinds = {"place_ptr": "*i64", "order_ptr": "*i64", "valid_ptr": "*i8", "tau": "fp32"} | dict.fromkeys(constants, "constexpr")
    kinds |= dict.fromkeys(("word_ptr", "pattern_ptr", "first_ptr"), "*i16")
    signature = {name: kinds.get(name, "*fp32" if name.endswith("_ptr") else "i32") for name in tiles.arg_names}
    places = {name: (place,) for place, name in enumerate(tiles.arg_names)}
    sixteen = [name for name in signature if name.endswith("_ptr") or name in ("columns", "stride", "guard")]
    source = ASTSource(tiles, signature, {places[name]: value for name, value in constants.items()},
                       {places[name]: [["tt.divisibility", 16]] for name in sixteen})
    ptx = str(compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True}).asm["ptx"])
    assert ptx.count("ld.global.v4.b32") == 6  # words, the first answer, and four numbers at a time twice of y and of 1/S
