"""What of an allowlist FlashInfer's tuner must be kept from: its tactics blocklist, and what that file cannot say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from moeguard.core.errors import AllowlistError
from moeguard.gate.blocklist import BACKENDS, SINCE, Blocklist, obstacle, reads
from moeguard.gate.entry import Entry
from moeguard.gate.quarantine import faults, listed
from moeguard.gate.summary import Problem


@dataclass(frozen=True, slots=True)
class Blocked:
    """blocklist: the file. notes: one sentence for each thing to know about it: cells that were left out, tactics that it
    takes from shapes and recipes where they are right."""

    blocklist: Blocklist
    notes: tuple[str, ...]


def blocked(entries: Sequence[Entry], known: Sequence[Entry], today: date, *, all_shapes: bool = False) -> Blocked:
    """The tactics of ``entries`` that are quarantined, or have a finding about an answer, a crash or a hang.

    Known findings that a waiver covers do not count. known: every entry of the allowlist, since FlashInfer blocks an id for all
    shapes and recipes at once. all_shapes: accept that for tactics that gave right answers elsewhere; quarantined ones are
    accepted already. Raises AllowlistError when there is no such entry, a bad tactic cannot be blocked, is right elsewhere
    and ``all_shapes`` is false, or one file cannot be about all entries.
    """
    usable = [entry for entry in entries if entry.backend in BACKENDS]
    if not usable:
        names = listed(sorted({entry.backend for entry in entries})) if entries else "no cell"
        raise AllowlistError(f"flashinfer-blocklist: {names} has no tactics blocklist; allowed: cells of {', '.join(BACKENDS)}")
    versions = sorted({(entry.flashinfer or "none", entry.arch) for entry in usable})
    if len(versions) > 1:
        several = listed([" on ".join(one) for one in versions])
        raise AllowlistError(f"flashinfer-blocklist: cells of {several}; allowed: one release and one architecture, since ids "
                             "differ between them (--cell BACKEND/RECIPE/ARCH)")
    if not reads(usable[0].flashinfer):
        raise AllowlistError(f"flashinfer-blocklist: FlashInfer {versions[0][0]} reads none; allowed: {SINCE} or later")
    tactics: list[str] = []
    notes = [f"{entry.backend} with {entry.recipe} is left out: it has no tactics blocklist"
             for entry in entries if entry.backend not in BACKENDS and _bad(entry, today)]
    for entry in usable:
        bad = _bad(entry, today)
        every = [*entry.quarantined, *bad]
        for tactic in dict.fromkeys(every):
            found = obstacle(entry.backend, tactic, every)
            if found is not None:
                raise AllowlistError(f"flashinfer-blocklist: {entry.recipe}: {found}")
            right = _right(tactic, entry, known)
            if right:
                sentence = _elsewhere(tactic, entry, bad, right)
                if tactic not in entry.quarantined and not all_shapes:
                    raise AllowlistError(f"flashinfer-blocklist: {sentence}; allowed with --all-shapes")
                notes.append(sentence)
        tactics += every
    cuda, gpu = (next(iter(values)) if len(values) == 1 else None
                 for values in ({entry.cuda for entry in usable}, {entry.evidence.gpu for entry in usable}))
    return Blocked(Blocklist.of(tactics, versions[0][0], cuda, gpu), tuple(dict.fromkeys(notes)))


def _bad(entry: Entry, today: date) -> dict[str, list[Problem]]:
    """Findings that forbid a tactic, by tactic. Those of the default that are known are the ledger's matter."""
    seen = entry.evidence
    waived = any(waiver.requirement == "known_findings" and waiver.expires >= today for waiver in entry.waiver)
    known = {} if waived else faults(seen.known_findings)
    return faults(seen.open_findings) | {name: found for name, found in known.items() if name != "default"}


def _right(tactic: str, entry: Entry, known: Sequence[Entry]) -> list[str]:
    """Where the id that would be blocked gave right answers: other cases of the cell, and cells with other recipes."""
    others = [one for one in known if one.backend in BACKENDS and (one.flashinfer, one.arch) == (entry.flashinfer, entry.arch)
              and one.cell != entry.cell and tactic in one.evidence.tactics_covered]
    own = [f"other cases of {entry.recipe}"] if tactic in entry.evidence.tactics_covered else []
    return [*own, *dict.fromkeys(f"{one.recipe} of {one.backend}" for one in others)]


def _elsewhere(tactic: str, entry: Entry, bad: Mapping[str, list[Problem]], right: Sequence[str]) -> str:
    problems = [*bad.get(tactic, ()), *(one for one in entry.evidence.quarantined_findings if one.tactic == tactic)]
    shapes = list(dict.fromkeys(shape for one in problems for shape in one.shapes))
    seen = f"{', '.join(dict.fromkeys(one.kind for one in problems)) or 'quarantined'}"
    where = f" at {listed(shapes)}" if shapes else ""
    return (f"tactic {tactic} of {entry.backend} with {entry.recipe} ({seen}{where}) gave right answers in {listed(right)}, and "
            f"FlashInfer blocks it for all shapes and recipes")
