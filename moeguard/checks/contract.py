"""``contract``: duplicate ids, ids that no expert has, ids from NaN logits, no tokens at all, rows that are not contiguous.

What is declared as supported must be right; what is declared as unsupported must raise before anything is written.
"""

from __future__ import annotations

from moeguard.backends.protocol import REFUSALS
from moeguard.checks.session import Session
from moeguard.core.finding import Kind


def contract(session: Session, name: str) -> None:
    """Probe a case that the backend declares as unsupported by the trait ``name``."""
    kind: Kind = "layout_contract" if name == "noncontiguous" else "routing_contract"
    session.breach = kind if name == "noncontiguous" else None  # the rows of out have gaps too
    run = session.execute("contract", f"probe {name}", refusals=(Exception,), quiet=True)
    if run.refused is not None:
        _refused(session, kind, name, run.refused, wrote=run.wrote)
        return
    if run.ok:
        session.note(name, "declared as unsupported, answered rightly without raising")
        return
    session.report(kind, "contract", None,
                   f"{name} is declared as unsupported, but run answered wrongly instead of raising",
                   dict(run.judgement.numbers, rules=list(run.judgement.failed)))


def _refused(session: Session, kind: Kind, name: str, error: BaseException, *, wrote: bool) -> None:
    if wrote:
        session.report(kind, "contract", None,
                       f"{name} is declared as unsupported, and run raised only after it had written to out",
                       {"exception": type(error).__name__})
    elif not isinstance(error, REFUSALS):
        allowed = ", ".join(kind.__name__ for kind in REFUSALS)
        session.report(kind, "contract", None,
                       f"{name} is declared as unsupported, and run raised {type(error).__name__}; allowed: {allowed}",
                       {"exception": type(error).__name__})
