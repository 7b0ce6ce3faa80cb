"""Before a kernel runs: do the library's preparations put every element where the backend says that its kernels read it?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from moeguard.checks.session import Session
from moeguard.layouts.contract import Moved, Probe


def placement(session: Session) -> bool:
    """Examine each of the backend's ``layout_probes``. False when an element moved: then nothing that runs could be right."""
    moved = session.resources.placed(session.backend, session.case, partial(_examined, session))
    for name, one in moved.items():
        with session.probing(None, name):
            session.report("layout_contract", "layout", None, f"{name}: {one.sentence}", {"probe": name, **one.numbers()})
    return not moved


def _examined(session: Session) -> dict[str, Moved]:
    """What moved, by the name of the probe."""
    probes = session.guarded("layout_probes", lambda: _checked(session.backend.layout_probes(session.case)), check="layout")
    moved = {name: session.guarded(f"layout_probes: {name}", partial(probe.examine, session.base.problem.device), check="layout")
             for name, probe in probes.items()}
    return {name: one for name, one in moved.items() if one is not None}


def _checked(probes: object) -> dict[str, Probe]:
    """The probes by name. Raises TypeError for anything but a mapping from str to Probe."""
    if not isinstance(probes, Mapping) or not all(isinstance(name, str) and isinstance(probe, Probe)
                                                  for name, probe in probes.items()):
        raise TypeError(f"returned {type(probes).__name__}; allowed: a mapping from names to moeguard.layouts.contract.Probe")
    return dict(probes)
