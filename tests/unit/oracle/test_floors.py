"""Detection floors: small defects that must stay findings."""

from __future__ import annotations

import pytest

from moeguard.oracle.floors import caught, draw, floor, lose_expert, one_element, scale_all, zero_tile


@pytest.mark.parametrize(("kernel", "size"), [("bf16", 0.01), ("fp16", 0.005), ("fp8_per_tensor", 0.02), ("fp8_block", 0.02),
                                              ("mxfp4_bf16", 0.01), ("mxfp4_fp8", 0.02), ("int4_fp8", 0.02),
                                              ("mxfp8", 0.03), ("nvfp4", 0.01), ("nvfp4_bf16", 0.01)])
def test_small_shapes_keep_their_floors(kernel: str, size: float) -> None:
    judges = draw(kernel, "small", 2)
    found = floor(judges, scale_all, 1.0)
    assert found is not None
    assert found <= size
    for defect in (lose_expert, zero_tile, one_element):
        assert all(caught(judge, defect, healthy, 0.0) for judge, healthy in judges), defect.__name__
