"""Entries: a finding is known only where everything that its entry says holds."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from ledger_files import ENTRY

from moeguard.backends.flashinfer_cutlass.layouts import EARLIER, LATER
from moeguard.core.case import Case
from moeguard.core.finding import Finding
from moeguard.ledger.entry import Entry
from moeguard.ledger.file import Ledger
from moeguard.ledger.standing import Standing

TODAY = date(2026, 12, 1)


def case(**fields: Any) -> Case:
    return Case.model_validate(ENTRY["case"]).with_(**fields)


def finding(kind: str = "unwritten_output", **fields: Any) -> Finding:
    return Finding.model_validate({"kind": kind, "check": "values", "backend": "holey", "case": case(), "sentence": "s"} | fields)


def entry(**fields: Any) -> Entry:
    return Entry.model_validate(ENTRY | fields)


def standing(*entries: Entry, absence: str | None = None) -> Standing:
    return Standing("packaged", "0", tuple((one, absence) for one in entries))


def test_everything_must_hold() -> None:
    one = entry(recipes=["bf16"], checks=["values"], tactic="(1?, *)", condition=[{"field": "shape.num_tokens", "at_most": 8}])
    covered = {"tactic": "(14, 3)"}
    assert one.covers(finding(**covered))
    others: list[dict[str, Any]] = [
        {"kind": "mismatch"}, {"backend": "other"}, {"check": "memory"}, {"tactic": "(2, 3)"}, {"tactic": None},
        {"case": case(recipe="fp16")}, {"case": case(shape={"num_tokens": 9})}]
    for other in others:
        assert not one.covers(finding(**covered | other)), other


def test_the_default_tactic_has_a_name() -> None:
    assert entry(tactic="default").covers(finding()) and not entry(tactic="default").covers(finding(tactic="3"))
    assert entry().covers(finding()) and entry().covers(finding(tactic="3"))


def test_a_known_finding_has_an_identity_of_its_own() -> None:
    marked = standing(entry()).mark(finding())
    assert (marked.known, marked.entry) == (True, "last-column")
    assert marked.fingerprint != finding().fingerprint
    assert standing(entry()).mark(finding(case=case(shape={"num_tokens": 0}))).fingerprint == finding().fingerprint
    assert standing().mark(marked) == finding()


def test_an_entry_that_does_not_count_covers_nothing_and_says_why() -> None:
    lapsed = standing(entry(), absence="expired on 2020-01-01")
    assert not lapsed.mark(finding()).known
    one = lapsed.lapsed(finding())
    assert one is not None and one[1] == "expired on 2020-01-01"


@pytest.mark.parametrize(("fields", "absence"), [
    ({}, None),
    ({"expires": "2026-12-01"}, None),
    ({"expires": "2026-11-30"}, "expired on 2026-11-30"),
    ({"versions": "<1"}, "is outside of <1"),
    ({"package": "no-such-package"}, "no-such-package is not installed"),
])
def test_when_an_entry_counts(fields: dict[str, Any], absence: str | None) -> None:
    said = entry(**fields).absence(TODAY)
    assert said is absence if absence is None else absence in str(said)


def test_only_entries_of_the_backends_of_a_run_are_kept() -> None:
    ledger = Ledger("f", (entry(), entry(id="b", backend="other")), "0")
    kept = Standing.of(ledger, ["other"], TODAY)
    assert [one.id for one, _ in kept.entries] == ["b"]
    assert Standing.from_data(json.loads(json.dumps(kept.to_data()))) == kept


def test_cases_that_kill_the_process() -> None:
    deadly = standing(entry(kinds=["crash", "hang"], crash_class=True))
    assert deadly.deadly("holey", case()) is not None
    assert deadly.deadly("holey", case(shape={"num_tokens": 0})) is None
    assert deadly.deadly("other", case()) is None
    assert standing(entry(kinds=["crash"])).deadly("holey", case()) is None
    assert standing(entry(kinds=["crash"], crash_class=True), absence="expired").deadly("holey", case()) is None


@pytest.fixture(scope="module")
def entries() -> Standing:
    """The packaged entries, as if all counted."""
    return Standing("packaged", "0", tuple((one, None) for one in Ledger.load().entries))


class TestPackaged:
    """The packaged entries, with a new defect of the same kind beside each known one."""

    def known(self, entries: Standing, kind: str, name: str, numbers: dict[str, Any] | None = None, **fields: Any) -> bool:
        """Whether a finding on the entry's own case, changed, is known."""
        one = entries.get(name)
        assert one is not None
        check = fields.pop("check", "values")
        return entries.mark(finding(kind, backend=one.backend, check=check, numbers=numbers or {},
                                    case=one.case.with_(**fields))).known

    def test_every_entry_has_a_case_that_is_its_own(self, entries: Standing) -> None:
        assert len({one.case for one, _ in entries.entries}) == len(entries.entries) > 0

    @pytest.mark.parametrize(("fields", "known"), [
        ({}, True),
        ({"shape": {"num_tokens": 257}}, True),
        ({"shape": {"num_tokens": 256}}, False),
        ({"shape": {"num_tokens": 1, "top_k": 3}}, True),
        ({"shape": {"num_tokens": 1, "top_k": 8}}, False),
        ({"shape": {"num_tokens": 4, "num_experts": 1024}}, True),
        ({"shape": {"num_tokens": 4, "num_experts": 1024}, "parallel": {"ep_size": 4}}, False),
        ({"routing": {"kind": "nan_logits"}}, True),
        ({"routing": {"kind": "uniform"}}, False),
        ({"routing": {"kind": "invalid_ids"}}, False),
    ])
    def test_duplicate_ids(self, entries: Standing, fields: dict[str, Any], known: bool) -> None:
        name = "flashinfer-3011-duplicate-ids"
        assert self.known(entries, "routing_contract", name, **fields) is known
        assert self.known(entries, "stale_state", name, **fields) is known
        for kind in ("mismatch", "non_finite", "unwritten_output", "out_of_bounds_write"):
            assert not self.known(entries, kind, name, **fields)

    def test_the_illegal_access_of_early_releases(self, entries: Standing) -> None:
        name = "flashinfer-2762-duplicate-ids-illegal-access"
        one = entries.get(name)
        assert one is not None and one.crash_class and one.versions == ">=0.6.6,<=0.6.9"
        assert self.known(entries, "crash", name)
        assert not self.known(entries, "crash", name, shape={"top_k": 4})
        assert not self.known(entries, "crash", name, routing={"kind": "uniform"})
        assert not self.known(entries, "hang", name)

    def test_zero_tokens(self, entries: Standing) -> None:
        name, raised = "sglang-38773-zero-tokens", {"exception": "RuntimeError"}
        assert self.known(entries, "crash", name, raised)
        assert not self.known(entries, "crash", name, raised, shape={"num_tokens": 1})
        assert not self.known(entries, "crash", name, {"call": "run"})  # the process died
        assert not self.known(entries, "hang", name, raised)

    @pytest.mark.parametrize(("fields", "known"), [
        ({}, True),
        ({"scales": {"exponent": 61}}, True),
        ({"scales": {"exponent": -30}}, False),
        ({"scales": {"exponent": -120}}, False),
        ({"scales": {"kind": "normal"}}, False),
        ({"scales": {"kind": "saturating"}}, False),
        ({"scales": {"kind": "bimodal", "exponent": -61}}, False),
        ({"scales": {"kind": "bimodal", "exponent": -125}}, True),
        ({"activation": {"kind": "gelu"}}, False),
        ({"activation": {"kind": "gelu"}, "scales": {"exponent": -125}}, True),
        ({"recipe": "bf16"}, False),
    ])
    def test_near_dead_experts(self, entries: Standing, fields: dict[str, Any], known: bool) -> None:
        name, rules = "flashinfer-2595-near-dead-experts", {"rules": ["finite", "element"]}
        assert self.known(entries, "non_finite", name, rules, **fields) is known
        assert not self.known(entries, "mismatch", name, {"rules": ["element"]}, **fields)
        assert not self.known(entries, "non_finite", name, {}, **fields)

    def test_tuning_range(self, entries: Standing) -> None:
        name = "flashinfer-tuner-cap-sticks"
        assert self.known(entries, "stale_state", name, check="tuner")
        assert self.known(entries, "tuning_range", name, check="tuner", shape={"num_tokens": 4096})
        assert not self.known(entries, "stale_state", name, check="sequence")
        assert not self.known(entries, "mismatch", name, check="tuner")

    @pytest.mark.parametrize(("numbers", "fields", "known"), [
        ({}, {}, True),
        ({}, {"recipe": "int4_fp8", "shape": {"num_tokens": 1}}, True),
        ({}, {"recipe": "mxfp4_fp8"}, False),
        ({"layout": "packed as for FlashInfer 0.8"}, {}, False),
        ({"elements": None}, {}, False),  # raised late, or wrote where it must not
    ])
    def test_raw_four_bit_weights(self, entries: Standing, numbers: dict[str, Any], fields: dict[str, Any],
                                  known: bool) -> None:
        name = "flashinfer-3334-raw-four-bit-weights"
        proof = {"layout": EARLIER, "elements": 4096, "max_z": 900.0} | numbers
        proof = {key: value for key, value in proof.items() if value is not None}
        assert self.known(entries, "layout_contract", name, proof, check="layout", **fields) is known
        assert not self.known(entries, "layout_contract", name, proof, check="contract", **fields)
        assert not self.known(entries, "mismatch", name, proof, check="layout", **fields)

    def test_interleaved_four_bit_weights_in_early_releases(self, entries: Standing) -> None:
        name, proof = "flashinfer-3084-interleaved-four-bit-weights", {"layout": LATER, "elements": 4096}
        assert self.known(entries, "layout_contract", name, proof, check="layout")
        assert not self.known(entries, "layout_contract", name, proof | {"layout": "interleaved as for 0.8"}, check="layout")
        assert not self.known(entries, "layout_contract", name, proof, check="layout", recipe="int4_fp8")
        assert not self.known(entries, "layout_contract", name, {"layout": LATER}, check="layout")
