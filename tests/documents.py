"""Examples of the documentation: commands in console blocks, and what is shown below them."""

from __future__ import annotations

import re
from typing import NamedTuple

from commandline import ROOT


class Shown(NamedTuple):
    """A command, without its prompt, and the lines below it."""

    command: str
    lines: list[str]


def commands(name: str, begin: str = "") -> list[Shown]:
    """Those of all console blocks of a document, whose words start with ``begin``, in order."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            found.append(Shown(command, lines))
    return [one for one in found if one.command.startswith(begin)]


def python(name: str, holding: str) -> str:
    """The Python block of a document that holds these words."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [one for one in blocks if holding in one]
    return str(block)


def missing(lines: list[str], printed: str) -> str | None:
    """The first shown line that is not printed behind the ones before it; ``...`` stands for anything."""
    rest = iter(line.rstrip() for line in printed.splitlines())
    for line in lines:
        if line == "...":
            continue
        head, cut = line.rstrip().removesuffix("..."), line.rstrip().endswith("...")
        if not any(one.startswith(head) if cut else one == line.rstrip() for one in rest):
            return line
    return None
