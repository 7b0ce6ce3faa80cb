"""A judgement as markdown, for a comment on a change."""

from __future__ import annotations

from moeguard.gate.decision import Decision
from moeguard.gate.judgement import Judgement


def markdown(judgement: Judgement) -> str:
    """A table of cells, then for each what is not met with the command that supplies it, waivers, quarantine and figures."""
    asked = "" if judgement.flip is None else f", autotune={judgement.flip}"
    lines = [f"## moeguard gate, level {judgement.level}{asked}", "", judgement.sentence, ""]
    if judgement.decisions:
        lines += ["| backend | recipe | arch | decision | not met | waived | off costs |", "|---|---|---|---|---|---|---|"]
    for one in judgement.decisions:
        names = ", ".join(failed.name for failed in one.failed) or "-"
        waived = ", ".join(waiver.requirement for waiver in one.waived) or "-"
        gain = one.price.speed_up
        price = "not measured" if gain is None and one.price.command else "nothing" if gain is None else (
            f"{gain.median:.3g} times ({gain.low:.3g} to {gain.high:.3g})")
        lines.append(_row(one.cell.backend, one.cell.recipe, one.cell.arch, change(one), names, waived, price))
    for one in judgement.decisions:
        lines += ["", f"### {_plain(one.cell.backend)} with {_plain(one.cell.recipe)}", "", *_details(one)]
    if judgement.stale:
        lines += ["", "### Evidence that does not count", "", *(f"- {_plain(one.sentence)}" for one in judgement.stale)]
    return "\n".join(lines).rstrip() + "\n"


def change(decision: Decision) -> str:
    """The outcome, and what it was before the change that is judged."""
    if decision.before is None:
        return decision.outcome
    return f"stays {decision.outcome}" if decision.before == decision.outcome else f"{decision.outcome} (was {decision.before})"


def _details(decision: Decision) -> list[str]:
    lines = []
    if decision.offer is not None:
        lines.append(f"- quarantine: {_plain(decision.offer.sentence)}")
        lines += [f"  - `{_code(command)}`" for command in decision.offer.commands]
    for failed in decision.failed:
        command = f" (`{_code(failed.command)}`)" if failed.command else ""
        lines.append(f"- {failed.name}: {_plain(failed.sentence)}{command}")
    lines += [f"- {waiver.requirement}: {_plain(waiver.sentence)}" for waiver in decision.waived]
    if decision.quarantined:
        lines.append(f"- quarantined: {_plain(', '.join(decision.quarantined))}")
    price = decision.price
    lines.append(f"- {_plain(price.sentence)}" + (f" (`{_code(price.command)}`)" if price.command else ""))
    if decision.evidence is not None:
        lines.append(f"- evidence: {_plain(decision.evidence.sentence)}")
    return lines


def _row(*values: str) -> str:
    return "| " + " | ".join(_plain(value).replace("|", "\\|") for value in values) + " |"


def _code(text: str) -> str:
    return " ".join(text.split()).replace("`", "")


def _plain(text: str) -> str:
    return " ".join(text.replace("<", "&lt;").split())
