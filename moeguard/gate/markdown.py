"""A judgement as markdown, for a comment on a change."""

from __future__ import annotations

from moeguard.gate.judgement import Judgement


def markdown(judgement: Judgement) -> str:
    """A table of cells, then what is not met with the command that supplies it."""
    lines = [f"## moeguard gate, level {judgement.level}", "", judgement.sentence, ""]
    if judgement.decisions:
        lines += ["| backend | recipe | arch | decision | not met |", "|---|---|---|---|---|"]
    for one in judgement.decisions:
        names = ", ".join(failed.name for failed in one.failed) or "-"
        lines.append(_row(one.cell.backend, one.cell.recipe, one.cell.arch, one.outcome, names))
    for one in judgement.decisions:
        if one.failed:
            lines += ["", f"### {_plain(one.cell.backend)} with {_plain(one.cell.recipe)}", ""]
            for failed in one.failed:
                command = f" (`{_plain(failed.command).replace('`', '')}`)" if failed.command else ""
                lines.append(f"- {failed.name}: {_plain(failed.sentence)}{command}")
    if judgement.stale:
        lines += ["", "### Evidence that does not count", "", *(f"- {_plain(one.sentence)}" for one in judgement.stale)]
    return "\n".join(lines).rstrip() + "\n"


def _row(*values: str) -> str:
    return "| " + " | ".join(_plain(value).replace("|", "\\|") for value in values) + " |"


def _plain(text: str) -> str:
    return " ".join(text.replace("<", "&lt;").split())
