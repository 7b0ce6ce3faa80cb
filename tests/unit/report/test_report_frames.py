"""The data frames and their parquet form."""

from __future__ import annotations

import io
import math

import pandas as pd
from report_events import case, finding, manifest, rich, scenario

from moeguard.report import frames
from moeguard.report.outcome import fold


def test_one_row_for_each_execution_in_order() -> None:
    events = [*scenario(3, of=case("fp8_block", tokens=7)), *scenario(1, tactic="(1, 2)")]
    frame = frames.executions(events)
    assert frame[["scenario", "number"]].to_numpy().tolist() == [[1, 0], [1, 1], [3, 0], [3, 1]]
    row = frame.iloc[2]
    assert (row["backend"], row["recipe"], row["num_tokens"], row["num_experts"]) == ("mine", "fp8_block", 7, 8)
    assert (row["routing"], row["inputs"], row["activation"], row["check"]) == ("uniform", "normal", "swiglu", "memory")
    assert (row["max_z"], row["tau"], row["row"]) == (3.0, 6.0, 2.0)
    assert frame["tactic"].isna().tolist() == [False, False, True, True]


def test_an_empty_run_has_all_columns() -> None:
    frame = frames.executions([])
    assert frame.empty
    assert {"scenario", "num_tokens", "max_z", "tau", "rms_z", "rho", "seconds"} <= set(frame)
    assert frames.findings(fold(manifest(), [])).empty


def test_numbers_of_any_kind_fit_in_parquet() -> None:
    values = [float("inf"), "inf", None, True, [1, 2], "east", 3, "\ud800", 2**70]
    events = [event for number, value in enumerate(values)
              for event in scenario(number, checks=("memory",), numbers={"max_z": value, "place": value, "seconds": 9})]
    frame = pd.read_parquet(io.BytesIO(frames.executions(events).to_parquet(index=False)))
    assert len(frame) == 9
    assert frame["max_z"].tolist()[0] == math.inf
    assert frame["place"].tolist()[5] == "east"
    assert frame["seconds"].tolist() == [0.25] * 9
    assert frame["numbers.seconds"].tolist() == [9.0] * 9


def test_findings_frame() -> None:
    frame = frames.findings(fold(manifest(), scenario(0, findings=[finding(reproduced=False)])))
    assert frame[["kind", "check", "hits"]].to_numpy().tolist() == [["mismatch", "accuracy", 1]]
    assert frame["reproduced"].tolist() == [False]


def test_the_same_run_gives_the_same_bytes() -> None:
    first, second = (frames.executions(rich(40)).to_parquet(index=False) for _ in range(2))
    assert first == second
