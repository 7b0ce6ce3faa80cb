"""The matrix of FlashInfer releases as markdown."""

from __future__ import annotations

from typing import Any

from moeguard.report.wheels import cells, markdown


def _row(adapter: str, recipe: str, reason: str | None = None) -> dict[str, Any]:
    return {"adapter": adapter, "recipe": recipe, "holds": reason is None, "reason": reason, "cases": ["swiglu", "relu2"],
            "calls": ["moe", "helper"] if reason is None else [], "helpers": ["helper"] if reason is None else []}


ANSWERS: list[dict[str, Any]] = [
    {"version": "1", "stood_in": ["a library"], "table": ["moe: the table is wrong about x"], "changed": ["weights: moved"],
     "rows": [_row("mine", "bf16", "FlashInfer 1 has no moe (first in 2)"), _row("mine", "fp16", "no kernel for fp16")],
     "layouts": [{"function": "helper", "layout": "rows", "moved": "the first element that moved is (0, 1)", "refused": None}]},
    {"version": "2", "stood_in": [], "table": [], "changed": ["weights: moved"],
     "rows": [_row("mine", "bf16"), _row("mine", "fp16", "no kernel for fp16")],
     "layouts": [{"function": "helper", "layout": "rows", "moved": None, "refused": None}]},
    {"version": "3", "failure": "RuntimeError: gone"}]


def test_recipes_that_an_adapter_never_takes_are_left_out() -> None:
    assert [(adapter, recipe, len(found)) for adapter, recipe, found in cells(ANSWERS)] == [("mine", "bf16", 3)]


def test_every_reason_and_every_moved_element_is_in_the_text() -> None:
    text = markdown(ANSWERS)
    for line in ("| adapter | recipe | 1 | 2 | 3 |", "| mine | bf16 | no [1] | yes (2) | - |",
                 "1. FlashInfer 1 has no moe (first in 2)", "- FlashInfer 3: RuntimeError: gone",
                 "- moe: the table is wrong about x", "- FlashInfer 1: a library", "| `helper` | - | executed | - |",
                 "| `moe` | - | bound | - |", "| rows | `helper` | **moved** | kept | - |",
                 "- FlashInfer 1, `helper`: the first element that moved is (0, 1)"):
        assert line in text.splitlines()
    assert text.count("- weights: moved") == 1 and text.endswith("\n")
