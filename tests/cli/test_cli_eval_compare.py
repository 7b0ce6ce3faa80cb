"""``moeguard eval compare``: two arms from sample logs, paired or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT, Called
from sample_records import SECRET, record, sha, write

Cli = Callable[..., Called]
STORED = ROOT / "tests" / "sample_logs"


def arm(lost: int = 0, gained: int = 0, n: int = 300, **changes: Any) -> list[dict[str, Any]]:
    """Right but for the first ``lost``; the last 20 are wrong, but for the last ``gained`` of them."""
    return [record(doc, lost <= doc < n - 20 or doc >= n - gained, **changes) for doc in range(n)]


@pytest.mark.parametrize(("lost", "gained", "margin", "code", "verdict"), [
    (0, 0, 0.02, 0, "not worse by more than 0.02"),
    (12, 0, 0.02, 1, "worse"),
    (5, 4, 0.02, 3, "cannot tell with this n"),
    (5, 4, 0.05, 0, "not worse by more than 0.05"),
    (1, 14, 0.01, 0, "not worse by more than 0.01"),
])
def test_a_verdict(cli: Cli, tmp_path: Path, lost: int, gained: int, margin: float, code: int, verdict: str) -> None:
    a, b = write(tmp_path / "a", arm()), write(tmp_path / "b", arm(lost, gained))
    done = cli("eval", "compare", a, b, "--margin", margin, "--json")
    assert (done.code, done.data["verdict"]) == (code, verdict), done.err
    (task,) = done.data["tasks"]
    assert (task["losses"], task["gains"], task["questions"], task["right"]) == (lost, gained, 300, [280, 280 - lost + gained])
    assert task["drop"] == pytest.approx((lost - gained) / 300)
    assert task["interval"][0] <= task["drop"] <= task["interval"][1] and task["upper_bound"] >= task["drop"]


def test_for_people(cli: Cli, tmp_path: Path) -> None:
    done = cli("eval", "compare", write(tmp_path / "a", arm()), write(tmp_path / "b", arm(5, 4)))
    assert done.code == 3
    assert done.out.startswith("gsm8k: cannot tell with this n: the drop is 0.33 points, at most ")
    assert "points is found with 80 % power" in done.out


@pytest.mark.parametrize(("changes", "words"), [
    ({"doc_hash": sha("x")}, "doc_id 7 has another question in B than in A (doc_hash"),
    ({"prompt_hash": sha("x")}, "doc_id 7 has another prompt"),
    ({"target_hash": sha("x")}, "doc_id 7 has another target"),
    ({"arguments": {"gen_args_0": {"arg_0": "q", "arg_1": {"temperature": 1.0}}}}, "doc_id 7 has other generation arguments"),
    ({"doc_id": 6}, "doc_id 6 is twice in B; allowed: once"),
    ({"doc_id": 999}, "doc_id 7 is in A and not in B"),
    ({"filter": "strict-match"}, "filter flexible-extract, doc_id 7 is in A and not in B"),
    ({"exact_match": None}, "line 8: exact_match: None; allowed: 0 or 1"),
    ({"arguments": None}, "line 8: arguments: None; allowed: an object or a list"),
    ({"resps": [[["a", 1.5]]]}, None),
    ({"resps": [[-3.5]]}, "line 8: resps: no text; allowed: responses of a generate_until task"),
])
def test_arms_that_were_not_asked_the_same_are_refused(cli: Cli, tmp_path: Path, changes: dict[str, Any],
                                                       words: str | None) -> None:
    a, b = arm(n=30), arm(n=30)
    b[7] |= changes
    done = cli("eval", "compare", write(tmp_path / "a", a), write(tmp_path / "b", b), "--json")
    if words is None:
        assert done.code == 3
        return
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
    assert words in done.err


@pytest.mark.parametrize(("name", "content", "words"), [
    ("cut.jsonl", json.dumps(record(0))[:-9], "line 1 is not valid JSON"),
    ("list.jsonl", "[]\n", "line 1 is no object"),
    ("empty.jsonl", "", "empty"),
    ("field.jsonl", json.dumps({"doc_id": 0}), "doc_hash: missing; allowed: a sample record of lm-eval"),
    ("gone.jsonl", None, "is not there"),
])
def test_logs_that_are_none(cli: Cli, tmp_path: Path, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    done = cli("eval", "compare", write(tmp_path / "a", arm(n=3)), tmp_path / name, "--json")
    assert done.code == 2 and done.out == "" and words in done.err, done.err
    assert "--margin: 2; allowed: between 0 and 1" in cli("eval", "compare", tmp_path, tmp_path, "--margin", 2).err


def test_several_logs_of_a_task_are_repeats_only_when_asked(cli: Cli, tmp_path: Path) -> None:
    for name, lost in (("a", 0), ("b", 30)):
        for number in range(3):
            write(tmp_path / name, arm(lost, n=80), stamp=f"2026-05-01T12-00-00.00000{number}")
    assert "3 logs of task gsm8k; allowed: one, or --repeats" in cli("eval", "compare", tmp_path / "a", tmp_path / "b").err
    done = cli("eval", "compare", tmp_path / "a", tmp_path / "b", "--repeats", "--json")
    (task,) = done.data["tasks"]
    assert (done.code, task["questions"], task["repeats"], task["losses"]) == (1, 80, 3, 90)
    assert task["p_value"] == pytest.approx(2.0**-30)  # 30 questions were lost, not 90


def test_errors_are_not_wrong_answers(cli: Cli, tmp_path: Path) -> None:
    """An empty response says nothing about right and wrong; that it might have been wrong is held against the candidate."""
    b = arm()
    for doc in range(12):
        b[doc] |= {"resps": [[""]], "exact_match": 0.0}
    done = cli("eval", "compare", write(tmp_path / "a", arm()), write(tmp_path / "b", b), "--json")
    (task,) = done.data["tasks"]
    assert (done.code, task["losses"], task["errors"], task["drop"]) == (3, 0, [0, 12], 0.0)
    assert task["upper_bound"] > 12 / 300


def test_repeats_of_other_questions_are_refused(cli: Cli, tmp_path: Path) -> None:
    """A question that was asked once and lost whole would otherwise count as lost by half."""
    for name in ("a", "b"):
        write(tmp_path / name, arm(n=80), stamp="2026-05-01T12-00-00.000000")
        write(tmp_path / name, arm(n=80)[:50], stamp="2026-05-02T12-00-00.000000")
    done = cli("eval", "compare", tmp_path / "a", tmp_path / "b", "--repeats", "--json")
    assert (done.code, done.out) == (2, "") and done.err.count("\n") == 1
    assert "2026-05-02T12-00-00.000000.jsonl: no answer to doc_id 50 with filter flexible-extract" in done.err


def test_interval_and_drop_are_of_the_same_answers(cli: Cli, tmp_path: Path) -> None:
    b = arm(30, n=100)
    for doc in range(30, 80):
        b[doc] |= {"resps": [[""]], "exact_match": 0.0}
    (task,) = cli("eval", "compare", write(tmp_path / "a", arm(n=100)), write(tmp_path / "b", b), "--json").data["tasks"]
    assert task["drop"] == pytest.approx(30 / 50)
    assert task["interval"][0] < task["drop"] < task["interval"][1]


def test_an_answer_that_was_not_given_is_no_sign_of_garbage(cli: Cli, tmp_path: Path) -> None:
    a, b = arm(), arm()
    for doc in range(10):
        a[doc] |= {"resps": [[""]]}
        b[doc] |= {"filtered_resps": ["[invalid]"]}
    texts = cli("eval", "compare", write(tmp_path / "a", a), write(tmp_path / "b", b), "--json").data["tasks"][0]["texts"]
    assert texts["alarms"] == [] and texts["signs"]["invalid"]["candidate"] == 20  # those that both arms have


def test_garbage_shows(cli: Cli, tmp_path: Path) -> None:
    a, b = arm(), arm()
    for doc in range(10):
        b[doc] |= {"resps": [["the cat sat on " * 30]]}
        b[doc + 10] |= {"resps": [["\ufffd\x00\x01 42"]]}
        b[doc + 20] |= {"filtered_resps": ["[invalid]"]}
    done = cli("eval", "compare", write(tmp_path / "a", a), write(tmp_path / "b", b), "--json")
    texts = done.data["tasks"][0]["texts"]
    assert texts["alarms"] == ["invalid", "runs_in_circles", "unprintable"]
    assert texts["signs"]["runs_in_circles"] == {"baseline": 0, "candidate": 10, "p_value": pytest.approx(2.0**-10)}
    assert texts["equal"] == pytest.approx(280 / 300) and texts["first_difference"] == 0


def test_where_responses_part(cli: Cli, tmp_path: Path) -> None:
    a = write(tmp_path / "a", [record(0, text="one two three four 0"), record(1, text="same 1")])
    b = write(tmp_path / "b", [record(0, text="one two 3 four 0"), record(1, text="same  1")])
    texts = cli("eval", "compare", a, b, "--json").data["tasks"][0]["texts"]
    assert (texts["first_difference"], texts["equal"], texts["words"]) == (2, 0.5, [3.5, 3.5])


def test_several_tasks_share_the_error_rate(cli: Cli, tmp_path: Path) -> None:
    for name, lost in (("a", 0), ("b", 5)):
        for task in ("gsm8k", "other"):
            write(tmp_path / name, arm(lost if task == "gsm8k" else 0), task)
    done = cli("eval", "compare", tmp_path / "a", tmp_path / "b", "--json")
    assert done.code == 3  # 1/32 is below 5 %, and not below 2.5 %
    assert [task["outcome"] for task in done.data["tasks"]] == ["cannot_tell", "not_worse"]


def test_questions_of_gpqa_are_in_no_output(cli: Cli, tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", arm(), "gpqa_diamond"), write(tmp_path / "b", arm(9), "gpqa_diamond")
    for words in (("--json",), ()):
        done = cli("eval", "compare", a, b, *words)
        assert done.code == 1 and SECRET not in done.out + done.err and "isotope" not in done.out + done.err


@pytest.mark.parametrize(("name", "code", "verdict"), [("healthy", 0, "not worse by more than 0.1"), ("mutant", 1, "worse")])
def test_stored_logs_of_real_servers(cli: Cli, name: str, code: int, verdict: str) -> None:
    """Made by lm-eval 0.4.13 and transformers' own server, see README.md beside them."""
    done = cli("eval", "compare", STORED / "baseline", STORED / name, "--margin", 0.1, "--json")
    assert (done.code, done.data["verdict"]) == (code, verdict), done.data["sentence"]
    assert set(done.data["tasks"][0]["other_filters"]) == {"strict-match"}
