"""The numbers of a finding as people read them."""

from __future__ import annotations

from typing import Any

from moeguard.report.numbers import brief, labelled

WRONG: dict[str, Any] = {
    "elements": 64, "max_z": 18.02, "max_z_row": 0, "max_z_column": 4, "tau": 5.638, "rms_z": 13.6, "got": 0.5, "wanted": 0.25,
    "row_rms": 13.6, "row_limit": 2.41, "worst_row": 0, "tile_rms": 1.0, "tile_limit": 2.0, "worst_tile": [0, 1],
    "column_rms": 3.0, "column_limit": "inf", "worst_column": 4, "gain": 0.05, "gain_limit": 0.01, "gain_expert": 1,
    "expert_gain": 0.001, "expert_gain_limit": 0.01, "twins": 16, "twin_rms": 0.44, "rho": 30.85, "label": "proven",
    "beyond_cap": 7, "rules": ["row", "gain"], "role": "repeat 2"}


def test_every_known_number_has_a_label() -> None:
    shown = dict(labelled(WRONG))
    assert not set(shown) & (set(WRONG) - {"elements"})
    assert shown["max |z|"] == "18.02 at row 0, column 4"
    assert shown["worst row"] == "0 (rms of z 13.6, limit 2.41)"
    assert shown["worst tile (64x64)"] == "0, 1 (rms of z 1, limit 2)"
    assert shown["worst column"] == "4 (rms of z 3)"
    assert shown["scale error of expert 1"] == "0.1 % (limit 1 %)"
    assert shown["certainty"] == "proven (7 elements beyond the deterministic cap)"
    assert shown["call"] == "repeat 2"


def test_a_summary_has_what_failed() -> None:
    text = brief(WRONG)
    assert "worst row: 0" in text and "scale error of the answer" in text
    assert not any(word in text for word in ("tile", "column:", "twins:", "elements:", "rules"))
    assert "worst row" not in brief(WRONG | {"rules": ["element", "row"]})
    assert brief({}) == ""


def test_places_and_causes() -> None:
    shown = dict(labelled({"differing": 2, "worst_row": 3, "worst_column": 7, "worst_tile": [0, 0], "worst_expert": None,
                           "decoded": [{"token": 3, "cause": "missing", "expert": 2}], "rows": [0, 3], "columns": [5, 5],
                           "label": "statistical", "cap": "not gated"}))
    assert shown == {"elements that differ": "2", "first at": "row 3, column 7", "tile (64x64) of it": "0, 0", "rows": "0 to 3",
                     "columns": "5", "probable cause": "token 3: missing (expert 2)",
                     "certainty": "statistical (no deterministic cap: not gated)"}


def test_unknown_and_odd_values_stay_as_they_are() -> None:
    odd = {"mine": 1.5, "list": [1, {"x": None}], "max_z": "inf", "gain": "nan", "rho": None, "decoded": 3, "rows": "all",
           "label": None, "worst_row": 1}
    assert dict(labelled(odd)) == {
        "max |z|": "inf", "rows": "all", "scale error of the answer": "nan", "\u03c1, share of the twins' error": "-",
        "certainty": "-", "mine": "1.5", "list": '[1, {"x": null}]', "decoded": "3", "worst_row": "1"}
