"""``moeguard eval compare``: two arms, from the sample logs of lm-evaluation-harness alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeguard.cli.run import JsonOption

if TYPE_CHECKING:
    from moeguard.evals.comparison import Comparison


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Baseline: a samples_*.jsonl, or a folder with sample logs.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Candidate: the same.")],
    margin: Annotated[float, typer.Option(help="Largest drop that is allowed, as a share of the answers.")] = 0.02,
    filter_: Annotated[str | None, typer.Option("--filter", help="Filter that the verdict is about. Default: flexible-extract "
                                                                 "where there is one, else the first.")] = None,
    metric: Annotated[str, typer.Option(help="Metric of the records, 0 or 1.")] = "exact_match",
    repeats: Annotated[bool, typer.Option("--repeats", help="Several logs of a task in one folder are repeats of it.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Compare answer by answer what two arms were asked. Refuses arms that were not asked the same.

    Exit codes: 0 not worse by more than the margin, 1 worse, 2 bad input, 3 cannot tell.
    """
    from moeguard.core.errors import MoeguardError
    from moeguard.evals.comparison import Comparison
    from moeguard.evals.pairing import judged_filter, pair
    from moeguard.evals.power import ALPHA
    from moeguard.evals.samples import read

    if not 0 < margin < 1:
        raise MoeguardError(f"--margin: {margin:g}; allowed: between 0 and 1, for example 0.02")
    for path in (a, b):
        if not path.exists():
            raise MoeguardError(f"{path}: is not there; allowed: a sample log of lm-eval, or a folder with one")
    pairs = pair(read(a, metric, repeats=repeats), read(b, metric, repeats=repeats))
    tasks = sorted({task for task, _ in pairs})
    judged: dict[str, Comparison] = {}
    others: dict[str, dict[str, Comparison]] = {}
    for task in tasks:
        names = [name for other, name in pairs if other == task]
        chosen = judged_filter(names, filter_)
        made = {name: Comparison.of(task, name, pairs[task, name], margin, alpha=ALPHA / len(tasks)) for name in names}
        judged[task], others[task] = made.pop(chosen), made
    outcomes = {one.outcome for one in judged.values()}
    outcome = next(one for one in ("worse", "cannot_tell", "not_worse") if one in outcomes)
    first = next(one for one in judged.values() if one.outcome == outcome)
    if as_json:
        sys.stdout.write(json.dumps({
            "verdict": first.verdict, "outcome": outcome, "sentence": first.sentence,
            "tasks": [{**one.to_data(), "other_filters": {name: other.to_data() for name, other in others[task].items()}}
                      for task, one in judged.items()]}) + "\n")
    else:
        _show(judged, others)
    return first.exit_code


def _show(judged: dict[str, Comparison], others: dict[str, dict[str, Comparison]]) -> None:
    from moeguard.cli.gate import say

    colours = {"not_worse": "bold green", "worse": "bold red", "cannot_tell": "bold yellow"}
    for task, one in judged.items():
        say(one.sentence, colours[one.outcome])
        tell(one.filter, one)
        for name, other in others[task].items():
            tell(name, other)


def tell(name: str, one: Comparison) -> None:
    """The figures of a comparison."""
    from moeguard.cli.gate import say

    total = one.questions * one.repeats
    say(f"{name}: {one.right[0]} of {total} right in the baseline, {one.right[1]} in the candidate; {one.losses} lost, "
        f"{one.gains} gained; drop {100 * one.drop:.2f} points ({100 * one.interval[0]:.2f} to {100 * one.interval[1]:.2f}), "
        f"exact p = {one.p_value:.3g}")
    texts = one.texts
    parted = "" if texts.first_difference is None else f", the others part after {texts.first_difference:g} words (median)"
    say(f"  {100 * texts.equal:.1f} % of the responses have the same words{parted}; {texts.words[0]:g} and {texts.words[1]:g} "
        "words (median)", "dim")
    for sign, count in texts.signs.items():
        if count.baseline or count.candidate:
            alarm = "yellow" if sign in texts.alarms else "dim"
            say(f"  {sign.replace('_', ' ')}: {count.baseline} and {count.candidate}, exact p = {count.p_value:.3g}", alarm)
    if any(one.errors):
        say(f"  without an answer: {one.errors[0]} and {one.errors[1]}", "yellow")
    if one.outcome == "cannot_tell":
        say(f"  {one.plan.sentence}", "dim")
