"""The helper that provides real FlashInfer packages: it fails, and does not skip, when they cannot be had."""

from __future__ import annotations

from pathlib import Path

import flashinfer_site
import pytest
from flashinfer_site import VERSIONS, run_in_site, site


def test_without_a_network_there_is_an_error_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_site, "SITES", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(RuntimeError, match="FlashInfer 0.7.4 could not be downloaded, and the tests of its tuner need it: ERROR"):
        site("0.7.4")
    assert [path.name for path in tmp_path.iterdir()] == ["0.7.4.lock"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_release_is_the_one_asked_for(version: str) -> None:
    assert run_in_site(version, "importlib.metadata:version", "flashinfer-python") == version
    assert not (site(version) / "flashinfer" / "data").exists()


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="No module named 'nowhere'"):
        run_in_site(VERSIONS[-1], "importlib:import_module", "nowhere", timeout=60)
    with pytest.raises(RuntimeError, match="took more than"):
        run_in_site(VERSIONS[-1], "time:sleep", 60, timeout=0.5)
