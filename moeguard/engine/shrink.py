"""Reproduce a finding, and shrink its case to a minimal one that still shows it."""

from __future__ import annotations

import time

from moeguard.core.case import Case
from moeguard.core.events import Found
from moeguard.core.finding import Finding
from moeguard.engine.blame import ENDS, Lookup, alone, blame, ended_alone
from moeguard.engine.options import Options
from moeguard.engine.pool import Workers
from moeguard.engine.worker import Job
from moeguard.fuzz.shrinking import minimise
from moeguard.ledger.standing import Standing

#: Scenarios that one shrink may cost; fewer when each costs a worker.
CALLS, COSTLY_CALLS = 80, 12
#: Kinds that do not depend on the sizes of a case: a race goes by its rate, a tuning takes long and fails for its own reasons.
NOT_SHRUNK = ("nondeterministic", "vacuous_autotune")
#: Seconds after which the smallest case so far is taken: a kernel that compiles for every shape would cost minutes.
SECONDS = 60.0
#: Replays of a race.
RACE_REPLAYS = 5


def settle(workers: Workers, finding: Finding, options: Options, standing: Standing, lookup: Lookup) -> list[Finding]:
    """What becomes of a new finding: its shrunk form, and the finding of another cell that turns out to be guilty of it.

    A process that ended is blamed on the case at which it did if that case ends a fresh process too; otherwise on those
    that it ran before, see moeguard.engine.blame. lookup: the case of a scenario of this run.
    """
    if finding.kind not in ENDS or options.sweep or "launched" not in finding.numbers:
        return [shrink_finding(workers, finding, options, standing)]
    raised = "exception" in finding.numbers
    if raised or ended_alone(workers, finding):
        single = shrink_finding(workers, finding, options, standing)
        if single.reproduced or not raised:
            return [alone(single.model_copy(update={"reproduced": True}))]
    named = blame(workers, finding, lookup)
    return [*named[:1], *map(standing.mark, named[1:])] or [finding.model_copy(update={"reproduced": False})]


def shrink_finding(pool: Workers, finding: Finding, options: Options, standing: Standing | None = None) -> Finding:
    """The finding on its minimal case, with ``reproduced`` set. A finding that does not come back is returned as it is.

    It stays what it is to the ledger: an unknown finding does not shrink into a known one, nor the reverse. A case that
    another entry says to kill the process is not tried.
    """
    standing = standing or Standing()
    seen: dict[Case, Finding] = {}
    whole, start = False, time.monotonic()

    def fails(case: Case) -> bool:
        if case != finding.case and time.monotonic() - start > SECONDS:
            return False
        deadly = standing.deadly(finding.backend, case)
        if deadly is not None and deadly.id != finding.entry and not options.strict:
            return False
        if standing.mark(finding.model_copy(update={"case": case})).entry != finding.entry:
            return False
        again = replay(pool, finding, case, standing, whole=whole)
        if again is not None:
            seen[case] = again
        return again is not None

    tries = RACE_REPLAYS if finding.kind == "nondeterministic" else 1
    if not any(fails(finding.case) for _ in range(tries)):
        whole = True  # it may need the calls of the other checks before it
        if not any(fails(finding.case) for _ in range(tries)):
            return finding.model_copy(update={"reproduced": False})
    if finding.kind not in NOT_SHRUNK and not options.cases:
        calls = COSTLY_CALLS if finding.kind in ("crash", "hang") else CALLS
        minimal = minimise(finding.case, fails, max_calls=calls)
    else:
        minimal = finding.case
    return seen.get(minimal, finding).model_copy(update={"reproduced": True})


def replay(pool: Workers, finding: Finding, case: Case, standing: Standing, *, whole: bool = False) -> Finding | None:
    """Run ``case`` with the check that saw ``finding``, or ``whole``.

    Returns the same kind of finding by the same tactic, known or unknown as ``finding`` is; None when there is none.
    """
    forced = finding.tactic if finding.check in ("tactics", "tuned") and not whole else None
    only = None if finding.check == "contract" or whole else frozenset({finding.check})
    for event in pool.run_one(Job(-1, finding.backend, case, only=only, tactic=forced)):
        if isinstance(event, Found):
            again = standing.mark(Finding.model_validate(event.finding))
            if (again.kind, again.tactic, again.entry) == (finding.kind, finding.tactic, finding.entry):
                return again
    return None
