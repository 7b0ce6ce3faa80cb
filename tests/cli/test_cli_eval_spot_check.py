"""``moeguard eval gsm8k`` with real servers over HTTP: verdicts, faults, resume, and nothing left behind.

lm-eval is stood in for here (tests/lm_eval_stand_in); tests/acceptance/test_spot_check.py runs the real one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import Called, call
from eval_runs import STAND_IN, arguments, data, server
from sample_records import SECRET

from moeguard.evals.server import Server, ServerLost

Cli = Callable[..., Called]
DISABLED = "Skipping FlashInfer autotune because it is disabled."


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which nothing on this machine needs


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def worse_run(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Called, Path]:
    """A complete run whose candidate is wrong in a fifth of its answers, and at first answers 429 and garbage."""
    out = tmp_path_factory.mktemp("worse") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STAND_IN))
        candidate = server(rows, wrong=0.2, rate_limit=3, garble=6)
        return call(*arguments(rows, out, server(rows), candidate, "--aa")), out


def test_a_worse_candidate(worse_run: tuple[Called, Path]) -> None:
    done, out = worse_run
    found = done.data
    assert (done.code, found["verdict"], found["complete"], found["filter"]) == (1, "worse", True, "flexible-extract"), done.err
    one = found["filters"]["flexible-extract"]
    assert one["questions"] == 60 and one["right"][0] == 60 and one["losses"] == 60 - one["right"][1] >= 5
    assert one["p_value"] == pytest.approx(0.5 ** one["losses"])
    assert found["noise"]["losses"] == found["noise"]["gains"] == 0
    assert json.loads((out / "result.json").read_text()) == found


def test_retries_are_counted_and_are_no_wrong_answers(worse_run: tuple[Called, Path]) -> None:
    arms = worse_run[0].data["arms"]
    assert arms["candidate"] == {"answers": 60, "errors": 0, "retries": {"429": 3, "malformed": 3}}
    assert arms["baseline"] == arms["again"] == {"answers": 60, "errors": 0, "retries": {}}


def test_no_text_is_kept(worse_run: tuple[Called, Path]) -> None:
    journal = (worse_run[1] / "answers.jsonl").read_text()
    assert "How many" not in journal and "####" not in journal and journal.count('"event": "answers"') == 9


def test_no_server_is_left(worse_run: tuple[Called, Path]) -> None:
    log = (worse_run[1] / "logs" / "candidate.log").read_text()
    port = re.findall(r"serving on port (\d+)", log)[-1]
    listening = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{int(port):04X} 00000000:0000 0A" not in listening


def test_a_complete_run_prints_its_result_again(cli: Cli, worse_run: tuple[Called, Path]) -> None:
    again = cli("eval", "gsm8k", "--resume", worse_run[1], "--json")
    assert (again.code, again.data) == (1, worse_run[0].data)
    assert "moeguard eval gsm8k --resume" in cli("eval", "gpqa", "--resume", worse_run[1]).err
    assert "--limit is not allowed beside it" in cli("eval", "gsm8k", "--resume", worse_run[1], "--limit", 3).err


def test_a_server_that_dies_leaves_partial_results_from_which_the_run_goes_on(cli: Cli, rows: Path, tmp_path: Path) -> None:
    marker = tmp_path / "restarted"
    dying, healthy = server(rows, die_after=30), server(rows)
    once = f"if [ -e {marker} ]; then {healthy}; else touch {marker}; {dying}; fi"
    out = tmp_path / "run"
    done = cli(*arguments(rows, out, healthy, once, "--margin", 0.1))
    assert done.code == 3 and done.data["verdict"] == "cannot tell with this n"
    assert "the server of the candidate ended with exit code 7" in done.data["lost"]
    assert done.data["arms"]["candidate"]["answers"] == 20 and done.data["arms"]["baseline"]["answers"] == 60
    assert done.data["filters"]["flexible-extract"]["questions"] == 20  # what both arms answered
    again = cli("eval", "gsm8k", "--resume", out, "--json")
    assert (again.code, again.data["verdict"], again.data["complete"]) == (0, "not worse by more than 0.1", True), again.data
    assert again.data["arms"]["candidate"]["answers"] == 60


@pytest.mark.parametrize(("faults", "more", "lost"), [
    ({"hang_after": 0}, ("--timeout", "1s", "--attempts", 1), "no answer within 1 s"),
    ({"garble": 10**6}, ("--attempts", 1), "the answer is no completion"),
    ({"rate_limit": 10**6}, ("--attempts", 2), "HTTP status 429"),
])
def test_a_server_that_answers_nothing(cli: Cli, rows: Path, tmp_path: Path, faults: dict[str, Any], more: tuple[object, ...],
                                       lost: str) -> None:
    done = cli(*arguments(rows, tmp_path / "run", server(rows, **faults), server(rows), "--limit", 5, *more))
    assert done.code == 3 and done.data["lost"].startswith("the baseline was lost: 3 requests in a row failed every time")
    assert lost in done.data["lost"]


def test_a_question_without_an_answer_is_an_error_and_no_wrong_answer(cli: Cli, rows: Path, tmp_path: Path) -> None:
    one = json.loads(rows.read_text().split("\n")[4])["question"]
    done = cli(*arguments(rows, tmp_path / "run", server(rows), server(rows, silent=one), "--limit", 20, "--attempts", 1,
                          "--margin", 0.2))
    found = done.data["filters"]["flexible-extract"]
    assert (found["errors"], found["losses"], done.data["arms"]["candidate"]["errors"]) == ([0, 1], 0, 1)


def test_harm_ends_a_run_early(cli: Cli, rows: Path, tmp_path: Path) -> None:
    done = cli(*arguments(rows, tmp_path / "run", server(rows), server(rows, wrong=1.0), "--early-stop", "--together"))
    assert (done.code, done.data["verdict"]) == (1, "worse")
    assert done.data["filters"]["flexible-extract"]["questions"] == 20 and "stopped early for harm" in done.data["sentence"]


@pytest.mark.parametrize(("baseline", "candidate", "more", "words"), [
    ({}, {"model": "other"}, ("--model", "tiny"), "--model: 'tiny' is not served by the candidate; allowed: other"),
    ({}, {"tokens_per_word": 2}, (), "the tokenizers differ: 'The quick brown fox jumps over the lazy dog.' has 18 tokens in the "
                                     "candidate and 9 in the baseline"),
])
def test_arms_that_do_not_fit(cli: Cli, rows: Path, tmp_path: Path, baseline: dict[str, Any], candidate: dict[str, Any],
                              more: tuple[object, ...], words: str) -> None:
    done = cli(*arguments(rows, tmp_path / "run", server(rows, **baseline), server(rows, **candidate), "--limit", 3, *more))
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1 and words in done.err
    assert '"arm": "baseline", "chunk": 0' in (tmp_path / "run" / "answers.jsonl").read_text()  # which is kept


def test_servers_that_run_already_take_turns(cli: Cli, rows: Path, tmp_path: Path) -> None:
    """By URL, through the chat endpoint, each question twice."""
    out, log = tmp_path / "run", tmp_path / "log"
    with Server("baseline", None, server(rows), log) as ours, Server("candidate", None, server(rows, wrong=0.5), log) as theirs:
        done = cli("eval", "gsm8k", "--baseline-url", ours.url, "--candidate-url", f"{theirs.url}/v1/", "--chat", "--data", rows,
                   "--shots", 2, "--repeats", 2, "--temperature", 0.5, "--limit", 20, "--chunk", 10, "--out", out, "--json")
        assert ours.ended() is None  # it is not ours to stop
    one = done.data["filters"]["flexible-extract"]
    assert (one["questions"], one["repeats"], one["right"][0], one["losses"] % 2) == (20, 2, 40, 0), done
    assert one["p_value"] == pytest.approx(0.5 ** (one["losses"] // 2)) and done.data["verdict"] == "worse"
    events = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert [(event["arm"], event["chunk"], event["repeat"]) for event in events if event["event"] == "answers"] == [
        (arm, chunk, repeat) for chunk in (0, 1) for repeat in (0, 1) for arm in ("baseline", "candidate")]


@pytest.mark.parametrize(("baseline", "candidate", "doubt"), [
    ("", "OOM detected, falling back to default tactic", "the candidate ran out of memory while it tuned"),
    (DISABLED, DISABLED, "neither arm was tuned"),
    ("", DISABLED, "the candidate was not tuned (are the arms exchanged?)"),
    (DISABLED, "", None),
])
def test_a_candidate_that_was_not_tuned_tells_nothing(cli: Cli, rows: Path, tmp_path: Path, baseline: str, candidate: str,
                                                      doubt: str | None) -> None:
    done = cli(*arguments(rows, tmp_path / "run", server(rows, says=baseline), server(rows, says=candidate), "--limit", 20,
                          "--margin", 0.3))
    assert done.code == (0 if doubt is None else 3) and (doubt or "not worse by more than 0.3") in done.data["sentence"]


def test_a_server_that_does_not_start_says_why(cli: Cli, rows: Path, tmp_path: Path) -> None:
    done = cli(*arguments(rows, tmp_path / "run", "echo no such model >&2; exit 4 # {port}", server(rows)))
    assert done.code == 3
    assert "the server of the baseline ended with exit code 4 before it answered: no such model" in done.data["lost"]


def test_what_an_earlier_server_printed_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{SECRET}\n")
    server = Server("baseline", None, "exit 4 # {port}", tmp_path / "log")
    with pytest.raises(ServerLost, match="ended with exit code 4 before it answered: it printed nothing"), server:
        pass


def test_a_server_of_something_else_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        def answer() -> None:
            with listening.accept()[0] as one:
                one.recv(4096)
                one.sendall(b"SSH-2.0-none\r\n")

        threading.Thread(target=answer, daemon=True).start()
        server = Server("baseline", None, "unused {port}", tmp_path / "log")
        server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ServerLost, match=r"gives no list of models \(BadStatusLine\)"):
            server.models()


@pytest.mark.parametrize(("row", "words"), [
    ({"question": "How many?"}, "row 2: answer is missing or no text; allowed: question, answer"),
    ({"question": "How many?", "answer": "12"}, "row 2: answer does not end with #### and a number"),
    ("text", "row 2 is no object"),
])
def test_data_that_is_none(cli: Cli, rows: Path, tmp_path: Path, row: object, words: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(rows.read_text().split("\n")[0] + "\n" + json.dumps(row) + "\n")
    done = cli(*arguments(bad, tmp_path / "run", server(rows), server(rows)))
    assert done.code == 2 and done.out == "" and words in done.err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(("words", "message"), [
    (("--candidate-url", "http://127.0.0.1:9"), "--baseline-cmd: where its server listens is not said; allowed: --baseline-url"),
    (("--baseline-cmd", "vllm serve", "--candidate-url", "http://h"), "allowed: {port} in it, or --baseline-url beside it"),
    (("--baseline-url", "h:8000", "--candidate-url", "http://h"), "--baseline-url: 'h:8000'; allowed: http://HOST:PORT"),
    (("--baseline-url", "http://h:x", "--candidate-url", "http://h"), "--baseline-url: 'http://h:x'; allowed: http://HOST:PORT"),
    (("--baseline-url", "http://", "--candidate-url", "http://h"), "--baseline-url: 'http://'; allowed"),
    (("--baseline-url", "http://h", "--candidate-url", "http://[::1"), "--candidate-url: 'http://[::1'; allowed"),
    (("--baseline-url", "http://a b", "--candidate-url", "http://h"), "--baseline-url: 'http://a b'; allowed"),
    (("--baseline-url", "http://me:pw@h", "--candidate-url", "http://h"), "--baseline-url: holds a user name; allowed"),
    (("--baseline-url", "http://h", "--candidate-url", "http://h", "--margin", "2"), "--margin: 2.0"),
    (("--baseline-url", "http://h", "--candidate-url", "http://h", "--repeats", "3"), "allowed: a --temperature above 0"),
    (("--baseline-url", "http://h", "--candidate-url", "http://h", "--backend", "triton"), "allowed: both or neither"),
    (("--baseline-url", "http://h", "--candidate-url", "http://h", "--data", "gone.jsonl"), "--data: "),
    (("--resume", "nowhere"), "nowhere: no spot check"),
])
def test_usage(cli: Cli, words: tuple[str, ...], message: str) -> None:
    done = cli("eval", "gsm8k", *words, "--json")
    assert done.code == 2 and done.out == "" and message in done.err, done.err


def test_without_lm_eval_it_says_what_to_install(cli: Cli, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "lm_eval.py").write_text("raise ImportError('No module named lm_eval')\n")
    done = cli(*arguments(rows, tmp_path / "run", server(rows), server(rows)))
    assert done.code == 2 and "pip install 'moeguard[eval]', or --python with an interpreter that has lm-eval 0.4.13" in done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_run_that_is_ended_leaves_no_server(rows: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    out = tmp_path / "run"
    words = [str(word) for word in arguments(rows, out, server(rows, slow=5), server(rows))]
    process = subprocess.Popen([sys.executable, "-m", "moeguard", *words], start_new_session=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    log, until, printed = out / "logs" / "baseline.log", time.monotonic() + 60, None
    while printed is None and time.monotonic() < until:
        printed = re.search(r"serving on port (\d+)", log.read_text()) if log.exists() else None
        time.sleep(0.05)
    assert printed is not None
    os.kill(process.pid, number)
    assert process.wait(60) == code
    place = f"0100007F:{int(printed[1]):04X} 00000000:0000 0A"
    while place in Path("/proc/net/tcp").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    assert place not in Path("/proc/net/tcp").read_text()


def private_rows(folder: Path) -> Path:
    names = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    made = [{name: f"{SECRET} {name.lower().replace(' ', '-')} {place}" for name in names} for place in range(6)]
    rows = folder / "private.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in made))
    return rows


def test_what_lm_eval_says_of_gpqa_is_not_repeated(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(STAND_IN, tmp_path / "site")
    with (tmp_path / "site" / "lm_eval" / "__init__.py").open("a") as file:
        file.write("\n\ndef _prompt(row):\n    raise KeyError(row['Question'])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    rows = private_rows(tmp_path)
    words = arguments(rows, tmp_path / "run", server(rows), server(rows))
    words[1] = "gpqa"
    done = cli(*words)
    assert (done.code, done.data["lost"]) == (3, "lm-eval failed: KeyError")
    assert "isotope" not in done.out + done.err + (tmp_path / "run" / "answers.jsonl").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.soak)])
def test_a_run_of_gpqa_that_is_ended_leaves_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                   number: signal.Signals) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    rows = private_rows(tmp_path)
    words = [str(word) for word in arguments(rows, tmp_path / "run", server(rows), server(rows))]
    words[1], words[3] = "gpqa", f"echo {SECRET}; sleep 60 # {{port}}"
    process = subprocess.Popen([sys.executable, "-m", "moeguard", *words], start_new_session=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not any(SECRET in log.read_text() for log in temporary.glob("*/baseline.log")) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, number)
    assert process.wait(60) == 128 + number
    assert not [file for file in temporary.rglob("*") if file.is_file()]


def test_questions_of_gpqa_are_written_nowhere(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where the run is kept nor where temporary files go, also when servers print and repeat what they are asked."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    rows = private_rows(tmp_path)
    words = arguments(rows, tmp_path / "run", server(rows, echo=True), server(rows, echo=True))
    words[1] = "gpqa"
    done = cli(*words)
    assert done.code == 3 and done.data["complete"] and done.data["filters"]["flexible-extract"]["questions"] == 6
    right = done.data["filters"]["flexible-extract"]["right"]
    assert right[0] == right[1] < 6  # the right choice is not always (A)
    written = [file for folder in (tmp_path / "run", temporary) for file in folder.rglob("*") if file.is_file()]
    assert {"manifest.json", "answers.jsonl", "result.json"} <= {file.name for file in written}
    for file in written:
        text = file.read_text(errors="replace")
        assert "isotope" not in text and "incorrect-answer" not in text, file
    assert "isotope" not in done.out + done.err
