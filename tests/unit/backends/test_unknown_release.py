"""What ``moeguard doctor --wheels`` says of a release that came after the adapters."""

from __future__ import annotations

import pytest

from moeguard.backends.wheel_contract import examine


@pytest.mark.parametrize("kind", examine.BLACKWELL)
def test_a_release_that_is_not_in_the_table_says_so(kind: type) -> None:
    row = examine._row(kind, "nvfp4", "9.0.0")
    assert not row.holds and row.reason is not None and "FlashInfer 9.0.0 is not in the version table; known: 0.6.6" in row.reason
    assert list(examine._layouts("9.0.0")) == []
