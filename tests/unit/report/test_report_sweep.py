"""The rows and the table of a sweep, from events alone."""

from __future__ import annotations

from typing import Any

from report_events import case, finding, manifest, scenario

from moeguard.core.case import Case
from moeguard.core.events import Event, RunFinished, Swept
from moeguard.report.history import gather
from moeguard.report.outcome import fold
from moeguard.report.sweep import rows, table

WIDE = {"hidden_size": 128}


def swept(number: int, of: Case, **seconds: float) -> list[Event]:
    """A scenario that forces tactics, each with its time; ``default`` is the default."""
    start, *_, end = scenario(number, of=of, checks=())
    return [start, *(Swept(scenario=number, tactic=None if name == "default" else name, outcome="ok", witnessed=True,
                           seconds=value, runs=5) for name, value in seconds.items()), end]


def two_layers() -> list[Event]:
    """Two layers at two numbers of tokens; the second layer is slower and has a tactic more."""
    wide = case().with_(shape=WIDE)
    return [*swept(0, case(tokens=3), default=3.0, a=2.0), *swept(1, case(tokens=64), default=4.0, a=5.0),
            *swept(2, wide.with_(shape={"num_tokens": 3}), default=30.0, a=20.0, b=10.0),
            *swept(3, wide.with_(shape={"num_tokens": 64}), default=40.0, a=50.0), RunFinished(seconds=1.0)]


def found(events: list[Event], *labels: str) -> tuple[dict[str, Any], ...]:
    return rows(gather(events), labels)


def test_layers_without_a_name_are_named_after_their_sizes() -> None:
    assert list(dict.fromkeys(row["layer"] for row in found(two_layers()))) == ["H64I32E8K2", "H128I32E8K2"]
    rank = case(parallel={"tp_size": 2})
    assert [row["layer"] for row in found(swept(0, rank, default=1.0))] == ["H64I32E8K2/tp2"]


def test_rows_of_different_layers_are_never_merged() -> None:
    entries = found(two_layers(), "One", "One", "Two/tp2", "Two/tp2")
    assert [(row["layer"], row["tokens"], row["tactic"], row["seconds"]) for row in entries] == [
        ("One", 3, None, 3.0), ("One", 3, "a", 2.0), ("One", 64, None, 4.0), ("One", 64, "a", 5.0),
        ("Two/tp2", 3, None, 30.0), ("Two/tp2", 3, "a", 20.0), ("Two/tp2", 3, "b", 10.0),
        ("Two/tp2", 64, None, 40.0), ("Two/tp2", 64, "a", 50.0)]
    assert list(entries[0]) == ["layer", "tokens", "tactic", "verdict", "kinds", "executions", "witnessed", "seconds", "runs"]


def test_two_names_of_one_shape_stay_apart() -> None:
    events = [*swept(0, case(), default=1.0), *swept(1, case(), default=2.0)]
    assert [(row["layer"], row["seconds"]) for row in found(events, "One", "Two")] == [("One", 1.0), ("Two", 2.0)]
    assert [row["seconds"] for row in found(events)] == [1.5]


def test_repeats_belong_to_the_layer_of_their_case() -> None:
    events = [event for number in range(6) for event in swept(number, case(tokens=3), default=float(number))]
    assert [(row["layer"], row["seconds"], row["runs"]) for row in found(events, "One", "Two", "Three")] == [
        ("One", 1.5, 10), ("Two", 2.5, 10), ("Three", 3.5, 10)]


def test_a_finding_belongs_to_its_layer() -> None:
    wrong = finding("bad_tactic", of=case(tokens=3), tactic="a", check="tactics")
    events = [*swept(0, case(tokens=3), a=1.0),
              *scenario(1, of=case(tokens=3), checks=("tactics",), tactic="a", findings=[wrong])]
    assert [(row["layer"], row["verdict"], row["executions"]) for row in found(events, "One", "Two")] == [
        ("One", "ok", 0), ("Two", "findings", 1)]


def test_columns_name_the_layer_when_there_are_several() -> None:
    header, body = table(found(two_layers(), "One", "One", "Two", "Two"))
    assert header == ["tactic", "One T = 3", "One T = 64", "Two T = 3", "Two T = 64"]
    assert body == [["default", "ok 3 s", "ok 4 s *", "ok 30.0 s", "ok 40.0 s *"],
                    ["a", "ok 2 s *", "ok 5 s", "ok 20.0 s", "ok 50.0 s"], ["b", "-", "-", "ok 10.0 s *", "-"]]


def test_columns_of_one_layer_are_numbers_of_tokens() -> None:
    header, _ = table(found(two_layers()[:-1][:8], "One", "One"))
    assert header == ["tactic", "T = 3", "T = 64"]


def test_labels_come_from_the_manifest() -> None:
    given = manifest(backends=["mine"], recipes=["bf16"], sweep=True, labels=["One", "One", "Two", "Two"])
    tactics = fold(given, two_layers()).tactics
    assert tactics == found(two_layers(), "One", "One", "Two", "Two")
    del given["options"]["labels"]  # a run directory of an earlier state
    assert fold(given, two_layers()).tactics == found(two_layers())
