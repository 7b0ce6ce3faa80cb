"""The decisions in docs/h200.md follow from the evidence that is stored with them."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from commandline import ROOT, call

pytestmark = pytest.mark.soak
CAMPAIGN = ROOT / "reports" / "h200" / "2026-11-30-campaign"


def test_the_table_is_what_the_gate_says(tmp_path: Path) -> None:
    with tarfile.open(CAMPAIGN / "evidence.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    runs = sorted(tmp_path.iterdir())
    rows = [[part.strip() for part in line.strip("|").split("|")]
            for line in (ROOT / "docs" / "h200.md").read_text().splitlines() if line.startswith(("| flashinfer_", "| triton"))]
    assert len(rows) == 6
    for level, column in (("O2", 2), ("O3", 3)):
        done = call("gate", "--allowlist", CAMPAIGN / "moeguard-allowlist.toml", "--level", level, "--evidence", *runs, "--json")
        decided = {(one["cell"]["backend"], one["cell"]["recipe"]): one["decision"] for one in done.data["cells"]}
        assert done.code == 1 and decided == {(row[0], row[1]): row[column] for row in rows}
    journal = tmp_path / "ci" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"ok"', b'"Ok"', 1))
    spoilt = call("gate", "--allowlist", CAMPAIGN / "moeguard-allowlist.toml", "--evidence", *runs, "--json")
    assert (spoilt.code, spoilt.data["allowed"]) == (3, False)
