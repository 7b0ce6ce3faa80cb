"""The matrix of FlashInfer releases and adapters, as markdown; from the JSON data of ``moeguard.engine.wheels`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Answers = Sequence[Mapping[str, Any]]
_HEAD = """# FlashInfer releases beside the adapters

What can be known of a release without running its kernels. Every call that an adapter would make is bound to the real signature
of the release (`yes` with the number of cases whose calls were bound), preparations that are pure torch are executed, and what
they do to an index-encoded tensor is compared with the layout that the kernels read. It says nothing about what a kernel
computes: a backend that never ran on an architecture has no evidence there, and the gate denies it.

This file is written by a command, which installs nothing and needs no GPU:

```text
{command}
```
"""


def markdown(answers: Answers) -> str:
    """The whole document, ending in a newline; the same answers give the same text."""
    command = "moeguard doctor " + " ".join(f"--wheels sites/{answer['version']}" for answer in answers) \
        + " --markdown docs/flashinfer-versions.md"
    parts = [_HEAD.format(command=command), _calls(answers), _functions(answers), _layouts(answers)]
    return "\n".join(part for part in parts if part)


def cells(answers: Answers) -> list[tuple[str, str, list[Mapping[str, Any] | None]]]:
    """Adapter, recipe and one row a release (None where it does not import), without the recipes that an adapter
    takes in no release for a reason of its own.
    """
    said = [{(row["adapter"], row["recipe"]): row for row in answer.get("rows", ())} for answer in answers]
    pairs = dict.fromkeys(pair for rows in said for pair in rows)
    found = ((adapter, recipe, [rows.get((adapter, recipe)) for rows in said]) for adapter, recipe in pairs)
    return [(adapter, recipe, rows) for adapter, recipe, rows in found
            if any(row and (row["holds"] or "FlashInfer" in str(row["reason"])) for row in rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines) + "\n"


def _calls(answers: Answers) -> str:
    """The matrix, with a numbered list of reasons."""
    reasons: dict[str, int] = {}

    def cell(row: Mapping[str, Any] | None) -> str:
        if row is None:
            return "-"
        if row["holds"]:
            return f"yes ({len(row['cases'])})"
        return f"no [{reasons.setdefault(str(row['reason']), len(reasons) + 1)}]"

    body = [[adapter, recipe, *(cell(row) for row in found)] for adapter, recipe, found in cells(answers)]
    text = "## Calls\n\n" + _table(["adapter", "recipe", *(answer["version"] for answer in answers)], body)
    said = [
        ("Why not", [f"{number}. {reason}" for reason, number in reasons.items()]),
        ("Releases that do not import",
         [f"- FlashInfer {answer['version']}: {answer['failure']}" for answer in answers if "failure" in answer]),
        ("Where the version table of the adapters is wrong",
         [f"- {line}" for answer in answers for line in answer.get("table", ())]),
        ("Stood in for, since it was not there (the signatures of FlashInfer are its own)",
         [f"- FlashInfer {one['version']}: {', '.join(one['stood_in'])}" for one in answers if one.get("stood_in")])]
    return text + "".join(_listed(title, lines) for title, lines in said)


def _listed(title: str, lines: Sequence[str]) -> str:
    return f"\n{title}:\n\n" + "".join(f"{line}\n" for line in lines) if lines else ""


def _functions(answers: Answers) -> str:
    """Which functions calls were bound to in each release, and which of them ran."""
    names = sorted({name for answer in answers for row in answer.get("rows", ()) for name in row["calls"]})

    def cell(answer: Mapping[str, Any], name: str) -> str:
        rows = [row for row in answer.get("rows", ()) if name in row["calls"]]
        return "-" if not rows else "executed" if any(name in row["helpers"] for row in rows) else "bound"

    body = [[f"`{name}`", *(cell(answer, name) for answer in answers)] for name in names]
    return "## Functions\n\n" + _table(["function", *(answer["version"] for answer in answers)], body)


def _layouts(answers: Answers) -> str:
    """Which functions keep to which layout."""
    pairs = list(dict.fromkeys((one["layout"], one["function"]) for answer in answers for one in answer.get("layouts", ())))
    moved: list[str] = []

    def cell(answer: Mapping[str, Any], pair: tuple[str, str]) -> str:
        found = [one for one in answer.get("layouts", ()) if (one["layout"], one["function"]) == pair]
        if not found:
            return "-"
        said = found[0]["moved"] or found[0]["refused"]
        if said is None:
            return "kept"
        moved.append(f"- FlashInfer {answer['version']}, `{pair[1]}`: {said}")
        return "refused" if found[0]["moved"] is None else "**moved**"

    body = [[layout, f"`{function}`", *(cell(answer, (layout, function)) for answer in answers)]
            for layout, function in sorted(pairs)]
    changed = dict.fromkeys(f"- {line}" for answer in answers for line in answer.get("changed", ()))
    return ("## Layouts\n\n" + _table(["layout", "function", *(answer["version"] for answer in answers)], body)
            + _listed("Moved or refused", moved)
            + _listed("Layouts that changed between releases (of the weights by the sources of the kernels)", list(changed)))
