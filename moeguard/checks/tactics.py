"""``tactics``: every tactic that an autotuner could pick, forced, witnessed and judged. ``tuned``: the one that it picks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from moeguard.backends.protocol import Backend, VacuousTuning
from moeguard.checks.burst import burst
from moeguard.checks.raised import frameless
from moeguard.checks.sentence import plain
from moeguard.checks.session import Execution, Session
from moeguard.core.finding import Kind

#: Tactics per scenario; more rotate with the seed, so that a campaign covers all of them.
PER_SCENARIO = 8


def tactics(session: Session) -> None:
    """Force each tactic. Wrong where the default is right is ``bad_tactic``."""
    offered = offered_by(session)
    if not offered:
        session.note("tactics", "the backend offers none")
        return
    start = session.case.seed % len(offered)
    chosen = [offered[(start + step) % len(offered)] for step in range(min(len(offered), PER_SCENARIO))]
    for tactic in chosen:
        run, _ = force(session, tactic, "tactics", "bad_tactic", quiet=_same_as_default(session))
        burst(session, run, tactic, "tactics")


def tuned(session: Session) -> None:
    """Run the library's own tuning and judge what it chose, against the oracle first, the default only as a yardstick."""
    if type(session.backend).tune is Backend.tune:
        session.note("autotuning", "the backend has no tune()")
        return
    choice = tuned_choice(session)
    if choice is None:
        if not any(finding.kind == "vacuous_autotune" for finding in session.findings):
            session.note("autotuning", "tuning kept the default, so it proves nothing about other tactics")
        return
    run, witnessed = force(session, choice, "tuned", "autotune_mismatch", quiet=_same_as_default(session))
    burst(session, run, choice, "tuned")
    if choice not in offered_by(session) and not witnessed:
        session.note("autotuning", f"tune() chose {choice}, which tactics() does not offer")
    if session.first is not None and session.first.ok:
        session.execute("tuned", "default after tuning", wrong="autotune_mismatch")


def force_named(session: Session, name: str) -> None:
    """Force the offered tactic whose ``str`` is ``name``, or the tuned choice of that name."""
    offered = offered_by(session)
    for tactic in offered:
        if str(tactic) == name:
            force(session, tactic, "tactics", kind_of_wrong(session))
            return
    choice = tuned_choice(session, name)
    if choice is not None and str(choice) == name:
        force(session, choice, "tuned", "autotune_mismatch")
    else:
        session.note("tactics", f"tactic {name} is not offered for this case; offered: {listed(offered)}")


def kind_of_wrong(session: Session) -> Kind:
    """``bad_tactic`` unless the default is wrong too."""
    return "bad_tactic" if session.first is None or session.first.ok else "mismatch"


def _same_as_default(session: Session) -> bool:
    """Whether the default is wrong too: a wrong tactic is then the same finding, and not reported once more."""
    return session.first is not None and not session.first.ok


def force(session: Session, tactic: Hashable, check: str, wrong: Kind, *, quiet: bool = False) -> tuple[Execution, bool | None]:
    """One forced execution, and whether the backend says that this tactic ran (None: it cannot tell).

    quiet: a wrong value makes no finding.
    """
    run = session.execute(check, "forced" if check == "tactics" else "tuned", tactic=tactic, wrong=wrong, quiet=quiet)
    witness = session.guarded("executed_tactic", session.backend.executed_tactic, tactic, check)
    if witness is None:
        session.note("tactic witness", "the backend cannot tell which tactic ran")
        return run, None
    if witness == tactic or str(witness) == str(tactic):
        return run, True
    session.report("tactic_not_executed", check, tactic, f"tactic {tactic} was requested, {witness} ran",
                   {"requested": str(tactic), "executed": str(witness)})
    return run, False


def offered_by(session: Session) -> Sequence[Hashable]:
    """Every tactic that the backend offers for the session's batch."""
    base = session.base
    return list(session.guarded("tactics", lambda: [
        usable(tactic) for tactic in session.backend.tactics(base.prepared, base.problem.batch)]))


def tuned_choice(session: Session, blamed: str | None = None) -> Hashable | None:
    """What the library's own tuning picks, None when it proved nothing; ``blamed``: the tactic that a crash is reported for."""
    base = session.base

    def ask() -> Hashable | VacuousTuning | None:
        try:
            return usable(session.backend.tune(base.prepared, base.problem.batch))
        except VacuousTuning as vacuous:
            return frameless(vacuous)

    choice: Hashable | VacuousTuning | None = session.guarded("tune", ask, blamed, "tuned")
    if isinstance(choice, VacuousTuning):
        reason = plain(choice) or "the backend gave no reason"
        session.report("vacuous_autotune", "tuned", None, f"tuning proved nothing: {reason}", {"reason": reason})
        return None
    return choice


def listed(tactics: Sequence[Hashable], most: int = 8) -> str:
    """The names of tactics; those beyond ``most`` are counted."""
    names = [str(tactic) for tactic in tactics]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more]) or "none"


def usable(tactic: Hashable) -> Hashable:
    """``tactic`` when it can be hashed and named. Raises what its ``__hash__`` or ``__str__`` raises."""
    hash(tactic)
    str(tactic)
    return tactic
