"""From a bad tactic to a tuned engine on the command line: offer, blocklist, quarantine, gate, export."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from commandline import Called, call
from gate_entries import entry, toml
from gate_runs import case, finding, scenario, scenarios, write

from moeguard.gate.blocklist import OPS, VARIABLE

BACKEND, BAD, GOOD = "flashinfer_cutlass", "(3, -1)", "(-1, 50)"
WAIVER = """
[[cell.waiver]]
requirement = "token_buckets"
owner = "kernels team"
reason = "not served"
reference = "ticket 12"
expires = 2999-01-31
"""
WAIVED = "token_buckets: waived by kernels team until 2999-01-31: not served (ticket 12)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"backend": BACKEND, "tactics": (BAD, GOOD)}
    wrong = finding(tactic=BAD, backend=BACKEND, of=case(seed=510))
    events = [*scenarios(510, **options), *scenario(510, case(seed=510), findings=[wrong], **options)]
    return write(tmp_path_factory.mktemp("quarantine") / "run", events)


@pytest.fixture
def here(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the run and an allowlist that says off because of one tactic."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "run").symlink_to(run)
    assert call("allow", "update", "--evidence", "run", "--expires", "2999-12-31").code == 0
    return tmp_path


def commands(text: str) -> list[str]:
    """The commands that are printed below the offer."""
    lines = text.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("  quarantine: "))
    return [line.strip() for line in lines[place + 1:place + 3]]


def execute(command: str) -> Called:
    """A printed command, with its redirection."""
    words, _, file = command.partition(" > ")
    program, *rest = shlex.split(words)
    assert program == "moeguard"
    done = call(*rest)
    if file:
        Path(file).write_text(done.out)
    return done


def test_the_printed_commands_lead_to_a_tuned_engine(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = call("gate", "--evidence", "run", "--flip", "autotune=on")
    assert refused.code == 1 and refused.out.startswith("stays off flashinfer_cutlass bf16 sm90 O2\n  quarantine: ")
    assert "what off costs is not measured\n    moeguard sweep --backend flashinfer_cutlass" in refused.out
    write_it, record_it = commands(refused.out)
    for said in (call("allow", "explain", "flashinfer_cutlass/bf16").out, call("allow", "update", "--evidence", "run").out):
        assert commands(said)[0] == write_it and "only (3, -1) is at fault" in said
    assert execute(write_it).code == 0
    assert json.loads(Path("blocklist.json").read_text())["invalid_tactics"] == {f"{OPS[0]}::MoERunner": [3]}
    recorded = execute(record_it)
    assert recorded.code == 0 and "O1, O2, O3 (was off)" in recorded.out and "quarantined: (3, -1)" in recorded.out

    allowed = call("gate", "--evidence", "run")
    assert allowed.code == 0 and "  quarantined: (3, -1)\n" in allowed.out
    assert "flashinfer_cutlass/bf16/sm90: quarantined: (3, -1)" in call("allow", "list").out
    assert call("allow", "list", "--json").data["cells"][0]["quarantined"] == [BAD]
    without = call("allow", "export", "--format", "vllm-cli")
    assert without.out.startswith("--no-enable-flashinfer-autotune") and f"{VARIABLE} is not set" in without.err
    monkeypatch.setenv(VARIABLE, "blocklist.json")
    assert call("allow", "export", "--format", "vllm-cli").out.startswith("--enable-flashinfer-autotune")
    told = call("allow", "export", "--format", "vllm-env")
    assert f"{VARIABLE}={here / 'blocklist.json'}" in told.out.splitlines()
    assert "\nquarantined: flashinfer_cutlass with bf16: (3, -1); " in told.err
    again = call("allow", "export", "--format", "flashinfer-blocklist", "--json")
    assert json.loads(again.data["text"]) == json.loads(Path("blocklist.json").read_text())


def test_a_finding_of_some_shapes_is_not_exported_silently(here: Path) -> None:
    done = call("allow", "export", "--format", "flashinfer-blocklist")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "tactic (3, -1) of flashinfer_cutlass with bf16 (bad_tactic at T=5 H=64 I=32 E=8 K=2)" in done.err
    accepted = call("allow", "export", "--format", "flashinfer-blocklist", "--all-shapes")
    assert accepted.code == 0 and accepted.err.startswith("note: tactic (3, -1) of flashinfer_cutlass with bf16")


@pytest.mark.parametrize(("words", "message"), [
    ("allow export --format flashinfer-blocklist --cell triton/bf16", "--cell: triton/bf16 is not in moeguard-allowlist.toml"),
    ("allow export --format vllm-cli --all-shapes", "--all-shapes: not for vllm-cli"),
    ("allow export --format flashinfer-blocklist --allowlist triton.toml", "triton has no tactics blocklist"),
    ("allow update --evidence run --quarantine x", "--quarantine: 'x'; allowed: a tactic that the evidence has"),
    ("allow update --evidence run --quarantine default", "--quarantine: the default tactic of flashinfer_cutlass cannot"),
])
def test_bad_input_is_one_line_and_the_file_is_untouched(words: str, message: str, here: Path) -> None:
    Path("triton.toml").write_text(toml(entry(backend="triton")))
    before = Path("moeguard-allowlist.toml").read_bytes()
    done = call(*words.split(), "--json")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1) and message in done.err, done
    assert Path("moeguard-allowlist.toml").read_bytes() == before


def test_waivers_are_in_every_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = [event for place in range(340) for event in scenario(place, case(1 << place % 10, place), backend=BACKEND)]
    write(tmp_path / "run", few)
    file = Path("moeguard-allowlist.toml")
    assert call("allow", "update", "--evidence", "run", "--expires", "2999-12-31").code == 0
    file.write_text(file.read_text() + WAIVER)
    updated = call("allow", "update", "--evidence", "run", "--expires", "2999-12-31")
    assert "O1, O2, O3 (was off)" in updated.out
    gate = call("gate", "--evidence", "run", "--markdown", "out.md")
    assert gate.code == 0 and f"  {WAIVED}\n" in gate.out
    assert f"- {WAIVED}" in Path("out.md").read_text() and "| on | - | token_buckets |" in Path("out.md").read_text()
    (cell,) = call("gate", "--evidence", "run", "--json").data["cells"]
    assert [waiver["owner"] for waiver in cell["waived"]] == ["kernels team"]
    for words in (("list",), ("explain", "flashinfer_cutlass/bf16")):
        assert WAIVED in call("allow", *words).out and "kernels team" in call("allow", *words, "--json").out
    exported = call("allow", "export", "--format", "vllm-json")
    assert exported.err.endswith(f"; this machine has no GPU\nwaiver: flashinfer_cutlass with bf16: {WAIVED}\n")
    assert "kernels team" in call("allow", "export", "--format", "vllm-json", "--json").out
