"""What the README shows of a backend of one's own is what a reader gets."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import ROOT, Called

README = (ROOT / "README.md").read_text(encoding="utf-8")


def lines(text: str) -> list[str]:
    """Rows of the table and the sentence, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines() if re.match(r"(loop|holey|clean:|findings:) ?", line)]


def shown(command: str) -> list[str]:
    """The lines that the README shows below a command."""
    block = re.search(rf"\$ moeguard {re.escape(command)}\n(.*?)```", README, re.DOTALL)
    assert block is not None, command
    return lines(block[1])


@pytest.mark.parametrize("name", ["loop", "holey"])
def test_the_example(name: str, tmp_path: Path, cli: Callable[..., Called], monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(import torch\nimport moeguard as mg\n.*?)```", README, re.DOTALL)
    change = re.search(r"```diff\n(.*?)```", README, re.DOTALL)
    assert code is not None and change is not None
    source = code[1]
    if name == "holey":
        removed = re.findall(r"^-(.*)\n((?:\+.*\n)+)", change[1], re.MULTILINE)
        for old, new in removed:
            assert old + "\n" in source
            source = source.replace(old + "\n", re.sub(r"^\+", "", new, flags=re.MULTILINE))
    monkeypatch.chdir(tmp_path)
    Path(f"{name}.py").write_text(source)
    command = f"run --plugin {name}.py --profile smoke --max-cases 200" + (" --out holey-run" if name == "holey" else "")
    done = cli(*command.split(), "--device", "cpu")
    assert done.code == (0 if name == "loop" else 1), done.out
    printed = lines(done.out)
    assert set(shown(command)) <= set(printed)
    if name == "holey":
        assert Path("holey-run/cases/f61e7f6e349e.json").is_file()
