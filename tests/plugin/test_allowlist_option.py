"""``pytest --moeguard --moeguard-allowlist FILE``: what is on must pass, what is not is reported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gate_entries import RUN, entry, evidence, toml
from plugin.conftest import LOADED, Ran

from moeguard.core.cell import Cell
from moeguard.core.environment import fingerprint
from moeguard.plugin.cells import Result

PLUGIN = """
import moeguard as mg
from moeguard.backends.torch_reference import TorchReference

class Wrong(TorchReference):
    def run(self, prepared, batch, out, *, tactic=None, workspace=None):
        super().run(prepared, batch, out, tactic=tactic, workspace=workspace)
        out.mul_(1.5)

class WrongOn(Wrong):
    name = "wrong_on"

class WrongOff(Wrong):
    name = "wrong_off"

class AbsentOn(TorchReference):
    name = "absent_on"
    def availability(self):
        return mg.Availability.no("needs SM 10.0")

for kind in (WrongOn, WrongOff, AbsentOn):
    mg.register(kind())
"""
NAMES = ("wrong_on", "wrong_off", "absent_on")


def listed(name: str) -> dict[str, Any]:
    """An entry of this environment, on unless its name says off."""
    cell = {key: value or "none" for key, value in Cell.of(name, "bf16", fingerprint("cpu")).to_data().items()}
    off = {"autotune": "off", "levels": [], "reason": "it was wrong"} if name.endswith("_off") else {}
    seen = {key: value for key, value in evidence(runs=[RUN]).items() if key != "gpu"}
    return entry(**{"levels": ["O1", "O2"], "expires": date(2999, 1, 1), "evidence": seen} | cell | off)


def test_what_is_on_must_pass_and_what_is_not_is_reported(run: Callable[..., Ran], pytester: pytest.Pytester) -> None:
    (pytester.path / "three.py").write_text(PLUGIN)
    (pytester.path / "list.toml").write_text(toml(*(listed(name) for name in NAMES)))
    done = run("--moeguard", "--moeguard-plugin=three.py", f"--moeguard-backend={','.join(NAMES)}", "--moeguard-recipe=bf16",
               "--moeguard-budget=0.3s", "--moeguard-allowlist=list.toml", "-k", "values", "-rx")
    assert done.code == 1
    assert "moeguard: list.toml has 2 of 3 cells on here; others cannot fail the run" in done.out
    assert {name.split("::")[1]: outcome for name, outcome in done.tests.items()} == {
        "wrong_on": "failure", "wrong_off": "skipped", "absent_on": "failure"}, done.out
    (message,) = [one.attrib["message"] for one in done.junit.iter("skipped")]
    assert message.startswith("not allowed here, off: the allowlist says off: it was wrong: mismatch: wrong_off, bf16")
    failed = list(done.junit.iter("failure"))
    assert "absent_on: needs SM 10.0; the allowlist has absent_on with bf16 on here, so it must run" in (failed[1].text or "")
    values = [one.attrib["value"] for one in done.junit.iter("property") if one.attrib["name"] == "allowlist"]
    assert values == ["on", "off", "on"]


@pytest.mark.parametrize(("text", "words"), [
    (None, "list.toml: cannot read the allowlist"), ("schema =", "list.toml: not valid TOML"),
    ("schema = 2", "list.toml: schema: 2; allowed: 1"),
    (toml(entry(colour="red")), "list.toml: cell 1: colour: unknown field; allowed: backend")])
def test_a_bad_file_is_a_usage_error(text: str | None, words: str, pytester: pytest.Pytester, in_process: None) -> None:
    if text is not None:
        (pytester.path / "list.toml").write_text(text)
    done = pytester.runpytest_inprocess(*LOADED, "--moeguard", "--moeguard-allowlist=list.toml")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in done.errlines if line]
    assert len(lines) == 1 and words in lines[0], lines


def test_findings_about_quarantined_tactics_do_not_fail() -> None:
    found = [SimpleNamespace(fingerprint="a", tactic="(3, -1)"), SimpleNamespace(fingerprint="b", tactic=None)]
    result = Result(SimpleNamespace(failing=found), Path(), {}, {"tactics": {"a", "b"}})  # type: ignore[arg-type]
    assert [one.fingerprint for one in result.findings("tactics")] == ["a", "b"]
    assert [one.fingerprint for one in result.findings("tactics", ("(3, -1)",))] == ["b"]
