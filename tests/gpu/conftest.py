"""Tests that need a CUDA device; elsewhere they are skipped with the reason."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here without a device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "tests/gpu" in str(item.path).replace("\\", "/"):
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))
