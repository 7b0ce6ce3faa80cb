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
    with session.probing(kind if name == "noncontiguous" else None):  # the rows of out have gaps too
        run = session.execute("contract", f"probe {name}", refusals=(Exception,), quiet=True)
    if run.refused is not None:
        fault = fault_of(run.refused, wrote=run.wrote)
        if fault is not None:
            session.report(kind, "contract", None, f"{name} is declared as unsupported, and {fault}",
                           {"exception": type(run.refused).__name__})
        return
    if run.ok:
        session.note(name, "declared as unsupported, answered rightly without raising")
        return
    session.report(kind, "contract", None,
                   f"{name} is declared as unsupported, but run answered wrongly instead of raising",
                   dict(run.judgement.numbers, rules=list(run.judgement.failed)))


def fault_of(error: BaseException, *, wrote: bool) -> str | None:
    """What is wrong about a refusal, as a clause; None when it is one of REFUSALS and came before anything was written."""
    if wrote:
        return "run raised only after it had written to out"
    if isinstance(error, REFUSALS):
        return None
    return f"run raised {type(error).__name__}; allowed: {', '.join(kind.__name__ for kind in REFUSALS)}"
