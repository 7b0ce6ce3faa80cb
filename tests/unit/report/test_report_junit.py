"""The JUnit file as a CI server reads it."""

from __future__ import annotations

from xml.etree import ElementTree

from report_events import case, finding, manifest, refused, rich, scenario

from moeguard.core.events import Event, RunFinished
from moeguard.report import junit
from moeguard.report.outcome import fold

END = RunFinished(seconds=1.0)


def read(events: list[Event], **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(junit.render(fold(manifest(**options), [*events, END]), "reports/x"))


def by_name(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {case.attrib["name"]: case for case in root.iter("testcase")}


def test_one_test_case_for_each_cell_and_check() -> None:
    root = read([*scenario(0), *scenario(1, of=case("fp16"))])
    assert list(by_name(root)) == ["moeguard::mine::bf16::accuracy", "moeguard::mine::bf16::memory",
                                   "moeguard::mine::fp16::accuracy", "moeguard::mine::fp16::memory"]
    assert all(len(case) == 0 and case.attrib["time"] == "0.250" for case in by_name(root).values())


def test_properties_without_a_value_are_left_out() -> None:
    properties = {one.attrib["name"]: one.attrib["value"] for one in read(scenario(0)).iter("property")}
    assert properties["package torch"] == "2.8.0"
    assert "None" not in properties.values()
    assert not {"max_cases", "package nvidia-cutlass-dsl"} & set(properties)


def test_failure_carries_sentence_fingerprint_and_replay() -> None:
    value = finding(tactic="(1, 2)", sentence="Row 3 is wrong.", reproduced=False)
    case = by_name(read(scenario(0, findings=[value])))["moeguard::mine::bf16::accuracy"]
    [failure] = case.findall("failure")
    assert failure.attrib == {"message": "mismatch: Row 3 is wrong.", "type": "mismatch"}
    for text in ("Row 3 is wrong.", value.fingerprint, "reproduced: no",
                 f"moeguard replay reports/x/cases/{value.case.fingerprint}.json --backend mine --tactic '(1, 2)'"):
        assert text in (failure.text or "")


def test_counts_agree_with_the_cases() -> None:
    root = read(rich(200), backends=["mine"], recipes=["bf16"])
    suite = root.find("testsuite")
    assert suite is not None
    cases = list(root.iter("testcase"))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        expected = str(sum(case.find(tag) is not None for case in cases))
        assert suite.attrib[name] == root.attrib[name] == expected != "0"
    assert suite.attrib["tests"] == str(len(cases)) == str(len({case.attrib["name"] for case in cases}))


def test_refused_is_skipped_and_empty_is_an_error() -> None:
    cases = by_name(read(refused(0), backends=["mine"], recipes=["bf16", "fp16"]))
    skipped = cases["moeguard::mine::bf16::execution"].find("skipped")
    error = cases["moeguard::mine::fp16::execution"].find("error")
    assert skipped is not None
    assert skipped.attrib["message"] == "needs sm100"
    assert error is not None
    assert "no scenario was drawn" in error.attrib["message"]


def test_known_finding_is_an_expected_failure_unless_strict() -> None:
    events = scenario(0, findings=[finding(entry="an-entry")])
    case = by_name(read(events))["moeguard::mine::bf16::accuracy"]
    assert [child.tag for child in case] == ["skipped"]
    assert [child.tag for child in by_name(read(events, strict=True))["moeguard::mine::bf16::accuracy"]] == ["failure"]


def test_a_check_that_found_without_executing_fails() -> None:
    case = by_name(read(scenario(0, checks=(), findings=[finding("hang", check="watchdog")])))
    assert case["moeguard::mine::bf16::watchdog"].find("failure") is not None


def test_hostile_text_stays_well_formed() -> None:
    nasty = "a\x00b\x1b[31m ]]> <script>&\ud800\ufffe \u2713 \n tail"
    root = read([*scenario(0, findings=[finding(sentence=nasty, tactic=nasty[:9])]),
                 *refused(1, of=case("fp16"), reason=nasty)])
    [failure] = root.iter("failure")
    assert failure.attrib["message"] == "mismatch: ab[31m ]]> <script>& \u2713 tail"
    [skipped] = root.iter("skipped")
    assert "]]>" in skipped.attrib["message"]
