"""Run directories written by hand, as a campaign would leave them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from moeguard.core.case import Case
from moeguard.core.events import Event, Executed, Found, Noted, RunFinished, ScenarioFinished, ScenarioStarted, Swept
from moeguard.core.finding import Finding

#: A GPU environment as a manifest holds it.
ENVIRONMENT: dict[str, Any] = {
    "device": "cuda", "arch": "sm90", "cuda": "12.9", "driver": "575.57", "gpu": "NVIDIA H200",
    "packages": {"torch": "2.13.0", "flashinfer-python": "0.7.4"}}
#: Numbers of tokens that cover every bucket up to 4096.
TOKENS = (0, *(1 << exponent for exponent in range(13)))
TACTICS = ("a", "b")


def case(tokens: int = 5, seed: int = 0, recipe: str = "bf16") -> Case:
    """A small case."""
    shape = {"num_tokens": tokens, "hidden_size": 64, "intermediate_size": 32, "num_experts": 8, "top_k": 2}
    return Case.model_validate({"schema": 1, "shape": shape, "recipe": recipe, "seed": seed})


def finding(kind: str = "bad_tactic", tactic: str | None = "b", entry: str | None = None, backend: str = "mine",
            of: Case | None = None) -> Finding:
    """A finding with a sentence."""
    return Finding.model_validate({"kind": kind, "check": "tactics", "backend": backend, "case": of or case(), "tactic": tactic,
                                   "sentence": "Something was seen.", "entry": entry})


def scenario(number: int, of: Case | None = None, *, tactics: Sequence[str] = TACTICS, findings: Iterable[Finding] = (),
             outcome: str = "ok", backend: str = "mine", swept: Iterable[Swept] = ()) -> list[Event]:
    """One scenario: the default once, each tactic once."""
    of, findings = of or case(seed=number), list(findings)
    bad = {one.tactic for one in findings}
    executed = [Executed(scenario=number, number=place, check="memory" if tactic is None else "tactics", role="base",
                         tactic=tactic, outcome="finding" if tactic in bad else outcome, seconds=0.1)
                for place, tactic in enumerate((None, *tactics))]
    none = [] if tactics else [Noted(scenario=number, backend=backend, recipe=of.recipe, what="tactics",
                                     reason="the backend offers none")]
    return [
        ScenarioStarted(scenario=number, draw=number, round=0, backend=backend, recipe=of.recipe,
                        case=of.model_dump(mode="json", by_alias=True), fingerprint=of.fingerprint),
        *executed, *none, *swept, *(Found(scenario=number, finding=one.to_data()) for one in findings),
        ScenarioFinished(scenario=number, status="findings" if findings else "clean", executions=len(executed), seconds=0.1)]


def scenarios(number: int = 300, **options: Any) -> list[Event]:
    """Clean scenarios with distinct cases over all of TOKENS."""
    recipe, tokens = options.pop("recipe", "bf16"), options.pop("tokens", TOKENS)
    return [event for place in range(number)
            for event in scenario(place, case(tokens[place % len(tokens)], place, recipe), **options)]


def write(folder: Path, events: Iterable[Event], *, run_id: str = "run-1", environment: dict[str, Any] | None = None,
          complete: bool = True, options: dict[str, Any] | None = None, started: str = "2026-05-01T12:00:00+00:00") -> Path:
    """A run directory of these events, complete with its end and its cases."""
    (folder / "cases").mkdir(parents=True)
    manifest = {"schema": 1, "run_id": run_id, "command": "run", "options": options or {},
                "environment": environment or ENVIRONMENT, "started": started}
    (folder / "manifest.json").write_text(json.dumps(manifest) + "\n")
    everything = [*events, *([RunFinished(seconds=1.0)] if complete else [])]
    (folder / "journal.jsonl").write_text("".join(event.to_json() + "\n" for event in everything))
    for event in everything:
        if isinstance(event, Found):
            of = Finding.model_validate(event.finding).case
            (folder / "cases" / f"{of.fingerprint}.json").write_text(of.to_json() + "\n")
    return folder
