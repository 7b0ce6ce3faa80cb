"""What Triton keeps of a compilation does not pile up with the variants of a campaign."""

from __future__ import annotations

from types import SimpleNamespace

from moeguard.backends.triton_moe.compiled import loaded


def test_texts_of_a_launched_kernel_are_dropped_and_the_interpreter_has_none() -> None:
    compiled = SimpleNamespace(asm={"ptx": "//", "cubin": b"1"}, kernel=b"1")
    loaded(compiled)
    loaded(None)
    assert (compiled.asm, compiled.kernel) == ({}, b"1")
