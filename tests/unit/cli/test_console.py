"""Tables are not broken where nobody says how wide the output is."""

from __future__ import annotations

import pytest

from moeguard.cli.console import WIDTH, output


def test_a_file_or_a_pipe_is_wide_and_columns_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output().width == WIDTH
    monkeypatch.setenv("COLUMNS", "72")
    assert output().width == 72
