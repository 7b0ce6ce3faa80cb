"""``layout``: weights in the layouts that other releases of the library take.

A library that is handed such weights must refuse them, or be right: nothing in the tensors' shapes tells the layouts apart, so
that a checkpoint prepared for another release is answered with garbage where nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from moeguard.backends.protocol import Backend
from moeguard.checks.contract import fault_of
from moeguard.checks.exhausted import exhausted
from moeguard.checks.sentence import describe
from moeguard.checks.session import Session
from moeguard.checks.subject import Subject


def layout(session: Session) -> None:
    """Run the default once with each foreign layout, in every scenario: findings depend neither on workers nor on order.

    Nothing is concluded where the default itself is wrong, or its answer holds nothing to judge.
    """
    if type(session.backend).foreign_layouts is Backend.foreign_layouts:
        session.note("layout", "the backend has no foreign_layouts()")
        return
    first = session.first
    if first is None or not first.ok or not first.judgement.numbers.get("elements"):
        return
    subjects = _foreign(session)
    if not subjects:
        session.note("layout", "the backend names no weight layout of another release")
    for name, subject in subjects.items():
        with session.probing("layout_contract", f"weights {name}"):
            _probe(session, name, subject)


def _foreign(session: Session) -> dict[str, Subject]:
    """The base with its weights in each foreign layout, by the layout's name; with the workspace of its own weights."""
    base = session.base
    session.workspace_bytes(base, check="layout")
    foreign = session.guarded("foreign_layouts", lambda: _checked(
        session.backend.foreign_layouts(base.problem.weights, session.case)), check="layout")
    return {name: replace(base, prepared=prepared, stood={}, again=_named(name)) for name, prepared in foreign.items()}


def _named(name: str) -> Callable[[Session], Subject | None]:
    return lambda other: _foreign(other).get(name)


def _probe(session: Session, name: str, subject: Subject) -> None:
    """One execution."""
    run = session.execute("layout", f"weights {name}", subject=subject, refusals=(Exception,), quiet=True)
    if run.refused is not None and exhausted(run.refused) == "memory":
        session.crash("run", run.refused, None, "layout", subject.workspace_bytes)
    if run.refused is not None:
        fault = fault_of(run.refused, wrote=run.wrote)
        if fault is not None:
            session.report("layout_contract", "layout", None, f"weights {name} are refused, but {fault}",
                           {"exception": type(run.refused).__name__, "layout": name})
    elif run.judgement.passed:
        session.note("layout", f"weights {name}: answers rightly")
    elif run.whole and not run.ok:
        session.report("layout_contract", "layout", None,
                       f"weights {name} are taken without a word and answered wrongly: {describe(run.judgement)}",
                       dict(run.judgement.numbers, rules=list(run.judgement.failed), layout=name))


def _checked(foreign: object) -> dict[str, Any]:
    """The layouts by name. Raises TypeError for anything but a mapping from str."""
    if not isinstance(foreign, Mapping) or not all(isinstance(name, str) for name in foreign):
        raise TypeError(f"returned {type(foreign).__name__}; allowed: a mapping from names to prepared weights")
    return dict(foreign)
