"""Questions to a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeguard.engine.probe import ask


@pytest.mark.usefixtures("spawned")
def test_a_long_answer_arrives_whole(tmp_path: Path) -> None:
    """The matrix of a release, say: more than a pipe holds."""
    (tmp_path / "talkative.py").write_text("__version__ = 'x' * 200_000\n")
    answer = ask("import", ("talkative",), timeout=30, first=tmp_path)
    assert (answer.failure, answer.data) == (None, "x" * 200_000)
