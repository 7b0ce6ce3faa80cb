"""``contract``: duplicate ids, ids that no expert has, ids from NaN logits, no tokens at all.

What is declared as supported must be right; what is declared as unsupported must raise before anything is written.
"""

from __future__ import annotations

from moeguard.backends.protocol import REFUSALS
from moeguard.checks.declared import trait_of
from moeguard.checks.session import Session


def contract(session: Session) -> None:
    """Probe a case that the backend declares as unsupported."""
    name = trait_of(session.case)
    assert name is not None
    run = session.execute("contract", f"probe {name}", refusals=(Exception,), quiet=True)
    if run.refused is not None:
        _refused(session, name, run.refused, wrote=run.wrote)
        return
    if run.ok:
        session.note(name, "declared as unsupported, answered rightly without raising")
        return
    session.report("routing_contract", "contract", None,
                   f"{name} is declared as unsupported, but run answered wrongly instead of raising",
                   dict(run.judgement.numbers, rules=list(run.judgement.failed)))


def _refused(session: Session, name: str, error: BaseException, *, wrote: bool) -> None:
    if wrote:
        session.report("routing_contract", "contract", None,
                       f"{name} is declared as unsupported, and run raised only after it had written to out",
                       {"exception": type(error).__name__})
    elif not isinstance(error, REFUSALS):
        allowed = ", ".join(kind.__name__ for kind in REFUSALS)
        session.report("routing_contract", "contract", None,
                       f"{name} is declared as unsupported, and run raised {type(error).__name__}; allowed: {allowed}",
                       {"exception": type(error).__name__})
