"""The HTML page: complete, self-contained, escaped, and the same every time."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from report_events import CHECKS, case, finding, manifest, refused, rich, scenario

from moeguard.core.events import Event, Noted, RunFinished, ScenarioStarted
from moeguard.core.finding import KINDS
from moeguard.report import html
from moeguard.report.outcome import fold

VOID = {"meta", "br", "hr", "img", "link", "input"}
NASTY = "<script>alert(1)</script> ]]> \x00\x1b \"' onload=x {{ 7*7 }} \u2713"


class Page(HTMLParser):
    """Elements, text and structural faults of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(events: list[Event], **options: object) -> tuple[str, Page]:
    events = [*events, RunFinished(seconds=1.0)]
    text = html.render(fold(manifest(**options), events), events, "reports/x")
    return text, Page(text)


@pytest.fixture(scope="module")
def rich_page() -> tuple[str, Page]:
    return page(rich(60))


def test_self_contained(rich_page: tuple[str, Page]) -> None:
    _, read = rich_page
    assert not {tag for tag, _ in read.elements} & {"script", "link", "iframe", "object", "embed", "img"}
    for _, attributes in read.elements:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "data", "action"):
            assert (attributes.get(name) or "#").startswith("#")


def test_links_lead_somewhere_and_ids_are_unique(rich_page: tuple[str, Page]) -> None:
    text, read = rich_page
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(attributes[name])[1:] for _, attributes in read.elements for name in ("href", "xlink:href")
               if attributes.get(name)}
    assert targets | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)


def test_hostile_text_is_escaped_everywhere() -> None:
    value = finding(sentence=NASTY, tactic=NASTY, check=NASTY, numbers={NASTY: NASTY, "list": [NASTY]}, backend=NASTY)
    events = [*scenario(0, backend=NASTY, checks=(NASTY,), tactic=NASTY, findings=[value]), *refused(1, reason=NASTY)]
    text, read = page(events, plugins=[NASTY])
    assert "<script" not in text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", text)
    assert "{{ 7*7 }}" in read.text
    assert read.text.count("<script>alert(1)</script>") >= 8


def test_a_finding_shows_what_a_user_needs() -> None:
    value = finding("unwritten_output", check="memory", sentence="Rows 64 to 127 were not written.", reproduced=True,
                    tactic="(3, 7)", numbers={"count": 4096, "nonfinite": 2, "worst": 0.123456, "big": 1e30})
    events = scenario(0, findings=[value], tactic="(3, 7)", numbers={"max_z": 1e9, "tau": 5.0})
    text, read = page([*events, *refused(1)])
    for words in ("1 finding in 2 executions of 1 case (1 more was refused) on 1 cell.", "unwritten_output", value.sentence,
                  value.fingerprint, "4,096", "elements not finite", "0.1235", "1.000e+30", "> 1e6", "1 refused",
                  f"moeguard replay reports/x/cases/{value.case.fingerprint}.json",
                  "--tactic '(3, 7)'", '"num_tokens": 5', "NVIDIA H200", "575.57"):
        assert words in read.text
    assert 'class="n fail"' in text


def test_a_strange_recipe_name_does_not_break_the_plots() -> None:
    events = [replace(event, recipe="<b>$\\x$\x01") if isinstance(event, ScenarioStarted) else event
              for event in scenario(0)]
    text, read = page(events)
    assert "<svg" in text
    assert "<b>$\\x$" in read.text


@pytest.mark.parametrize("events", [[], refused(0), [Noted(scenario=-1, backend="b", recipe="", what="w", reason="r")],
                                    scenario(0, numbers={}), scenario(0, of=case(tokens=0)),
                                    scenario(0, numbers={"max_z": 0.0, "tau": 5.0}),
                                    scenario(0, numbers={"max_z": float("nan"), "tau": 5.0, "rho": float("inf")})])
def test_unusual_runs_have_a_page(events: list[Event]) -> None:
    _, read = page(events, backends=["triton"], recipes=["bf16"])
    assert "How to read this page" in read.text
    assert "no scenario was drawn for it" in read.text


def test_zero_executions_say_so() -> None:
    text, read = page([])
    assert "Nothing was executed, so nothing was verified." in read.text
    assert "<svg" not in text


def test_every_kind_of_finding_has_a_card() -> None:
    values = [finding(kind, check=CHECKS[place % 6], tactic=str(place % 3), of=case(seed=place))
              for place, kind in enumerate(KINDS * 2)]
    text, _ = page([event for place, value in enumerate(values) for event in scenario(place, findings=[value])])
    assert text.count('<article class="card') == len({value.fingerprint for value in values}) > 40


def test_the_same_run_gives_the_same_page(rich_page: tuple[str, Page]) -> None:
    assert page(rich(60))[0] == rich_page[0]
