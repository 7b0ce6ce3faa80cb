"""Scheduling of ``pytest -n``: the tests of one cell go to one worker."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling


class CellScheduling(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
    """``--dist load``, but for cells."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.rpartition("::")[0] if nodeid.startswith("moeguard::") else nodeid
