"""The journal: appended line by line, repaired after a kill, refused when damaged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from moeguard.core.errors import RunDirectoryError
from moeguard.core.events import Event, Noted, RunFinished, ScenarioFinished, ScenarioStarted
from moeguard.engine.journal import Journal, read_journal


def started(scenario: int) -> Event:
    return ScenarioStarted(scenario=scenario, draw=scenario, round=0, backend="mine", recipe="bf16", case={}, fingerprint="0")


def finished(scenario: int, executions: int = 1) -> Event:
    return ScenarioFinished(scenario=scenario, status="clean", executions=executions, seconds=1.0)


def written(path: Path, *events: Event) -> Path:
    with Journal(path) as journal:
        for event in events:
            journal.append(event)
    return path


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    events = [started(0), finished(0), RunFinished(seconds=1.0)]
    path = written(tmp_path / "journal.jsonl", *events)
    assert read_journal(path) == events
    written(path, started(1))
    assert read_journal(path) == [*events, started(1)]


def test_each_line_is_in_the_file_before_append_returns(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(started(0))
        assert read_journal(tmp_path / "journal.jsonl") == [started(0)]


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal.jsonl") == []


def test_an_unfinished_last_line_is_ignored_and_then_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", started(0))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event":"scenario_fini')
    assert read_journal(path) == [started(0)]
    written(path, finished(0))
    assert read_journal(path) == [started(0), finished(0)]
    assert path.read_bytes().startswith(whole)


def test_a_journal_of_one_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event"')
    assert read_journal(path) == []
    assert read_journal(written(path, started(0))) == [started(0)]


def test_only_the_last_attempt_of_a_scenario_counts(tmp_path: Path) -> None:
    note = Noted(scenario=-1, backend="mine", recipe="", what="backend", reason="none")
    lost = Noted(scenario=1, backend="mine", recipe="bf16", what="x", reason="of the first attempt")
    path = written(tmp_path / "journal.jsonl", note, started(0), finished(0), started(1), lost, started(1), finished(1, 2))
    assert read_journal(path) == [note, started(0), finished(0), started(1), finished(1, 2)]


@pytest.mark.parametrize("damage", [b"{}\n", b"\n", b"\xff\xfe\n", b'{"event":"nope"}\n', b"[" * 100_000 + b"\n", b"\0\0\n"])
def test_a_damaged_line_is_named(damage: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", started(0))
    path.write_bytes(path.read_bytes() + damage + started(1).to_json().encode() + b"\n")
    with pytest.raises(RunDirectoryError, match=r"journal\.jsonl: line 2 is damaged"):
        read_journal(path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(RunDirectoryError, match="cannot be"):
        Journal(tmp_path / "journal.jsonl")
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        read_journal(tmp_path / "journal.jsonl")


@pytest.mark.parametrize("fits", [0, 20])
def test_a_full_disk_leaves_whole_lines(fits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space for some bytes of a line, then none; when there is space again, the journal goes on behind the last whole line."""
    path = written(tmp_path / "journal.jsonl", started(0))
    whole, write = path.read_bytes(), os.pwrite

    def full(file: int, data: bytes, offset: int) -> int:
        if fits and offset == len(whole):
            return write(file, data[:fits], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(path) as journal:
        monkeypatch.setattr("os.pwrite", full)
        with pytest.raises(RunDirectoryError, match="No space left on device.*can be resumed"):
            journal.append(finished(0))
        assert path.read_bytes() == whole
        monkeypatch.setattr("os.pwrite", write)
        journal.append(finished(0))
    assert read_journal(path) == [started(0), finished(0)]


def test_ctrl_c_within_a_write_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "journal.jsonl", os.pwrite

    def interrupted(file: int, data: bytes, offset: int) -> int:
        write(file, data[:20], offset)
        raise KeyboardInterrupt

    with Journal(path) as journal:
        journal.append(started(0))
        monkeypatch.setattr("os.pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.append(finished(0))
        monkeypatch.setattr("os.pwrite", write)
        journal.append(RunFinished(seconds=1.0, interrupted=True))
    assert read_journal(path) == [started(0), RunFinished(seconds=1.0, interrupted=True)]


@pytest.mark.parametrize("damage", [b"{}\n", b"\n", b'{"event":"run_fini\n', b"\0\0\0", b"\0\0\n"])
def test_a_damaged_last_line_is_repaired(damage: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", started(0))
    whole = path.read_bytes()
    path.write_bytes(whole + damage)
    assert read_journal(path) == [started(0)]
    assert path.read_bytes() == whole + damage  # reading changes nothing
    written(path, finished(0))
    assert path.read_bytes() == whole + finished(0).to_json().encode() + b"\n"


@pytest.mark.parametrize("line", [b'{"event":"new"}\n', b'{"event":"run_finished","seconds":1.0,"new":1}\n',
                                  b'{"event":"run_finished","seconds":true}\n', b'{"event":"run_finished"}\n'])
def test_a_whole_last_line_of_another_version_is_refused_and_kept(line: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "journal.jsonl", started(0))
    path.write_bytes(path.read_bytes() + line)
    with Journal(path), pytest.raises(RunDirectoryError, match="line 2 is damaged"):
        read_journal(path)
    assert path.read_bytes().endswith(line)


def test_the_disk_has_what_is_older_than_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append((tmp_path / "journal.jsonl").read_bytes().count(b"\n")))
    now = iter([0.0, 0.4, 0.9, 1.1, 1.1, 1.2, 9.0])
    monkeypatch.setattr("moeguard.engine.journal.time.monotonic", lambda: next(now))
    with Journal(tmp_path / "journal.jsonl") as journal:
        for scenario in range(4):
            journal.append(started(scenario))
    assert synced == [0, 3, 4]  # when it was opened, after a second, when it was closed


def test_two_campaigns_cannot_share_a_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl"), pytest.raises(RunDirectoryError, match="in use by another process"):
        Journal(tmp_path / "journal.jsonl")
