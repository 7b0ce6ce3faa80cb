"""FlashInfer's tactics blocklist: what is written, what is refused, and whether a file holds in an environment."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from gate_entries import PROBLEM, TODAY, entry, evidence, toml

from moeguard.core.errors import MoeguardError
from moeguard.gate.allowlist import Allowlist
from moeguard.gate.blocked import Blocked, blocked
from moeguard.gate.blocklist import BACKENDS, METADATA, OPS, Blocklist, obstacle, reads
from moeguard.gate.pair import combined, pair_of

GEMM1, GEMM2 = (f"{op}::MoERunner" for op in OPS)
RIGHT = ("default", "(5, -1)", "(-1, 50)")


def cell(*bad: str, kind: str = "bad_tactic", right: tuple[str, ...] = RIGHT, **changes: Any) -> dict[str, Any]:
    """An entry whose tactics ``bad`` have a finding; ``right`` are those with a right answer."""
    found = [PROBLEM | {"tactic": tactic, "kind": kind, "shapes": ["T=7 H=64 I=32 E=8 K=2"]} for tactic in bad]
    seen = evidence(tactics=dict.fromkeys([*bad, *right], 300), tactics_covered=list(right), open_findings=found)
    return entry(backend=BACKENDS[0], autotune="off", levels=[], evidence=seen) | changes


def exported(*rows: dict[str, Any], only: str | None = None, all_shapes: bool = False, today: date = TODAY) -> Blocked:
    known = Allowlist.parse(toml(*rows), "list").entries
    return blocked([one for one in known if only in (None, one.recipe)], known, today, all_shapes=all_shapes)


def test_ids_stand_under_the_operation_and_the_runner_of_their_stage() -> None:
    data = exported(cell("(3, -1)", "(7, -1)", "(-1, 47)")).blocklist.to_data()
    assert data["invalid_tactics"] == {GEMM1: [3, 7], GEMM2: [47]}
    assert set(data["_metadata"]) == set(METADATA)
    assert {name: value for name, value in data["_metadata"].items() if value != "*"} == {
        "flashinfer_version": "0.7.4", "cuda_version": "12.9", "gpu": "NVIDIA H200"}


def test_nothing_bad_is_an_empty_file() -> None:
    assert exported(cell()).blocklist.to_data()["invalid_tactics"] == {}
    assert exported(cell("(3, -1)", kind="perf_regression")).blocklist.to_data()["invalid_tactics"] == {}


def test_cells_of_one_release_share_a_file() -> None:
    found = exported(cell("(3, -1)"), cell("(4, -1)", recipe="fp16", cuda="13.0"))
    assert found.blocklist.gemm1 == {3, 4}
    assert found.blocklist.metadata is not None and found.blocklist.metadata["cuda_version"] == "*"


def test_a_pair_is_blocked_by_the_id_that_is_at_fault_alone() -> None:
    data = exported(cell("(3, -1)", "(3, 50)")).blocklist.to_data()
    assert data["invalid_tactics"] == {GEMM1: [3]}
    with pytest.raises(MoeguardError, match=r"tactic \(5, 50\) .* neither \(5, -1\) nor \(-1, 50\) alone is at fault"):
        exported(cell("(3, -1)", "(5, 50)"))


@pytest.mark.parametrize(("rows", "message"), [
    ([cell("default")], "the default tactic of flashinfer_cutlass cannot be blocked"),
    ([cell("halves")], "tactic halves of flashinfer_cutlass is no pair of ids"),
    ([entry(backend="triton")], f"triton has no tactics blocklist; allowed: cells of {', '.join(BACKENDS)}"),
    ([], "no cell has no tactics blocklist"),
    ([cell("(3, -1)", flashinfer="0.6.14")], "FlashInfer 0.6.14 reads none; allowed: 0.6.18 or later"),
    ([cell("(3, -1)", flashinfer="none")], "FlashInfer none reads none"),
    ([cell("(3, -1)"), cell("(3, -1)", flashinfer="0.7.2")], "cells of 0.7.2 on sm90 and 0.7.4 on sm90; allowed: one release"),
    ([cell("(3, -1)"), cell("(3, -1)", arch="sm100")], "one release and one architecture"),
])
def test_what_cannot_be_blocked_is_refused(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(MoeguardError, match=message) as error:
        exported(*rows)
    assert "\n" not in str(error.value) and error.value.exit_code == 2


def test_another_backend_beside_it_is_left_out_and_said() -> None:
    found = exported(cell("(3, -1)"), cell("split", backend="triton"))
    assert found.notes == ("triton with bf16 is left out: it has no tactics blocklist",)


@pytest.mark.parametrize(("rows", "where"), [
    ([cell("(3, -1)", right=(*RIGHT, "(3, -1)"))], "other cases of bf16"),
    ([cell("(3, -1)"), cell(right=(*RIGHT, "(3, -1)"), recipe="fp16")], "fp16 of flashinfer_cutlass"),
    ([cell("(3, -1)"), cell(right=(*RIGHT, "(3, -1)"), backend=BACKENDS[1])], "bf16 of flashinfer_cutlass_unfused"),
])
def test_a_tactic_that_is_right_elsewhere_is_not_exported_silently(rows: list[dict[str, Any]], where: str) -> None:
    for only in (None, "bf16"):  # also when the other recipe is not chosen
        with pytest.raises(MoeguardError) as error:
            exported(*rows, only=only)
        assert str(error.value) == (
            "flashinfer-blocklist: tactic (3, -1) of flashinfer_cutlass with bf16 (bad_tactic at T=7 H=64 I=32 E=8 K=2) gave "
            f"right answers in {where}, and FlashInfer blocks it for all shapes and recipes; allowed with --all-shapes")
    found = exported(*rows, all_shapes=True)
    assert found.blocklist.gemm1 == {3} and len(found.notes) == 1 and where in found.notes[0]


def test_another_release_says_nothing_about_an_id() -> None:
    rows = cell("(3, -1)"), cell(right=(*RIGHT, "(3, -1)"), recipe="fp16", flashinfer="0.7.2")
    assert exported(*rows, only="bf16").notes == ()


def test_a_quarantined_tactic_was_accepted_before() -> None:
    one = cell(quarantined=["(3, -1)"])
    one["evidence"]["quarantined_findings"] = [PROBLEM | {"tactic": "(3, -1)", "shapes": ["T=7"]}]
    found = exported(one, cell(right=(*RIGHT, "(3, -1)"), recipe="fp16"), only="bf16")
    assert found.blocklist.gemm1 == {3} and "(bad_tactic at T=7) gave right answers in fp16" in found.notes[0]


def test_known_findings_count_unless_they_are_waived() -> None:
    one = cell()
    one["evidence"]["known_findings"] = [PROBLEM | {"tactic": "(5, -1)"}, PROBLEM | {"tactic": "default"}]
    assert exported(one, all_shapes=True).blocklist.gemm1 == {5}
    waiver = {"requirement": "known_findings", "owner": "o", "reason": "r", "reference": "x", "expires": date(2026, 7, 1)}
    assert exported(one | {"waiver": [waiver]}).blocklist.gemm1 == frozenset()
    assert exported(one | {"waiver": [waiver]}, all_shapes=True, today=date(2026, 7, 2)).blocklist.gemm1 == {5}


def test_a_file_can_be_read_again(tmp_path: Path) -> None:
    made = Blocklist.of(["(3, -1)", "(-1, 47)", "(1, 2)", "split"], "0.7.4", "12.9", "NVIDIA H200")
    file = tmp_path / "blocklist.json"
    file.write_text(json.dumps(made.to_data()))
    assert Blocklist.load(file) == made
    assert [made.blocks(name) for name in ("(3, -1)", "(3, 50)", "(9, 47)", "(9, -1)", "default", "split")] == [
        True, True, True, False, False, False]


@pytest.mark.parametrize(("text", "message"), [
    ("{", "not valid JSON"), ("[]", "invalid_tactics: allowed"), ('{"invalid_tactics": []}', "invalid_tactics: allowed"),
    ('{"invalid_tactics": {"x": 1}}', "invalid_tactics: allowed"), ('{"invalid_tactics": {}, "_metadata": 1}', "allowed"),
    ("[" * 100000, "not valid JSON")])
def test_another_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(MoeguardError, match=message):
        Blocklist.load(tmp_path / "file")
    with pytest.raises(MoeguardError, match="cannot read the tactics blocklist"):
        Blocklist.load(tmp_path / "none")


def test_metadata_decides_where_it_loads() -> None:
    made = Blocklist.of([], "0.7.4", "12.9", "NVIDIA H200")
    here = ("0.7.4", "12.9", "NVIDIA H200")
    assert made.loads(*here) and Blocklist(None, frozenset(), frozenset()).loads(*here)
    for place, other in enumerate(("0.7.2", "13.0", "NVIDIA H100")):
        assert not made.loads(*(other if number == place else value for number, value in enumerate(here)))
    assert made.metadata is not None
    for name in METADATA:
        assert not Blocklist({key: made.metadata[key] for key in METADATA if key != name}, frozenset(), frozenset()).loads(*here)
        assert not Blocklist(dict(made.metadata) | {name: None}, frozenset(), frozenset()).loads(*here)
    assert not Blocklist(dict(made.metadata) | {"cudnn_version": "9"}, frozenset(), frozenset()).loads(*here)


def test_releases_that_read_a_file() -> None:
    assert [reads(version) for version in ("0.6.14", "0.6.18.post1", "0.7.4", None, "x")] == [False, True, True, False, False]


def test_pairs() -> None:
    assert pair_of("(3, -1)") == (3, -1) and pair_of("default") == (-1, -1) and str(pair_of("(3, 47)")) == "(3, 47)"
    assert [pair_of(name) for name in ("(3,-1)", "(3, -2)", "3", "(1, 2, 3)", "")] == [None] * 5
    assert combined("(3, 47)", {"(3, -1)", "(-1, 47)"}) and not combined("(3, 47)", {"(3, -1)"})
    assert not combined("(3, -1)", {"(3, -1)"}) and not combined("default", {"default"})
    assert obstacle(BACKENDS[0], "(3, -1)", ()) is None
