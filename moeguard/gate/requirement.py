"""The named requirements: what evidence must show, each with its threshold and the command that supplies it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from moeguard.core.cell import Cell
from moeguard.gate.command import campaign, spot_check, sweep
from moeguard.gate.confidence import runs_needed
from moeguard.gate.decision import Failed
from moeguard.gate.pair import combined
from moeguard.gate.policy import RACES, WRONG_ANSWERS, Policy, Thresholds
from moeguard.gate.summary import Problem, Summary
from moeguard.gate.tally import DEFAULT_TACTIC

Rule = Callable[[Cell, Summary, Thresholds], Failed | None]
MOST = 6


def failures(cell: Cell, summary: Summary, level: str, policy: Policy) -> tuple[Failed, ...]:
    """Every requirement of ``level`` that the evidence of ``cell`` does not meet, in the order of ``RULES``."""
    thresholds = policy.thresholds(level, cell.arch)
    if thresholds.never:
        return (Failed("level", "never", level, f"{level} is never tuned"),)
    return tuple(failed for rule in RULES.values() if (failed := rule(cell, summary, thresholds)) is not None)


def _executions(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    if summary.executions >= asked.min_executions:
        return None
    return Failed("executions", f"at least {asked.min_executions}", str(summary.executions),
                  f"{summary.executions} executions, {asked.min_executions} are needed", campaign(cell, asked.max_bound))


def _bound(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    if summary.cases and summary.bound <= asked.max_bound:
        return None
    return Failed("bound", f"at most {asked.max_bound:g}", f"{summary.bound:.4g}",
                  f"{summary.failures} failures in {summary.cases} distinct cases leave a failure rate of up to "
                  f"{summary.bound:.3g}, {asked.max_bound:g} is allowed ({runs_needed(asked.max_bound)} cases without a failure)",
                  campaign(cell, asked.max_bound))


def _tactics(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    missing = sorted(one for one in set(summary.tactics) - set(summary.tactics_covered) if not combined(one, summary.tactics))
    alone = set(summary.tactics) <= {DEFAULT_TACTIC}
    if not alone and (not asked.all_tactics or (summary.tactics_known and not missing)):
        return None
    there = f"{len(summary.tactics) - len(missing)} of {len(summary.tactics)}"
    sentence = (f"no right answer from tactics {_listed(missing)}" if missing
                else "only the default tactic was executed, which proves nothing about autotuning" if alone
                else "the runs do not show every tactic that the backend offers; a sweep does")
    return Failed("tactics", "all", there if summary.tactics_known else f"{there} seen, more may exist", sentence, sweep(cell))


def _token_buckets(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    wanted = [1 << exponent for exponent in range(asked.token_buckets_up_to.bit_length())]
    missing = [str(bucket) for bucket in wanted if bucket not in summary.token_buckets]
    if not missing:
        return None
    return Failed("token_buckets", f"every power of two up to {asked.token_buckets_up_to}",
                  f"{len(wanted) - len(missing)} of {len(wanted)}", f"no case in the buckets of {_listed(missing)} tokens",
                  sweep(cell, "--tokens", ",".join(missing)))


def _repeats(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    if summary.repeats >= asked.min_repeats:
        return None
    few = [tactic for tactic, number in summary.tactics.items()
           if number < asked.min_repeats and not combined(tactic, summary.tactics)]
    return Failed("repeats", f"at least {asked.min_repeats}", str(summary.repeats),
                  f"fewer than {asked.min_repeats} judged calls of tactics {_listed(few)}", campaign(cell, asked.max_bound))


def _reruns(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    races = [one for one in [*summary.open_findings, *summary.known_findings] if one.kind in RACES]
    few = [one for one in races if one.reruns < asked.min_reruns]
    if not few:
        return None
    fewest = min(few, key=lambda one: one.reruns)
    return Failed("reruns", f"at least {asked.min_reruns}", str(fewest.reruns),
                  f"a race shows only now and then: {_described(few)} needs {asked.min_reruns} executions of one and the same "
                  f"case, {fewest.reruns} are there", sweep(cell, "--repeat", str(asked.min_reruns)))


def _tuning(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    vacuous = [one for one in [*summary.open_findings, *summary.known_findings] if one.kind == "vacuous_autotune"]
    if not vacuous:
        return None
    return Failed("tuning", "not vacuous", "vacuous",
                  "a tuning measured nothing (vacuous_autotune), so nothing tuned was verified", campaign(cell, asked.max_bound))


def _strata(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    there = summary.strata
    if asked.max_stratum_bound is None or (there is not None and there.worst.bound <= asked.max_stratum_bound):
        return None
    found = "no case at all" if there is None else (
        f"tactic {there.worst.tactic} at T >= {there.worst.token_bucket}: {there.worst.failures} failures in {there.worst.cases} "
        f"cases leave a failure rate of up to {there.worst.bound:.3g}")
    return Failed("strata", f"at most {asked.max_stratum_bound:g}", "none" if there is None else f"{there.worst.bound:.4g}",
                  f"{found}, {asked.max_stratum_bound:g} is allowed in each bucket and tactic "
                  f"({runs_needed(asked.max_stratum_bound)} cases without a failure)", campaign(cell, asked.max_bound))


def _open_findings(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    found = [one for one in summary.open_findings if one.kind not in asked.tolerated]
    if not found:
        return None
    return Failed("open_findings", "none", str(len(found)), f"open findings: {_described(found)}",
                  campaign(cell, asked.max_bound))


def _known_findings(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    found = [one for one in summary.known_findings if one.kind in WRONG_ANSWERS]
    if not found:
        return None
    return Failed("known_findings", "none about an answer, or a waiver", str(len(found)),
                  f"known wrong answers: {_described(found)}", "moeguard replay --ledger")


def _speed_up(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    there = summary.speed_up
    if asked.min_speed_up is None or (there is not None and there.median >= asked.min_speed_up):
        return None
    sentence = ("no sweep was timed, so it is not known whether tuning is faster" if there is None else
                f"the fastest right tactic is {there.median:g} times as fast as the default, {asked.min_speed_up:g} is needed")
    return Failed("speed_up", f"at least {asked.min_speed_up:g}", "not timed" if there is None else f"{there.median:g}", sentence,
                  sweep(cell))


def _evals(cell: Cell, summary: Summary, asked: Thresholds) -> Failed | None:
    worse = [one for one in summary.evals if one.outcome == "worse"]
    if worse:
        return Failed("evals", "none that is worse", "worse", f"a spot check found harm: {worse[0].sentence}",
                      spot_check(cell, worse[0].task))
    for task, margin in asked.evals.items():
        those = [one for one in summary.evals if one.task == task]
        if not any(one.outcome == "not_worse" and one.upper_bound < margin for one in those):
            there = "; ".join(one.sentence for one in those) or f"no spot check of {task}"
            return Failed("evals", f"{task} not worse by more than {margin:g}", "not shown" if those else "none",
                          f"{there}; a drop of {100 * margin:g} points or more must be excluded", spot_check(cell, task))
    return None


#: By name, in the order in which they are reported.
RULES: dict[str, Rule] = {
    "open_findings": _open_findings, "known_findings": _known_findings, "tactics": _tactics, "token_buckets": _token_buckets,
    "bound": _bound, "strata": _strata, "executions": _executions, "repeats": _repeats, "reruns": _reruns, "tuning": _tuning,
    "speed_up": _speed_up, "evals": _evals,
}


def _listed(names: list[str]) -> str:
    more = [f"and {len(names) - MOST} more"] if len(names) > MOST else []
    return ", ".join([*names[:MOST], *more])


def _described(found: Iterable[Problem]) -> str:
    return _listed([f"{one.kind} of tactic {one.tactic}" for one in found])
